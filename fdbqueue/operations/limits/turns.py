"""The turns of a priority's groups, and their next items.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, TypeAlias, cast

from fdbqueue.layout.items import (
    GroupSettings,
    Level,
    StoredItem,
    decode_group_settings,
    encode_group_settings,
)
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.types import KeyValue, RangeResult, ReadTransaction, Transaction, Value

if TYPE_CHECKING:
    from fdbqueue.layout.priorities import Levels
    from fdbqueue.operations.options import StoredOptions

NO_SETTINGS = encode_group_settings(GroupSettings())

IDLE = b"idle"
"""Follows the pass of the items without a group while there are none."""

_WEIGHED = 500  # groups
_FIRST_ROWS = 2  # of the items without a group: the next one, and whether another follows


class Turn:
    """The next items of a group in one priority.

    Attributes:
        key: The key that every change of the turn changes.
        passes: The passes of the found items, and of the next one.
        is_limited: Whether a limit allows no more.
        following: The row behind the items to take.
        stale: The turns met in vain on the way to this one.
        is_idle: Whether the items without a group are known to be gone.
    """

    def __init__(
        self,
        level: Level,
        key: bytes,
        pass_: int,
        own: bytes,
        reads: ReadTransaction,
        n: int = _FIRST_ROWS,
    ) -> None:
        self.level = level
        self.key = key
        self.own = own
        self.passes = [pass_]
        self.settings = GroupSettings()
        self.following: KeyValue | None = None
        self.stale: list[Turn] = []
        self.is_idle = self.is_limited = False
        self._reads = reads
        self._claimed: Value | None = None
        self._started: Value | None = None
        self._rows: list[KeyValue] = []
        self._is_complete = False
        self._begin_read(level.begin, n)

    def begin_limits(self, layout: Layout, settings: GroupSettings) -> None:
        """Start to read the group's claimed and started counts, if limited."""
        self.settings, group = settings, self.level.group
        if group is not None and settings.concurrency is not None:
            self._claimed = self._reads[layout.group_key(layout.group_slots, group)]
        if group is not None and settings.rate is not None:
            self._started = self._reads[layout.group_key(layout.start_counts, group)]

    @property
    def claimed_left(self) -> float:
        """How many more items its concurrency allows."""
        return _left(self.settings.concurrency, self._claimed)

    @property
    def started_left(self) -> float:
        """How many more items its rate allows before any start is forgotten."""
        return _left(self.settings.rate and self.settings.rate[0], self._started)

    @property
    def place(self) -> tuple[float, str]:
        """Its place in the order of turns."""
        return self.passes[-1], self.level.group or ""

    def may_go_on(self, taken: Counter[str | None]) -> bool:
        """Return whether it has one more item, after those `taken`."""
        number = len(self.passes) - 1
        room = min(self.claimed_left, self.started_left)
        self.is_limited = taken[self.level.group] + number >= room
        return not self.is_limited and self.row(number) is not None

    def _begin_read(self, begin: bytes, n: int) -> None:
        self._wanted = n
        self._pending: RangeResult = self._reads.get_range(
            begin, self.level.end, limit=n, streaming_mode=WANT_ALL
        )

    def row(self, index: int) -> KeyValue | None:
        """Return row `index`; `None` past the end."""
        while index >= len(self._rows) and not self._is_complete:
            if self._rows:
                self._begin_read(self._rows[-1].key + b"\x00", len(self._rows))
            rows = [*self._pending]
            self._rows += rows
            self._is_complete = len(rows) < self._wanted
        return self._rows[index] if index < len(self._rows) else None

    def find(self) -> StoredItem:
        """Return the next item, whose row must have been read."""
        row = self._rows[len(self.passes) - 1]
        item = StoredItem(row.key, row.value, self.level, self)
        self.passes.append(self.passes[-1] + self.settings.step(item.header.cost))
        return item


def _left(most: int | None, count: Value | None) -> float:
    return math.inf if most is None or count is None else most - decode_count(count.value)


def begin_settings(
    reads: ReadTransaction, layout: Layout, groups: Iterable[str]
) -> Callable[[], dict[str, GroupSettings]]:
    """Start to read the settings of some groups."""
    key, space = layout.group_key, layout.group_settings
    own = {group: reads[key(space, group)] for group in groups}
    for_all = reads[key(space, None)] if own else None

    def finish() -> dict[str, GroupSettings]:
        default = decode_group_settings(None if for_all is None else for_all.value)
        return {
            group: decode_group_settings(each.value).over(default) for group, each in own.items()
        }

    return finish


def read_settings(reads: ReadTransaction, layout: Layout, group: str) -> GroupSettings:
    """Return the settings of a group."""
    return begin_settings(reads, layout, [group])()[group]


def of_each_shard(others: GroupSettings, options: StoredOptions) -> GroupSettings:
    """Return the settings of the items without a group in one shard: the shards share a weight."""
    return others._replace(weight=(others.weight or 1) / (options.shards or 1))


Taking: TypeAlias = Counter[Turn]
"""How many items a transaction takes in each turn."""


class Turns:
    """The order in which clients take items of groups. `Groups` changes the turns."""

    def __init__(self, layout: Layout, levels: Levels, options: StoredOptions) -> None:
        self._layout = layout
        self._levels = levels
        self._options = options

    def in_turns(
        self,
        tr: ReadTransaction,
        found: list[StoredItem],
        begin: bytes,
        end: bytes,
        n: int,
        skipped: int,
        before: Sequence[StoredItem] = (),
    ) -> list[StoredItem]:
        """Return up to `n` items of a range of priorities, in the order of their turns.

        `found` are the first items by key, or none. The transaction takes the items `before` first.
        Skip `skipped` groups of the first priority with groups.
        """
        level_of = self._levels.level_of
        items: list[StoredItem] = []
        while len(items) < n and begin < end:
            if not found:
                rows = tr.get_range(begin, end, limit=n - len(items), streaming_mode=WANT_ALL)
                found = [StoredItem(row.key, row.value, level_of(row.key)) for row in rows]
            level: Level | None = None
            for item in found:
                if item.level.group is not None:
                    level = item.level
                    break
                items.append(item)
            if level is None:
                break
            # The items of groups come before the others of their priority.
            items += self.first(tr, level, n - len(items), [*before, *items], skipped)
            found, begin, skipped = [], self._layout.range_of_priority(level)[1], 0
        return items

    def come_first(self, tr: ReadTransaction, begin: bytes, level: Level) -> bool:
        """Return whether groups have turns from the key `begin` to the end of a priority."""
        layout = self._layout
        first = layout.turns + layout.position(begin)
        last = layout.range_of(layout.turns + level.rest)[1]
        return bool([*tr.get_range(first, last, limit=1)])

    def begin_weight(self, reads: ReadTransaction, level: Level) -> Callable[[], float]:
        """Start to read the weight of the groups with items of a level's priority and shard.

        It counts the first 500 groups: shards with more have about as many as each other.
        """
        layout, others = self._layout, self._levels.in_group(level, None)
        turns = reads.get_range(*layout.range_of(layout.turns + level.rest), limit=_WEIGHED)
        default, of_others = (
            reads[layout.group_key(layout.group_settings, group)] for group in (None, "")
        )
        without_group = reads.get_range(others.begin, others.end, limit=1)

        def finish() -> float:
            settings = decode_group_settings(default.value)
            own = [decode_group_settings(row.value).over(settings) for row in turns]
            weights = [each.weight or 1 for each in own]
            for _ in without_group:
                others_own = decode_group_settings(of_others.value).over(settings)
                weights.append(of_each_shard(others_own, self._options).weight or 1)
            return sum(weights) or 1.0

        return finish

    def first(
        self,
        tr: ReadTransaction,
        level: Level,
        n: int,
        before: list[StoredItem],
        skipped: int = 0,
    ) -> list[StoredItem]:
        """Return up to `n` (at least 1) next items of a priority, as `in_turns` does.

        Conflicts with every change of the turns up to theirs, unless `tr` is a snapshot.
        """
        taken = Counter(item.level.group for item in before)
        turns = self._all(tr, level, n, skipped)
        reached: tuple[float, str] = (-1, "")
        heap: list[tuple[float, str, Turn]] = []
        found: list[StoredItem] = []
        stale: list[Turn] = []
        while len(found) < n:
            while not heap or heap[0][:2] > reached:
                turn = next(turns, None)
                if turn is None:
                    reached = math.inf, ""
                    break
                turn.stale, may_go_on = stale, turn.may_go_on(taken)
                if may_go_on:
                    heappush(heap, (*turn.place, turn))
                elif not turn.is_idle:
                    stale.append(turn)
                if turn.level.group is not None:
                    reached = turn.place
                elif not may_go_on and _snapshot(tr) is not tr:  # a push of one conflicts
                    whole = turn.level.begin, turn.level.end
                    cast("Transaction", tr).add_read_conflict_range(*whole)
            if not heap:
                break
            turn = heap[0][2]
            found.append(turn.find())
            if turn.may_go_on(taken):
                heapreplace(heap, (*turn.place, turn))
            else:
                heappop(heap)
        return found

    def _all(self, tr: ReadTransaction, level: Level, n: int, skipped: int) -> Iterator[Turn]:
        layout, rest, reads = self._layout, level.rest, _snapshot(tr)
        key, limit = layout.group_key, n + skipped
        begin, end = layout.range_of(layout.turns + rest)
        read = tr.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)
        of_all, of_others = (key(layout.group_settings, group) for group in (None, ""))
        settings = reads.get_range(of_all, of_others + b"\x00", limit=2, streaming_mode=WANT_ALL)
        page = [self._turn_of_others(tr, level)]
        stored = {row.key: row.value for row in settings}
        default = decode_group_settings(stored.get(of_all))
        page[0].own = stored.get(of_others, NO_SETTINGS)
        while True:
            rows = [*read]
            # Of a group, its share of the items and the one behind them.
            n_rows = 2 + (n - 1) // (len(rows) or 1)
            for row in rows[skipped:] or rows:
                pass_, group = layout.unpack_turn_key(layout.turns, rest, row.key)
                of_group = self._levels.in_group(level, group)
                page.append(Turn(of_group, row.key, pass_, row.value, reads, n_rows))
            for turn in page:
                own = default
                if turn.own != NO_SETTINGS:
                    own = decode_group_settings(turn.own).over(default)
                if turn.level.group is None:
                    own = of_each_shard(own, self._options)
                turn.begin_limits(layout, own)
            yield from page
            if len(rows) < limit:
                return
            page, skipped = [], 0
            read = tr.get_range(rows[-1].key + b"\x00", end, limit=limit, streaming_mode=WANT_ALL)

    def _turn_of_others(self, tr: ReadTransaction, level: Level) -> Turn:
        layout, reads = self._layout, _snapshot(tr)
        key = layout.group_key(layout.group_passes, None, level.rest)
        stored, taken = reads[key], reads[layout.taken_passes + level.rest]
        turn = Turn(self._levels.in_group(level, None), key, 0, NO_SETTINGS, reads)
        value = stored.value or IDLE
        pass_ = decode_count(value.removesuffix(IDLE) or None)
        turn.is_idle = value.endswith(IDLE)
        turn.passes = [max(pass_, decode_count(taken.value)) if turn.is_idle else pass_]
        return turn


def _snapshot(tr: ReadTransaction) -> ReadTransaction:
    snapshot: ReadTransaction = getattr(tr, "snapshot", tr)
    return snapshot
