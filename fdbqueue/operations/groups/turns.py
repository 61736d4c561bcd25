"""The turns of groups, as one transaction finds them."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from fdbqueue.layout.items import (
    GroupSettings,
    Level,
    StoredItem,
    decode_group_settings,
    encode_group_settings,
)
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.operations.parallel import read_all
from fdbqueue.types import KeyValue, RangeResult, ReadTransaction, Value

NO_SETTINGS = encode_group_settings(GroupSettings())
"""The stored settings of a group that has none of its own."""

_FIRST_ROWS = 2  # of the items without a group: the next one, and whether another follows


class Turn:
    """The next items of a group in one priority, which its turn lets clients find.

    Attributes:
        level: The level of the items.
        key: The key that every change of the turn changes.
        own: The stored settings of the group; nothing in a turn of an earlier build.
        settings: Those that hold for it.
        claimed: The number of its claimed items, if that is limited.
        started: The number of its starts that are not forgotten, if it has a rate.
        passes: Those of the items that were found, and of the one behind them.
        is_limited: Whether a limit of the group allows no more than the items that were found.
        following: The row of the item behind those to take, once conflicts are known.
        stale: The turns that were met in vain on the way to this one.
        is_idle: Whether the items without a group are known to have been gone, if it is theirs.
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
        self.claimed = self.started = 0
        self.following: KeyValue | None = None
        self.stale: list[Turn] = []
        self.is_idle = self.is_limited = False
        self._reads = reads
        self._rows: list[KeyValue] = []
        self._is_complete = False
        self._begin_read(level.begin, n)

    def _begin_read(self, begin: bytes, n: int) -> None:
        self._wanted = n
        self._pending: RangeResult = self._reads.get_range(
            begin, self.level.end, limit=n, streaming_mode=WANT_ALL
        )

    def row(self, index: int) -> KeyValue | None:
        """Return the row of one of the items, counted from 0; `None` if there are not so many."""
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


Taking: TypeAlias = Counter[Turn]
"""How many items a transaction takes in each turn."""


def read_rooms(
    layout: Layout, reads: ReadTransaction, turns: list[Turn], defaults: RangeResult
) -> dict[Turn, int]:
    """Read the settings of groups; return how many more items those with a limit may have.

    Args:
        layout: The layout of the queue.
        reads: The snapshot of a transaction.
        turns: The turns of the groups.
        defaults: The settings of all groups, and those of the items without a group.
    """

    def key(index: bytes, turn: Turn) -> bytes:
        return layout.group_key(index, turn.level.group)

    stored = {row.key: row.value for row in defaults}
    default = decode_group_settings(stored.get(layout.group_key(layout.group_settings, None)))
    of_others = stored.get(layout.group_key(layout.group_settings, ""), b"")
    earlier = [turn for turn in turns if not turn.own and turn.level.group]
    unknown = read_all(reads, [key(layout.group_settings, turn) for turn in earlier])
    for turn, value in zip(earlier, unknown):
        turn.own = value or NO_SETTINGS
    limits: list[tuple[Turn, Value | None, Value | None]] = []
    for turn in turns:
        own = turn.own if turn.level.group else of_others
        settings = turn.settings = default
        if own and own != NO_SETTINGS:
            settings = turn.settings = decode_group_settings(own).over(default)
        if settings.concurrency is None and settings.rate is None:
            continue
        if turn.level.group is not None:
            slot = None if settings.concurrency is None else reads[key(layout.group_slots, turn)]
            starts = None if settings.rate is None else reads[key(layout.start_counts, turn)]
            limits.append((turn, slot, starts))
    rooms: dict[Turn, int] = {}
    for turn, slot, starts in limits:
        turn.claimed = 0 if slot is None else decode_count(slot.value)
        concurrency, rate = turn.settings.concurrency, turn.settings.rate
        room = [] if concurrency is None else [concurrency - turn.claimed]
        if rate is not None and starts is not None:
            turn.started = decode_count(starts.value)
            room.append(rate[0] - turn.started)
        rooms[turn] = min(room)
    return rooms
