"""Items: append, pop, put back, find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from fdb.subspace_impl import Subspace

from fdbqueue.errors import ForeignKey
from fdbqueue.layout.batches import End
from fdbqueue.layout.counters import Counters, totals_range
from fdbqueue.layout.items import ItemRow, Level, StoredItem
from fdbqueue.layout.keys import WANT_ALL, Layout, OfItems
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.values import NO_HEADER, Header, encode_tallies
from fdbqueue.operations.limits.rates import QueueRate
from fdbqueue.operations.limits.turns import Turns
from fdbqueue.operations.maintainers.batches import note_ends
from fdbqueue.operations.maintainers.groups import Groups
from fdbqueue.operations.maintainers.history import History
from fdbqueue.operations.maintainers.owned import OwnedRows
from fdbqueue.operations.maintainers.unique_keys import UniqueKeys
from fdbqueue.operations.options import StoredOptions
from fdbqueue.operations.payloads import write_payload
from fdbqueue.operations.shards import Shards, begin_first
from fdbqueue.operations.transitions import Change, Follow, Transitions
from fdbqueue.operations.waking import wake
from fdbqueue.types import (
    KeySelector,
    Options,
    ReadTransaction,
    State,
    Transaction,
)

BATCH_BYTES = 1_000_000
"""Maximum payload of a shared transaction: a tenth of FoundationDB's limit."""

ITEM_BYTES = 250
"""The bytes of an item in a transaction, besides its payload."""

_group_of = attrgetter("level.group")

POPPED, EXPIRED = End("popped"), End("expired")


class NewItem(NamedTuple):
    """An item to push.

    Attributes:
        random: The last part of its key.
        at_most: The milliseconds for which pushes with its unique key may replace and postpone a
            waiting item; `None` if they leave it as it is.
    """

    level: Level
    payload: bytes
    random: bytes
    due: int | None = None
    header: Header = NO_HEADER
    value: Any = None
    at_most: float | None = None


class Tail:
    """The end of a level, found by a snapshot read: pushes never conflict."""

    __slots__ = ("_read", "level", "next_count")

    def __init__(self, snapshot: ReadTransaction, level: Level) -> None:
        self.level = level
        self.next_count: int | None = None
        self._read = snapshot.get_range(level.begin, level.end, limit=1, reverse=True)

    def take_count(self, version: int) -> int:
        """Return the next item's count: the read version, or the last count plus one.

        Versions grow faster than clients can push.
        """
        count = self.next_count
        if count is None:
            count = version
            for row in self._read:
                last = Layout.unpack_count(row.key, self.level.prefix)
                if last is None:
                    raise ForeignKey(row.key)
                count = max(version, last + 1)
        self.next_count = count + 1
        return count


class Items:
    """The items of a queue. All changes go through `transitions`."""

    def __init__(self, layout: Layout, levels: Levels, options: Options) -> None:
        self.layout = layout
        self.levels = levels
        self.options = StoredOptions(layout, options)
        self.history = History(layout)
        self.turns = Turns(layout, levels, self.options)
        self.groups = Groups(layout, levels, self.options)
        self.rate = QueueRate(layout, self.options)
        self.shards = Shards(self)
        self.owned = OwnedRows(layout)
        self.unique_keys = UniqueKeys(layout)
        followers: list[Follow] = [
            self.unique_keys.follow,
            self.owned.follow,
            self.shards.follow,
            partial(note_ends, layout),
        ]
        self.transitions = Transitions(layout, self.history.begin, self.groups.begin, followers)

    # Totals and counters

    def tally(self, tr: Transaction, now: int, **changes: int) -> None:
        """Add to tallies of the queue."""
        self.history.note_change(tr, now)
        tr.add(self.layout.tallies, encode_tallies(**changes))

    def begin_counters(
        self, tr: ReadTransaction, of: Callable[[Subspace], tuple[bytes, bytes]] = totals_range
    ) -> Callable[[], Counters]:
        """Start to read the queue's counters."""
        subspace = self.layout.subspace
        rows = tr.get_range(*of(subspace), streaming_mode=WANT_ALL)
        return lambda: Counters(subspace, rows)

    # Finding

    def at(self, tr: ReadTransaction, position: bytes) -> ItemRow | None:
        """Return the item that has, or first had, this position; `None` if it ended.

        Conflicts with every change of it. Cost: one read if it is ready, otherwise six.
        """
        layout = self.layout
        key = layout.items + position
        if (value := tr[key].value) is not None:
            return self.levels.row("ready", key, value)
        states: list[State] = [state for state in layout.prefix_of if state != "ready"]
        parked = [tr[layout.prefix_of[state] + position] for state in states]
        moved = tr[layout.moved + position]
        for state, stored in zip(states, parked):
            if stored.value is not None:
                return self.levels.row(state, key, stored.value)
        position_now = moved.value
        # An item may have come back to its first position.
        return None if position_now in (None, position) else self.at(tr, position_now)

    def listed(
        self,
        tr: ReadTransaction,
        begin: bytes,
        end: bytes,
        limit: int,
        reverse: bool,
        state: State,
    ) -> Iterator[ItemRow]:
        """Yield the items in a state, except staged ones, reading as needed.

        Keys are given as for ready items; `limit` 0 means all.
        """
        layout = self.layout
        prefix, position = layout.prefix_of[state], layout.position
        first, last = prefix + position(begin), prefix + position(end)
        return (
            self.levels.row(state, layout.items + row.key[len(prefix) :], row.value)
            for row in tr.get_range(first, last, limit=limit, reverse=reverse)
        )

    def first(self, tr: ReadTransaction, n: int, at_max: bool = False) -> list[StoredItem]:
        """Return up to `n` items of the lowest priorities, or the highest with `at_max`.

        The oldest of a priority comes first. A pop conflicts on the range that this reads.
        """
        if self.options.shards != 1 and self.options.known_shards(tr) > 1:
            return [*begin_first(self, tr, self.shards.choose, at_max)(n)]
        begin, end = self.layout.all_items
        if not at_max:
            return self.begin_read(tr, begin, end, n)()
        items: list[StoredItem] = []
        while len(items) < n:
            last = list(tr.get_range(begin, end, limit=1, reverse=True))
            if not last:
                break
            whole = self.layout.range_of_priority(self.levels.level_of(last[0].key))
            items += self.begin_read(tr, *whole, n - len(items), before=items)()
            end = whole[0]
        return items

    def begin_read(
        self,
        tr: ReadTransaction,
        begin: bytes,
        end: bytes,
        n: int,
        start: KeySelector | None = None,
        skipped: int = 0,
        before: Sequence[StoredItem] = (),
    ) -> Callable[[], list[StoredItem]]:
        """Start to read up to `n` items that clients may take, from `begin` to `end`.

        A `start` is `skipped` items, or groups of a priority, behind `begin`; then read the options
        before waiting. Clients take the items `before` first.
        """
        if n == 0:  # which means no limit in FoundationDB
            return list
        level_of = self.levels.level_of
        rows = tr.get_range(start or begin, end, limit=n, streaming_mode=WANT_ALL)

        def finish() -> list[StoredItem]:
            found: list[StoredItem] = []
            for row in rows:
                if row.key < end:  # a selector skips any keys, also those at the end
                    found.append(StoredItem(row.key, row.value, level_of(row.key)))
            # The items of groups come before the others of their priority: do not skip them unseen.
            has_groups = any(map(_group_of, found))
            if found and start and self.options.has_groups:
                has_groups = has_groups or self.turns.come_first(tr, begin, found[0].level)
            if has_groups:
                known = [] if start else found
                return self.turns.in_turns(tr, known, begin, end, n, skipped, before)
            return found

        return finish

    def _begin_look(self, tr: ReadTransaction, key: bytes, header: Header) -> list[Any]:
        """Start to read whether a popped item exists, in any state."""
        layout, position = self.layout, self.layout.position(key)
        reads = [tr[prefix + position] for prefix in layout.prefix_of.values()]
        return [*reads, tr[layout.moved + (header.origin or position)]]

    # Adding

    def append(
        self, tr: Transaction, now: int, items: Iterable[NewItem], tails: dict[bytes, Tail]
    ) -> list[bytes]:
        """Append items to their levels' tails, or store them as delayed; return their keys."""
        layout = self.layout
        changes: list[Change] = []
        keys: list[bytes] = []
        version = tr.get_read_version().wait()
        for level, payload, random, due, header, *_ in items:
            key = layout.item_key(level.prefix, tails[level.prefix].take_count(version), random)
            value = write_payload(tr, layout, random, payload, header)
            item = StoredItem(key, value, level)
            row = ItemRow("ready", item, 0) if due is None else ItemRow("delayed", item, 0, due)
            changes.append(Change("pushed", None, row))
            keys.append(key)
        self.transitions.perform(tr, now, changes)
        return keys

    def append_one(self, tr: Transaction, now: int, new: NewItem) -> bytes:
        """Append an item, and wake a client for it; return its key."""
        options = self.options.read(tr)
        if options.has_had_shards:
            (new,) = self.shards.place(tr, options, [new])
        (key,) = self.append(tr, now, [new], {new.level.prefix: Tail(tr.snapshot, new.level)})
        wake(tr, self.layout.waiters, 1)
        return key

    def put_back(
        self, tr: Transaction, now: int, popped: list[tuple[bytes, bytes, Header]]
    ) -> None:
        """Return popped items to their positions, unless they already exist."""
        layout = self.layout
        items = {key: (payload, header) for key, payload, header in popped}
        pending = [self._begin_look(tr, key, header) for key, (_, header) in items.items()]
        changes: list[Change] = []
        for (key, (payload, header)), reads in zip(items.items(), pending):
            if any(read.present() for read in reads):
                continue
            random, header = layout.unpack_item_key(key)[-1], header.anew()
            item = self.levels.item(key, write_payload(tr, layout, random, payload, header))
            item = self.shards.present(tr, item)
            changes.append(Change("put back", None, ItemRow("ready", item, header.attempts)))
        self.transitions.perform(tr, now, self.unique_keys.hold_again(tr, changes))

    def pop(
        self,
        tr: Transaction,
        now: int,
        items: Sequence[StoredItem],
        staged: Sequence[StoredItem] = (),
    ) -> None:
        """Pop ready items that the transaction conflicts on.

        The items behind them are `staged` for other processes.
        """
        changes: list[Change] = []
        for item in items:
            changes.append(Change("popped", ItemRow("ready", item, 0), None, POPPED))
        for item in staged:
            row = ItemRow("ready", item, item.header.attempts)
            changes.append(Change("staged", row, row._replace(state="claimed")))
        self.transitions.perform(tr, now, changes, are_first=True)
        if self.options.has_any_rate:
            self.rate.note(tr, now, self.options.read(tr), len(changes))

    def clear(self, tr: Transaction, now: int) -> None:
        """Delete all items, claims, dead letters and counters."""
        layout = self.layout
        is_paused = self.options.read(tr).paused
        for prefix in (*layout.prefixes(OfItems), layout.totals):
            tr.clear_range(*layout.range_of(prefix))
        held = [*tr.get_range(*layout.range_of(layout.held_groups), limit=1)]
        if held or self.options.has_any_rate:
            self.groups.settle_all(tr, now)  # their timers are gone
        self.history.begin_again(tr, now)
        if is_paused:
            self.tally(tr, now, paused=1)
