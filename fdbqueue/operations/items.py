"""Items within a transaction: append, pop, find, count, move and delete."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

from fdb import fdboptions

from fdbqueue.errors import ForeignKey
from fdbqueue.layout import (
    MINUS_ONE,
    NO_HEADER,
    ONE,
    ZERO,
    Header,
    Layout,
    decode_count,
    decode_metadata,
    encode_count,
    encode_metadata,
    header_of,
)
from fdbqueue.layout.priorities import Levels
from fdbqueue.types import RangeResult, ReadTransaction, Transaction

__all__ = [
    "BATCH_BYTES",
    "WANT_ALL",
    "Entry",
    "Items",
    "LocatedItem",
    "PriorityItems",
    "State",
    "StoredItem",
    "find",
]

WANT_ALL = fdboptions.StreamingMode["want_all"][0]
"""The streaming mode for range reads that need all rows: they arrive in one reply."""

BATCH_BYTES = 1_000_000
"""Bytes of payloads that one shared transaction accepts: a tenth of FoundationDB's limit."""


class Entry(NamedTuple):
    """An item to push.

    Attributes:
        level: The prefix of its key.
        payload: The encoded value, as the codec returned it.
        random: The unique last part of its key.
        due: When it becomes available, in milliseconds since 1970; `None` for now.
        header: The metadata to store before the payload.
        value: The value from the caller.
        priority: The priority from the caller.
    """

    level: bytes
    payload: bytes
    random: bytes
    due: int | None = None
    header: Header = NO_HEADER
    value: Any = None
    priority: Any = None


class Items:
    """The items of a queue. Each method is part of a transaction.

    A new item becomes the last one of its level. A FIFO queue has one level; a priority queue has
    one level per priority.
    """

    def __init__(self, layout: Layout, levels: Levels) -> None:
        self._layout = layout
        self.level_of = levels.level_of

    # Totals and counters

    def count(self, tr: Transaction, level: bytes, change: int) -> None:
        """Add `change` to the counters of a level and of the whole queue."""
        self.count_level(tr, level, change)
        self.count_total(tr, change)

    def count_total(self, tr: Transaction, change: int) -> None:
        """Add `change` to the total of items added (positive) or removed (negative)."""
        key = self._layout.total_in if change > 0 else self._layout.total_out
        tr.add(key, ONE if change in (1, -1) else encode_count(abs(change)))

    def count_moved(self, tr: Transaction) -> None:
        """Count an item that was added and removed, but only moved."""
        tr.add(self._layout.total_moved, ONE)

    def count_level(self, tr: Transaction, level: bytes, change: int) -> None:
        """Add `change` to the counter of a level."""

    def counts(self, tr: ReadTransaction) -> dict[Any, int]:
        """Return the number of waiting items of each priority; omit priorities without items."""
        layout = self._layout
        rows = tr.get_range(*layout.range_of(layout.counts))
        counted = {layout.counted_priority(row.key): decode_count(row.value) for row in rows}
        return {priority: count for priority, count in counted.items() if count > 0}

    # Indexes and counters, which depend on the kind of the queue

    def level_counter(self, level: bytes) -> bytes | None:
        """Return the key of a level's counter; `None` if the level has no counter."""
        return None

    def index_entries(
        self, tr: ReadTransaction, key: bytes, stored: bytes
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return the index entries of a waiting item, and the keys of its counters."""
        expires = header_of(stored)[0].expires
        if expires is None:
            return {}, []
        layout = self._layout
        return {layout.timer_key(layout.expiries, expires, layout.position(key)): b""}, []

    def parked_index_entries(self, position: bytes) -> dict[bytes, bytes]:
        """Return the index entries of a delayed, claimed or dead item."""
        return {}

    def add_to_indexes(self, tr: Transaction, key: bytes, stored: bytes) -> None:
        """Add a waiting item to its indexes and counters."""
        entries, counters = self.index_entries(tr, key, stored)
        for entry, value in entries.items():
            tr[entry] = value
        for counter in counters:
            tr.add(counter, ONE)

    def remove_from_indexes(self, tr: Transaction, key: bytes, stored: bytes) -> None:
        """Remove an item from its indexes and counters. Its payload must still be stored."""
        entries, counters = self.index_entries(tr, key, stored)
        for entry in entries:
            del tr[entry]
        for counter in counters:
            tr.add(counter, MINUS_ONE)
            tr.compare_and_clear(counter, ZERO)

    # Delayed, claimed and dead items

    def park(
        self,
        tr: Transaction,
        prefix: bytes,
        position: bytes,
        metadata: tuple[Any, ...],
        value: bytes,
    ) -> None:
        """Store an item that is delayed, claimed or dead, with its metadata."""
        tr[prefix + position] = encode_metadata(metadata, value)
        for entry, entry_value in self.parked_index_entries(position).items():
            tr[entry] = entry_value

    def unpark(self, tr: Transaction, prefix: bytes, position: bytes) -> None:
        """Delete an item stored by `park`, and its index entries."""
        del tr[prefix + position]
        for entry in self.parked_index_entries(position):
            del tr[entry]

    def delay(self, tr: Transaction, position: bytes, due: int, value: bytes) -> None:
        """Store an item that becomes available when it is due, in milliseconds since 1970."""
        layout = self._layout
        self.park(tr, layout.delayed, position, (due,), value)
        tr[layout.timer_key(layout.dues, due, position)] = b""
        tr[layout.scheduled] = b""

    def end_delay(self, tr: Transaction, position: bytes, due: int) -> None:
        """Delete an item stored by `delay`."""
        self.unpark(tr, self._layout.delayed, position)
        del tr[self._layout.timer_key(self._layout.dues, due, position)]

    # Finding

    def find(self, tr: ReadTransaction, reference: bytes) -> LocatedItem | None:
        """Return the item with this reference in any state; `None` if it ended."""
        return find(tr, self._layout, reference)

    def waiting(self, tr: ReadTransaction, reference: bytes) -> StoredItem | None:
        """Return the item with this reference if it waits, otherwise `None`."""
        key = self._layout.items + reference
        value = tr[key].value
        return None if value is None else StoredItem(key, value)

    def begin_look(self, tr: ReadTransaction, key: bytes) -> list[Any]:
        """Start to read whether the item that was popped from this key exists again."""
        return [tr[key]]

    # Adding

    def last(self, tr: Transaction, level: bytes) -> Any:
        """Start to read the last row of a level, for `append`."""
        begin, end = self._layout.range_of(level)
        # A snapshot read, so that pushes never conflict; `random` makes their keys unique.
        return tr.snapshot.get_range(begin, end, limit=1, reverse=True)

    def append_all(
        self, tr: Transaction, entries: list[Entry], lasts: dict[bytes, Any]
    ) -> list[bytes]:
        """Append entries to their levels; return the keys of the new items."""
        if len(entries) == 1:
            return self.append(tr, entries[0].level, entries, lasts[entries[0].level])
        by_level: dict[bytes, list[int]] = {}
        for index, entry in enumerate(entries):
            by_level.setdefault(entry.level, []).append(index)
        keys = [b""] * len(entries)
        for level, indexes in by_level.items():
            new = self.append(tr, level, [entries[index] for index in indexes], lasts[level])
            for index, key in zip(indexes, new):
                keys[index] = key
        return keys

    @staticmethod
    def first_count(tr: Transaction) -> int:
        """Return the lowest count for a new item: the read version.

        Versions grow faster than clients can push. So the read version is higher than the counts of
        all earlier items of the level, including claimed and delayed ones that may return.
        """
        version: int = tr.get_read_version().wait()
        return version

    def append(
        self, tr: Transaction, level: bytes, entries: list[Entry], last_row: RangeResult
    ) -> list[bytes]:
        """Append entries to a level; return their keys.

        Entries that are due later are stored as delayed items.
        """
        layout = self._layout
        last = next(iter(last_row), None)
        count = self.first_count(tr)
        if last is not None:
            if not layout.is_item_key(last.key, level):
                raise ForeignKey(last.key)
            count = max(count, layout.count_in(last.key, level) + 1)
        keys: list[bytes] = []
        delayed = 0
        for _, payload, random, due, header, *_ in entries:
            key = layout.item_key(level, count, random)
            stored = layout.value_of(tr, random, payload, header)
            if header != NO_HEADER:
                self._index_header(tr, layout.position(key), header)
            if due is None:
                tr[key] = stored
                self.add_to_indexes(tr, key, stored)
            else:
                self.delay(tr, layout.position(key), due, stored)
                delayed += 1
            keys.append(key)
            count += 1
        self.count_total(tr, len(keys))
        if delayed < len(keys):
            self.count_level(tr, level, len(keys) - delayed)
        return keys

    def _index_header(self, tr: Transaction, position: bytes, header: Header) -> None:
        if header.expires is not None:
            tr[self._layout.scheduled] = b""
        if header.unique is not None:
            tr[self._layout.unique_key(header.unique)] = position

    def stage(self, tr: Transaction, request: bytes, pops: list[list[Any]]) -> None:
        """Store items as the result of a pop request; they do not count as removed yet."""
        self._layout.write_result(tr, request, pops)
        tr.add(self._layout.total_out, encode_count(-sum(map(len, pops))))

    def insert(self, tr: Transaction, key: bytes, stored: bytes) -> None:
        """Store a waiting item and count it in its level, but not in the totals."""
        tr[key] = stored
        self.add_to_indexes(tr, key, stored)
        self.count_level(tr, self.level_of(key), 1)

    def unstage(self, tr: Transaction, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Return items stored by `stage`, as (key, value), to their positions."""
        for key, stored in rows:
            self.insert(tr, key, stored)
            # The totals stay the same, but waiting pops watch the total of added items.
            self.count_total(tr, 1)
            self.count_total(tr, -1)
            self.count_moved(tr)

    def put_back(self, tr: Transaction, rows: list[tuple[bytes, bytes]]) -> None:
        """Return popped items, as (key, payload), to their positions, unless they already exist."""
        # Start all reads before waiting for the first.
        pending = [self.begin_look(tr, key) for key, _ in rows]
        for (key, payload), reads in zip(rows, pending):
            if not any(read.present() for read in reads):
                value = self._layout.value_of(tr, self._layout.unpack_key(key)[-1], payload)
                tr[key] = value
                self.add_to_indexes(tr, key, value)
                self.count(tr, self.level_of(key), 1)
                self.count_moved(tr)

    # Removing

    def first(self, tr: ReadTransaction, n: int, at_max: bool = False) -> list[Any]:
        """Return up to `n` first items, in the order of pops."""
        begin, end = self._layout.range_of(self._layout.items)
        if n == 0:
            return []
        return list(tr.get_range(begin, end, limit=n, streaming_mode=WANT_ALL))

    def delete_head(self, tr: Transaction, rows: list[Any]) -> None:
        """Delete the first items of their levels, as read by `first`; keep the pieces.

        This clears one range per level, and the read of `first` conflicts on the range. Keys
        cleared one by one would slow down the next reader, which has to skip each of them.
        """
        for row in rows:
            self.remove_from_indexes(tr, row.key, row.value)
        if len(rows) == 1:
            key = rows[0].key
            del tr[key]
            self.count(tr, self.level_of(key), -1)
            return
        for level, group in groupby(rows, lambda row: self.level_of(row.key)):
            keys = [row.key for row in group]
            tr.clear_range(self._layout.range_of(level)[0], keys[-1] + b"\x00")
            self.count(tr, level, -len(keys))

    def delete(self, tr: Transaction, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Delete waiting items, as (key, value), and conflict on them; keep the pieces."""
        for level, group in groupby(rows, lambda row: self.level_of(row[0])):
            in_level = list(group)
            for key, stored in in_level:
                tr.add_read_conflict_key(key)
                self.remove_from_indexes(tr, key, stored)
                del tr[key]
            self.count(tr, level, -len(in_level))

    def take_first(self, tr: Transaction, rows: list[Any]) -> None:
        """Delete the first items, as read by `first`, and everything stored about them."""
        self.delete_head(tr, rows)
        for row in rows:
            self._layout.end(tr, row.value)

    def take(self, tr: Transaction, key: bytes, stored: bytes) -> None:
        """Delete a waiting item that the transaction read, and everything stored about it."""
        self.delete(tr, [(key, stored)])
        self._layout.end(tr, stored)

    def remove(self, tr: Transaction, found: LocatedItem | None) -> bool:
        """Remove a waiting or delayed item; return false for any other state."""
        layout = self._layout
        if found is None or found.state not in ("waiting", "delayed"):
            return False
        if found.state == "waiting":
            self.take(tr, found.key, found.value)
        else:
            self.end_delay(tr, layout.position(found.key), found.metadata[0])
            self.count_total(tr, -1)
            layout.end(tr, found.value)
        tr.add(layout.total_removed, ONE)
        return True

    def move(
        self, tr: Transaction, key: bytes, stored: bytes, payload: bytes, level: bytes
    ) -> bytes:
        """Move a waiting item to the end of a level; return its new key."""
        self.take(tr, key, stored)
        # The item keeps its random part and its header.
        random = self._layout.unpack_key(key)[-1]
        entry = Entry(level, payload, random, header=header_of(stored)[0])
        (new,) = self.append(tr, level, [entry], self.last(tr, level))
        self.count_moved(tr)
        return new

    def clear(self, tr: Transaction) -> None:
        """Delete all items, their claims, dead letters and counters, and the import progress."""
        layout = self._layout
        for prefix in (*layout.of_items, layout.totals, layout.imports):
            tr.clear_range(*layout.range_of(prefix))


class PriorityItems(Items):
    """The items of a queue that has one level, with a counter, per priority."""

    def level_counter(self, level: bytes) -> bytes | None:
        """Return the key of a level's counter."""
        return self._layout.count_key(level)

    def count_level(self, tr: Transaction, level: bytes, change: int) -> None:
        """Add `change` to the counter of a level; delete a counter at zero."""
        key = self.level_counter(level)
        if key is None:
            return
        tr.add(key, ONE if change == 1 else MINUS_ONE if change == -1 else encode_count(change))
        if change < 0:
            tr.compare_and_clear(key, ZERO)

    def first(self, tr: ReadTransaction, n: int, at_max: bool = False) -> list[Any]:
        """Return up to `n` first items of the lowest priorities; with `at_max`, of the highest."""
        if not at_max:
            return super().first(tr, n)
        begin, end = self._layout.range_of(self._layout.items)
        rows: list[Any] = []
        while len(rows) < n:
            last = list(tr.get_range(begin, end, limit=1, reverse=True))
            if not last:
                break
            level = self.level_of(last[0].key)
            in_level = self._layout.range_of(level)
            limit = n - len(rows)
            rows += tr.get_range(*in_level, limit=limit, streaming_mode=WANT_ALL)
            end = in_level[0]
        return rows


State: TypeAlias = Literal["waiting", "delayed", "claimed", "dead"]
"""The state of an item that has not ended."""


class StoredItem(NamedTuple):
    """The key and the value of an item."""

    key: bytes
    value: bytes


class LocatedItem(NamedTuple):
    """An item that the transaction read, in any state.

    Attributes:
        state: The state.
        key: The key that the item has while it waits.
        value: The value.
        metadata: The metadata of a delayed, claimed or dead item.
    """

    state: State
    key: bytes
    value: bytes
    metadata: tuple[Any, ...] = ()


def find(tr: ReadTransaction, layout: Layout, position: bytes) -> LocatedItem | None:
    """Return the item with this position in any state; `None` if it ended.

    The transaction conflicts with every change of the item.

    Cost: one read if the item waits, otherwise three more in parallel.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> item = jobs.push(db, "send", delay=60)
    >>> layout = Layout(jobs.subspace)
    >>> find(db.create_transaction(), layout, layout.position(item.key)).state
    'delayed'
    """
    key = layout.items + position
    value = tr[key].value
    if value is not None:
        return LocatedItem("waiting", key, value)
    states: tuple[State, ...] = ("delayed", "claimed", "dead")
    parked = [tr[prefix + position] for prefix in layout.not_waiting]
    for state, stored in zip(states, parked):
        if stored.value is not None:
            metadata, value = decode_metadata(stored.value)
            return LocatedItem(state, key, value, metadata)
    return None
