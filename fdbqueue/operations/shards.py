"""The shards of a queue: where items go, and which are the first.

FoundationDB cannot split the head of a range, but it can serve the head of each shard from other
servers. The beginning of an item's position names its shard. See `docs/design/shards.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from fdbqueue.errors import InvalidShards
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout, shard_prefix
from fdbqueue.layout.values import decode_count, encode_count
from fdbqueue.operations.parallel import read_all
from fdbqueue.types import ENDED, KeySelector, KeyValue, Options, ReadTransaction, Transaction

if TYPE_CHECKING:
    from fdbqueue.layout.items import ItemRow, Level
    from fdbqueue.operations.items import Items, NewItem
    from fdbqueue.operations.transitions import Change

_group_of = attrgetter("level.group")

_FEW = 16  # claimed items of a group that may end at the same time
_MOST_AT_ONCE = 16  # first items of each shard that a claim reads at once to skip some

OF_ONE_QUEUE = ("max_size", "concurrency", "rate")
"""The options that count over the whole queue: all shards would meet on their counters."""

Choose: TypeAlias = Callable[[ReadTransaction, list[StoredItem]], StoredItem]
"""Chooses the shard to take from by the first items of the shards with the best priority."""

Start: TypeAlias = Callable[[bytes, int], KeySelector]
"""Returns where to begin in a range of items, given its begin and the number of items to skip."""


def _group_with(row: ItemRow | None) -> str | None:
    """Return the group that an item keeps in its shard, if any."""
    return None if row is None or row.state in ENDED else row.item.level.group


def _number(hashed: bytes, shards: int) -> int:
    return crc32(hashed) % shards


class Shards:
    """The shards of one queue."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items

    # Where items go

    def place(self, tr: Transaction, options: Options, items: Iterable[NewItem]) -> list[NewItem]:
        """Return new items with their levels in the right shards.

        A group is in one shard, which its name decides. An item without a group goes to a shard
        that its random id decides.
        """
        new, shards, in_shard = [*items], options.shards or 1, self._items.levels.in_shard
        homes = self._homes(tr, options, {*map(_group_of, new)} - {None})
        placed: list[NewItem] = []
        for item in new:
            group = item.level.group
            number = _number(item.random, shards) if group is None else homes[group]
            level = in_shard(item.level, shard_prefix(number))
            placed.append(item._replace(level=level))
        return placed

    def present(self, tr: Transaction, item: StoredItem) -> StoredItem:
        """Return an item that comes back with its place in the shard where it belongs now.

        The number of shards may have changed since, and its group may be in another one.
        """
        level, position = item.level, self._layout.position(item.key)
        if level.group is None and not level.shard:
            return item
        options, shard = self._items.options.read(tr), level.shard
        if shard >= shard_prefix(options.shards or 1):
            shard = shard_prefix(_number(position, options.shards or 1))
        level = self._level_in(tr, options, level, shard)
        if level.shard == item.level.shard:
            return item
        key = level.prefix + item.key[len(item.level.prefix) :]
        header = item.header._replace(origin=item.header.origin or position)
        return StoredItem(key, item.value, level).with_header(header)

    def level_for(self, tr: Transaction, level: Level, before: Level) -> Level:
        """Return a level in the shard of its group; without another one, in the shard of before."""
        if level.group in (None, before.group):
            return self._items.levels.in_shard(level, before.shard)
        return self._level_in(tr, self._items.options.read(tr), level, before.shard)

    def _level_in(self, tr: Transaction, options: Options, level: Level, shard: bytes) -> Level:
        if options.has_had_shards and level.group is not None:
            shard = shard_prefix(self._homes(tr, options, {level.group})[level.group])
        return self._items.levels.in_shard(level, shard)

    def _homes(self, tr: Transaction, options: Options, groups: set[str]) -> dict[str, int]:
        """Return the shard of each group.

        Once the number of shards has changed, a group stays where it has items, which a row says.
        """
        shards, layout, key = options.shards or 1, self._layout, self._layout.group_key
        homes = {group: _number(group.encode(), shards) for group in sorted(groups)}
        if options.shards_before is None:
            return homes
        rows = [key(layout.group_homes, group) for group in homes]
        for group, row, value in zip([*homes], rows, read_all(tr, rows)):
            if value is not None and decode_count(value) < shards:
                homes[group] = decode_count(value)
                continue
            # Nobody has pushed to it since the first change, or it had no items then.
            if value is None and any(read_all(tr, layout.counters_of_group(group))):
                before = _number(group.encode(), options.shards_before)
                homes[group] = before if before < shards else homes[group]
            tr[row] = encode_count(homes[group])
        return homes

    def follow(self, tr: Transaction, now: int, changes: Sequence[Change]) -> None:
        """Forget the shards of groups whose last ready, delayed or claimed item is gone."""
        options = self._items.options
        if options.shards and not options.has_homes:
            return
        before = {_group_with(change.before) for change in changes}
        after = {_group_with(change.after) for change in changes}
        gone = sorted(filter(None, before - after))
        if gone and not options.shards:  # this client has not read them
            options.read(tr.snapshot)
        if not options.has_homes:
            return
        for group in gone:
            counters = self._layout.counters_of_group(group)
            *waiting, claimed = map(decode_count, read_all(tr.snapshot, counters))
            if any(waiting) or claimed > _FEW:
                continue
            # Conflict with a push to the group, and with the end of another of its last items.
            if not any(read_all(tr, counters)):
                tr.clear(self._layout.group_key(self._layout.group_homes, group))

    # Which comes first

    def choose(self, tr: ReadTransaction, heads: list[StoredItem]) -> StoredItem:
        """Choose the shard whose first item is the oldest, or if groups share, one by weight."""
        if len(heads) == 1 or not any(map(_group_of, heads)):
            return min(
                heads, key=lambda head: self._layout.position(head.key)[len(head.level.shard) :]
            )
        weigh = self._items.turns.begin_weight
        weights = [weight() for weight in [weigh(tr, head.level) for head in heads]]
        # There is no random number in a transaction: the hash of its version stands for one.
        version = tr.get_read_version().wait()
        left = sum(weights) * crc32(b"%d" % version) / 2**32
        for head, weight in zip(heads, weights):
            left -= weight
            if left < 0:
                return head
        return heads[-1]

    # How many there are

    def in_the_way(self, reads: ReadTransaction, before: Options, n: int) -> str | None:
        """Return why a queue cannot have `n` shards now; `None` if it can."""
        n_before, layout = before.shards or 1, self._layout
        if n >= n_before:
            return None
        for prefix in layout.prefix_of.values():
            begin, end = layout.shard_ranges(prefix, n_before)[n][0], prefix + b"\xff"
            for row in reads.get_range(begin, end, limit=1):
                id = layout.item_id(layout.items + row.key[len(prefix) :])
                return f"a higher shard still holds items, such as {id}"
        if [*reads.get_range(*layout.range_of(layout.results), limit=1)]:
            return "items are staged for pops of other processes; try again"
        return None

    def change(self, tr: Transaction, before: Options, after: Options) -> Options:
        """Return new options for a queue whose number of shards changes; raise `InvalidShards`."""
        n_before, n = before.shards or 1, after.shards or 1
        why = self.in_the_way(tr, before, n)
        if why is not None:
            raise InvalidShards(n, why)
        if n == n_before or before.shards_before is not None:
            return after
        counters = self._items.begin_counters(tr)()
        # Items that were popped before the queue was cleared may have come back.
        has_had_items = counters.pushed > 0 or counters.tallies["put_back"] > 0
        return replace(after, shards_before=n_before) if has_had_items else after


def clash(options: Options) -> str | None:
    """Return which option a queue with several shards cannot have; `None` if there is none."""
    refused = [name for name in OF_ONE_QUEUE if getattr(options, name) is not None]
    is_sharded = (options.shards or 1) > 1
    return f"a queue with several shards has no {refused[0]}" if is_sharded and refused else None


def check_shards(options: Options) -> None:
    """Raise `InvalidShards` for options that a queue with several shards cannot have."""
    why = clash(options)
    if why is not None:
        raise InvalidShards(options.shards or 1, why)


# Which items are the first


def _rank(layout: Layout, head: StoredItem) -> bytes:
    """Return the packed priority of an item, by which the shards compare."""
    return layout.position(head.level.of_priority)[len(head.level.shard) :]


def begin_first(
    items: Items,
    tr: ReadTransaction,
    choose: Choose,
    at_max: bool = False,
    start: Start | None = None,
    skipped: int = 0,
) -> Callable[[int], Sequence[StoredItem]]:
    """Start to read the first item of each shard; return a function that returns `n` first items.

    The best priority comes first: its items in the chosen shard, then in the others. Skip `skipped`
    items, if enough follow; in the first priority with groups, skip that many groups of a shard.
    """
    layout, level_of = items.layout, items.levels.level_of
    ranges = layout.shard_ranges(layout.items, items.options.shards)
    # To skip many priorities at once.
    limit = 2 + min(2 * skipped // len(ranges), _MOST_AT_ONCE) if skipped else 1
    reads = [tr.get_range(*each, limit=limit, reverse=at_max) for each in ranges]
    rank = partial(_rank, layout)
    ends = {shard_prefix(number): each for number, each in enumerate(ranges)}

    def items_of(rows: Iterable[KeyValue]) -> list[StoredItem]:
        return [StoredItem(row.key, row.value, level_of(row.key)) for row in rows]

    def read_level(
        level: Level, n: int, skip: int, has_groups: bool, before: list[StoredItem]
    ) -> tuple[list[StoredItem], int]:
        """Return items of a shard and priority, and how many of them to skip."""
        begin, end = layout.range_of_priority(level)
        if start is not None and skip:
            some = items.begin_read(tr, begin, end, n, start(begin, skip), skip)()
            if len(some) == n:
                return some, 0
        if has_groups:
            skip = 0
        return items.begin_read(tr, begin, end, n + skip, before=before)(), skip

    def finish(n: int) -> Sequence[StoredItem]:
        following = {each[0].level.shard: each for each in map(items_of, reads) if each}
        unread = {shard for shard, each in following.items() if len(each) == limit}
        passed, found, skip = list[StoredItem](), list[StoredItem](), skipped
        while following and len(found) < n:
            heads = [each[0] for each in following.values()]
            best = (max if at_max else min)(map(rank, heads))
            of_best = [head for head in heads if rank(head) == best]
            chosen, has_groups = choose(tr, of_best).level, any(map(_group_of, of_best))
            known = following.pop(chosen.shard)
            some = [item for item in known if item.level.of_priority == chosen.of_priority]
            later = known[len(some) :]
            is_cut = not later and chosen.shard in unread
            if has_groups or is_cut:
                some, skip = read_level(chosen, n - len(found), skip, has_groups, found)
            passed += some[:skip]
            found += some[skip : skip + n - len(found)]
            skip = max(0, skip - len(some))
            if is_cut and len(found) < n:
                (first, last), (begin, end) = ends[chosen.shard], layout.range_of_priority(chosen)
                rest = (first, begin) if at_max else (end, last)
                later = items_of(tr.get_range(*rest, limit=limit, reverse=at_max))
                if len(later) < limit:
                    unread.remove(chosen.shard)
            if later:
                following[chosen.shard] = later
        return found if len(found) == n else [*passed, *found][:n]

    return finish
