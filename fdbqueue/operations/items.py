"""Items within a transaction: append, pop, put back, find and count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from fdb.subspace_impl import Subspace

from fdbqueue.errors import ForeignKey
from fdbqueue.layout.batches import End, is_link
from fdbqueue.layout.items import Counters, Level, StoredItem, totals_range
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.priorities import Levels
from fdbqueue.layout.values import (
    MARKS,
    MINUS_ONE,
    NO_HEADER,
    ONE,
    PIECES,
    ZERO,
    Delayed,
    Header,
    decode_parked,
    encode_count,
    encode_expiry,
    encode_level,
    encode_metadata,
    encode_tallies,
    header_of,
    with_header,
)
from fdbqueue.operations.batches import clear_waits, note_end
from fdbqueue.operations.groups.groups import Groups
from fdbqueue.operations.groups.queue_rate import QueueRate
from fdbqueue.operations.history import History
from fdbqueue.operations.options import StoredOptions
from fdbqueue.operations.payloads import write_payload
from fdbqueue.operations.timers import set_timer
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import (
    KeySelector,
    KeyValue,
    Options,
    Outcome,
    RangeResult,
    ReadTransaction,
    State,
    Transaction,
)

BATCH_BYTES = 1_000_000
"""Bytes of payloads that one shared transaction accepts: a tenth of FoundationDB's limit."""

ITEM_BYTES = 250
"""The bytes of a transaction that an item takes, in addition to its payload."""

Moved: TypeAlias = tuple[Level, bytes | None]
"""The new level of an item, and its new payload; `None` keeps the payload."""

_level_of, _key_of = attrgetter("level"), attrgetter("key")
_counter_of = attrgetter("counter", "counts_taken")

_CounterOf: TypeAlias = tuple[bytes | None, bool]
"""The counter of a level, and whether it also counts the items popped and claimed."""

Taken: TypeAlias = Literal["popped", "claimed"]
"""The ways in which a client takes ready items."""


def stored_at(
    tr: ReadTransaction, prefix: bytes, positions: Iterable[bytes]
) -> list[tuple[bytes, bytes]]:
    """Return those of some positions where something is stored behind a prefix, with the value."""
    # Start all reads before waiting for the first.
    reads = [(position, tr[prefix + position]) for position in positions]
    return [(position, read.value) for position, read in reads if read.value is not None]


class NewItem(NamedTuple):
    """An item to push.

    Attributes:
        level: Its level.
        payload: The encoded value, as the codec returned it.
        random: The unique last part of its key.
        due: When it becomes available, in milliseconds since 1970; `None` for now.
        header: The metadata to store before the payload.
        value: The value from the caller.
    """

    level: Level
    payload: bytes
    random: bytes
    due: int | None = None
    header: Header = NO_HEADER
    value: Any = None


class ReturnedItem(NamedTuple):
    """A claimed or dead item to return.

    Attributes:
        position: Its position.
        value: Its value.
        due: When it becomes available, in milliseconds since 1970; `None` for now.
    """

    position: bytes
    value: bytes
    due: int | None = None


class Tail:
    """The end of a level, where a transaction appends items.

    The constructor starts to read the last row of the level. It is a snapshot read, so that pushes
    never conflict; `random` makes their keys unique.

    Attributes:
        level: The level.
        next_count: The count for the next new item; `None` before the first one.
        added: The number of the items that were appended and not yet counted.
        needs_turn: Whether the group of the level has no turn yet; `None` if that is not known.
    """

    __slots__ = ("_last", "_read", "added", "level", "needs_turn", "next_count")

    def __init__(self, snapshot: ReadTransaction, level: Level) -> None:
        self.level = level
        self.next_count: int | None = None
        self.added = 0
        self.needs_turn: bool | None = None
        self._last: KeyValue | None = None
        last_row = snapshot.get_range(level.begin, level.end, limit=1, reverse=True)
        self._read: RangeResult | None = last_row

    def last(self) -> KeyValue | None:
        """Return the last row of the level as the transaction found it; `None` if it is empty."""
        if self._read is not None:
            read, self._read = self._read, None
            self._last = next(iter(read), None)
        return self._last

    def take_count(self, version: int) -> int:
        """Return the count for the next new item of the level, given the read version.

        It is the read version, or the count of the last item plus one if that is higher. Versions
        grow faster than clients can push. So the read version is higher than the counts of all
        earlier items of the level, including claimed and delayed ones that may return.
        """
        count = self.next_count
        if count is None:
            count, row = version, self.last()
            if row is not None:
                last = Layout.unpack_count(row.key, self.level.prefix)
                if last is None:
                    raise ForeignKey(row.key)
                count = max(version, last + 1)
        self.next_count = count + 1
        return count


class Items:
    """The items of a queue. Each method is part of a transaction.

    A new item becomes the last one of its level. A FIFO queue has one level; a priority queue has
    one level per priority.

    An item owns the pieces of a large payload and its unique key. `delete` keeps them, because a
    claimed or staged item still has them. `take` deletes them as well. `remove` is the operation
    that users call, and `clear` deletes all items.
    """

    ids_are_positions = True
    """True if the id of an item is its first position."""

    indexes_every_item = False
    """True if every item has index entries. Otherwise only items with a header may have some."""

    def __init__(self, layout: Layout, levels: Levels, options: Options) -> None:
        self.layout = layout
        self.levels = levels
        self.options = StoredOptions(layout, options)
        self.history = History(layout)
        self.waiters = Waiters(layout, layout.waiters)
        self.groups = Groups(layout, levels, self.options)
        self.rate = QueueRate(layout, self.options)

    # Totals and counters

    def tally(self, tr: Transaction, now: int, **changes: int) -> None:
        """Add to tallies of the queue, by their names in `TALLIES`."""
        self.history.note_change(tr, now)
        tr.add(self.layout.tallies, encode_tallies(**changes))

    def count_returned(self, tr: Transaction, now: int, n: int, **changes: int) -> None:
        """Count items that are not new, and wake clients; add to other tallies, too."""
        self.history.note_change(tr, now)
        tr.add(self.layout.total_in, encode_count(n))
        self.tally(tr, now, moved=n, **changes)
        self.waiters.wake(tr, n)

    def _count_taken(
        self, tr: Transaction, now: int, items: list[StoredItem], taken: Taken | None
    ) -> None:
        """Count items that the transaction takes out; with `None`, the caller counts the end."""
        if not items:
            return
        self.history.note_change(tr, now)
        numbers: dict[_CounterOf, int] = {}
        for of_level in map(_counter_of, map(_level_of, items)):
            numbers[of_level] = numbers.get(of_level, 0) + 1
        for (counter, counts_taken), n in numbers.items():
            if counter is not None and counts_taken:
                tr.add(counter, encode_level(-n, **{taken: n} if taken else {}))
                continue
            if taken is not None:
                self.tally(tr, now, **{taken: n})
            if counter is not None:
                tr.add(counter, encode_count(-n))
                tr.compare_and_clear(counter, ZERO)

    def begin_counters(
        self, tr: ReadTransaction, of: Callable[[Subspace], tuple[bytes, bytes]] = totals_range
    ) -> Callable[[], Counters]:
        """Start to read the counters in a range of the queue.

        Returns:
            A function that waits for the read and returns the counters.
        """
        subspace = self.layout.subspace
        rows = tr.get_range(*of(subspace), streaming_mode=WANT_ALL)
        return lambda: Counters(subspace, rows)

    def group_of(self, tr: ReadTransaction, item: StoredItem) -> str | None:
        """Return the group of an item; in a task queue, the agent of a task."""
        return item.level.group

    def level_at_tick(self, tr: ReadTransaction, priority: Any, tick: int) -> Level:
        """Return the level of an item that a schedule pushes with this priority at this tick."""
        return self.levels.level(priority)

    # Indexes, which depend on the kind of the queue

    def index_entries(
        self, tr: ReadTransaction, item: StoredItem
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return the index entries of a ready item, and the keys of its counters.

        The counter of its level is not among them.
        """
        expires = item.header.expires
        if expires is None:
            return {}, []
        layout = self.layout
        return {layout.timer_key(layout.expiries, expires, layout.position(item.key)): b""}, []

    def parked_index_entries(self, position: bytes) -> dict[bytes, bytes]:
        """Return the index entries of a delayed, claimed, dead or done item."""
        return {}

    def add_to_indexes(self, tr: Transaction, now: int, item: StoredItem) -> None:
        """Add a ready item to its indexes and counters."""
        entries, counters = self.index_entries(tr, item)
        for entry, value in entries.items():
            tr[entry] = value
        for counter in counters:
            tr.add(counter, ONE)
        if item.header.expires is not None:
            self.tally(tr, now, expiring=1)
        self._count_unknown(tr, now, item.header, 1)

    def remove_from_indexes(self, tr: Transaction, now: int, items: list[StoredItem]) -> None:
        """Remove items from their indexes and counters. Their payloads must still be stored."""
        for item in items:
            if not self.indexes_every_item and item.header is NO_HEADER:
                continue
            entries, counters = self.index_entries(tr, item)
            for entry in entries:
                tr.clear(entry)
            for counter in counters:
                tr.add(counter, MINUS_ONE)
                tr.compare_and_clear(counter, ZERO)
            if item.header.expires is not None:
                self.tally(tr, now, expiring=-1)
            self._count_unknown(tr, now, item.header, -1)

    def _count_unknown(self, tr: Transaction, now: int, header: Header, n: int) -> None:
        """Count a ready or delayed item if a worker has met it that does not know its job."""
        if header.unknown is not None:
            self.tally(tr, now, unknown=n)

    # Delayed, claimed and dead items

    def park(self, tr: Transaction, prefix: bytes, position: bytes, stored: bytes) -> None:
        """Store an item that is not ready; `stored` is its form in its state."""
        tr[prefix + position] = stored

    def unpark(self, tr: Transaction, prefix: bytes, position: bytes) -> None:
        """Delete an item stored by `park`."""
        tr.clear(prefix + position)

    def delay(self, tr: Transaction, now: int, position: bytes, due: int, value: bytes) -> None:
        """Store an item that becomes available when it is due, in milliseconds since 1970."""
        layout, header = self.layout, header_of(value)[0]
        self.park(tr, layout.delayed, position, encode_metadata(Delayed(due), value))
        tr[layout.timer_key(layout.dues, due, position)] = encode_expiry(header.expires)
        tr[layout.scheduled] = b""
        self.groups.note_delayed(tr, position)
        self._count_unknown(tr, now, header, 1)

    def undelay(self, tr: Transaction, now: int, delayed: LocatedItem) -> None:
        """Delete an item stored by `delay`."""
        layout, position = self.layout, self.layout.position(delayed.key)
        tr.clear(layout.timer_key(layout.dues, delayed.due, position))
        self.end_delay(tr, now, position, delayed.item.header)

    def end_delay(self, tr: Transaction, now: int, position: bytes, header: Header) -> None:
        """Delete an item stored by `delay`, but not its timer."""
        self.unpark(tr, self.layout.delayed, position)
        self.groups.note_available(tr, now, position)
        self._count_unknown(tr, now, header, -1)

    @staticmethod
    def clear_timers(tr: Transaction, timers: list[KeyValue]) -> None:
        """Clear timers that are next to each other.

        One range, because keys cleared one by one would slow down the next reader, which has to
        skip each of them. A timer that another client adds between them conflicts.
        """
        if len(timers) == 1:
            tr.clear(timers[0].key)
        elif timers:
            begin, end = timers[0].key, timers[-1].key + b"\x00"
            tr.add_read_conflict_range(begin, end)
            tr.clear_range(begin, end)

    def requeue(self, tr: Transaction, now: int, items: list[ReturnedItem], **changes: int) -> None:
        """Return claimed or dead items to their positions, now or when due.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            items: The items.
            changes: The changes of the tallies that say where the items come from.
        """
        delayed = sum(item.due is not None for item in items)
        if items:
            self.count_returned(tr, now, len(items), delayed=delayed, **changes)
        elif changes:
            self.tally(tr, now, **changes)
        for position, value, due in with_unique_keys(tr, self.layout, items):
            if due is None:
                self.insert(tr, now, self.layout.items + position, value)
            else:
                self.delay(tr, now, position, due, value)

    # Finding

    def find(self, tr: ReadTransaction, reference: bytes) -> LocatedItem | None:
        """Return the item with this reference in any state; `None` if it ended."""
        return self.at(tr, reference)

    def at(self, tr: ReadTransaction, position: bytes) -> LocatedItem | None:
        """Return the item that has, or first had, this position; `None` if it ended.

        The transaction conflicts with every change of the item.

        Cost: one read if the item is ready, otherwise five more in parallel.

        >>> import fdbqueue
        >>> from fdbqueue.layout.priorities import Priorities
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> item = jobs.push(db, "send", delay=60)
        >>> layout = Layout(jobs.subspace)
        >>> items = Items(layout, Priorities(layout, int), jobs.options(db))
        >>> items.at(db.create_transaction(), layout.position(item.key)).state
        'delayed'
        """
        layout = self.layout
        key = layout.items + position
        if (value := tr[key].value) is not None:
            return self.located("ready", key, value)
        states: tuple[State, ...] = ("delayed", "claimed", "dead", "done")
        parked = [tr[layout.prefix_of[state] + position] for state in states]
        moved = tr[layout.moved + position]
        for state, stored in zip(states, parked):
            if stored.value is not None:
                return self.located(state, key, stored.value)
        position_now = moved.value
        # An item may have come back to its first position.
        return None if position_now in (None, position) else self.at(tr, position_now)

    def located(self, state: State, key: bytes, stored: bytes) -> LocatedItem:
        """Return the item that is stored in a state; `key` is the one that it has while ready."""
        if state == "ready":
            item = self.levels.item(key, stored)
            return LocatedItem(state, item, item.header.attempts)
        metadata, value = decode_parked(state, stored)
        item = self.levels.item(key, value)
        fields: dict[str, Any] = {"attempts": item.header.attempts, **metadata}
        return LocatedItem(state, item, **fields)

    def at_positions(self, tr: ReadTransaction, positions: Iterable[bytes]) -> list[StoredItem]:
        """Return the ready items at some positions."""
        items = self.layout.items
        stored = stored_at(tr, items, positions)
        return [self.levels.item(items + position, value) for position, value in stored]

    def keys_of_end(self, reference: bytes, position: bytes) -> list[bytes]:
        """Return the keys to watch until an item becomes done or dead, or is moved."""
        layout = self.layout
        ends = [layout.prefix_of[state] + position for state in ("dead", "done")]
        return [*ends, layout.moved + reference]

    def first(self, tr: ReadTransaction, n: int, at_max: bool = False) -> list[StoredItem]:
        """Return up to `n` first items of the lowest priorities; with `at_max`, of the highest.

        Either way, the oldest item of a priority is its first. The range that this reads is what a
        pop conflicts with, as `PriorityQueue.pop_min` describes.
        """
        begin, end = self.layout.all_items
        if not at_max:
            return self.begin_read(tr, begin, end, n)()
        items: list[StoredItem] = []
        while len(items) < n:
            last = list(tr.get_range(begin, end, limit=1, reverse=True))
            if not last:
                break
            whole = self.layout.range_of(self.levels.level_of(last[0].key).of_priority)
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
        """Start to read up to `n` items that clients may take; return a function that waits.

        Args:
            tr: A transaction, or its snapshot.
            begin: The first key that a priority may have.
            end: The key behind the last priority.
            n: The most items.
            start: Where to start within that range, `skipped` items behind its begin.
            skipped: In a priority with groups, how many of these to skip.
            before: The items of other priorities that clients take before these.
        """
        if n == 0:  # which means no limit in FoundationDB
            return list
        level_of = self.levels.level_of
        rows = tr.get_range(start or begin, end, limit=n, streaming_mode=WANT_ALL)
        # The items of groups come before the others of their priority: do not skip them unseen.
        heads = tr.get_range(begin, end, limit=1) if start else ()

        def finish() -> list[StoredItem]:
            found: list[StoredItem] = []
            for row in rows:
                if row.key >= end:
                    break  # a selector skips any keys, also those at the end
                found.append(StoredItem(row.key, row.value, level_of(row.key)))
                if found[-1].level.group is not None:
                    known = [] if start else found
                    return self.groups.in_turns(tr, known, begin, end, n, skipped, before)
            if found and start and self._has_groups(tr, found[0].level, heads):
                return self.groups.in_turns(tr, [], begin, end, n, skipped)
            return found

        return finish

    def _has_groups(self, tr: ReadTransaction, level: Level, heads: Iterable[KeyValue]) -> bool:
        """Return whether the priority of a level has items of groups, given the first item."""
        first = [row for row in heads if row.key.startswith(level.of_priority)]
        if not first:
            first = [*tr.get_range(*self.layout.range_of(level.of_priority), limit=1)]
        return any(self.levels.level_of(row.key).group is not None for row in first)

    def begin_look(self, tr: ReadTransaction, key: bytes, header: Header) -> list[Any]:
        """Start to read whether the item that was popped from this key exists, in any state."""
        layout, position = self.layout, self.layout.position(key)
        reads = [tr[prefix + position] for prefix in layout.prefix_of.values()]
        return [*reads, tr[layout.moved + (header.origin or position)]]

    # Adding

    def append(
        self, tr: Transaction, now: int, items: Iterable[NewItem], tails: dict[bytes, Tail]
    ) -> list[bytes]:
        """Append items to their levels; return their keys.

        Items that are due later are stored as delayed items.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            items: The items.
            tails: The tails of their levels, by prefix.
        """
        layout = self.layout
        keys: list[bytes] = []
        delayed = 0
        version = tr.get_read_version().wait()
        for level, payload, random, due, header, _ in items:
            count = (tail := tails[level.prefix]).take_count(version)
            key = layout.item_key(level.prefix, count, random)
            value = write_payload(tr, layout, random, payload, header)
            if header is not NO_HEADER:
                self.index_header(tr, layout.position(key), header)
            if due is None:
                tr[key] = value
                if self.indexes_every_item or header is not NO_HEADER:
                    self.add_to_indexes(tr, now, StoredItem(key, value, level))
                tail.added += 1
            else:
                self.delay(tr, now, layout.position(key), due, value)
                delayed += 1
            keys.append(key)
        if keys:
            self.history.note_change(tr, now)
            tr.add(layout.total_in, encode_count(len(keys)))
        if delayed:
            self.tally(tr, now, delayed=delayed)
        numbers: dict[_CounterOf, int] = {}
        for tail in tails.values():
            if n := tail.added:
                level = tail.level
                numbers[_counter_of(level)] = numbers.get(_counter_of(level), 0) + n
                if level.group is not None:
                    self.groups.note_stored(tr, level, n, tail.needs_turn)
            tail.added, tail.needs_turn = 0, None
        for counter, n in numbers.items():
            _add(tr, counter, n)
        return keys

    def index_header(self, tr: Transaction, position: bytes, header: Header) -> None:
        """Store what finds an item by its header: its unique key, and where it was moved to."""
        if header.expires is not None:
            tr[self.layout.scheduled] = b""
        if is_link(header.batch):
            tr[self.layout.linked] = b""
        if header.unique is not None:
            tr[self.layout.unique_key(header.unique)] = position
        if header.origin is not None:
            tr[self.layout.moved + header.origin] = position

    def insert(self, tr: Transaction, now: int, key: bytes, value: bytes) -> None:
        """Store a ready item and count it in its level, but not in the totals."""
        item = self.levels.item(key, value)
        tr[key] = value
        self.add_to_indexes(tr, now, item)
        _add(tr, _counter_of(item.level), 1)
        if item.level.group is not None:
            self.groups.note_stored(tr, item.level, 1)

    def put_back(
        self, tr: Transaction, now: int, popped: list[tuple[bytes, bytes, Header]]
    ) -> None:
        """Return popped items, as key, payload and header, unless they already exist."""
        layout = self.layout
        items = {key: (payload, header) for key, payload, header in popped}
        # Start all reads before waiting for the first.
        pending = [self.begin_look(tr, key, header) for key, (_, header) in items.items()]
        n = 0
        for (key, (payload, header)), reads in zip(items.items(), pending):
            if not any(read.present() for read in reads):
                random = layout.unpack_item_key(key)[-1]
                if header.unique is not None and tr[layout.unique_key(header.unique)].present():
                    header = header._replace(unique=None)  # another item has the key now
                header = header.anew()
                self.index_header(tr, layout.position(key), header)
                self.insert(tr, now, key, write_payload(tr, layout, random, payload, header))
                n += 1
        if n:
            self.count_returned(tr, now, n, put_back=n)

    # Removing

    def delete(
        self,
        tr: Transaction,
        now: int,
        items: list[StoredItem],
        taken: Taken | None,
        are_first: bool = False,
    ) -> None:
        """Delete ready items that have a read conflict key already; keep what they own.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            items: The items.
            taken: What to count them as; `None` if the caller counts them.
            are_first: Whether they are the first of their levels, as read by `first`, whose read
                conflicts with the range. Then this clears one range per level: keys cleared one by
                one would slow down the next reader, which has to skip each of them.
        """
        taking = self.groups.begin_taking(tr, items, taken == "claimed")
        self.remove_from_indexes(tr, now, items)
        for level, in_level in groupby(items, _level_of):
            keys = [*map(_key_of, in_level)]
            if are_first and len(keys) > 1:
                tr.clear_range(level.begin, keys[-1] + b"\x00")
                continue
            for key in keys:
                tr.clear(key)
        self._count_taken(tr, now, items, taken)
        if taking is not None:
            self.groups.note_gone(tr, now, items, taking, taken == "claimed")
        if taken == "popped":
            self.rate.note_popped(tr, now, len(items))
        if taken is not None:
            self.history.note_taken(tr, now, items)

    def take(self, tr: Transaction, now: int, item: StoredItem, end: End | None) -> None:
        """Add a read conflict key for a ready item; delete it and what it owns.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            item: The item.
            end: How it ends; `None` if it does not, because it moves.
        """
        tr.add_read_conflict_key(item.key)
        self.delete(tr, now, [item], "popped" if end and end.outcome == "popped" else None)
        self.end(tr, now, item, end)

    def end(self, tr: Transaction, now: int, item: StoredItem, end: End | None) -> None:
        """Delete what a ready item owned that was deleted, and note how it ended."""
        if item.value.startswith(MARKS):
            position = self.layout.position(item.key)
            clear_owned(tr, self.layout, position, item.value)
            if end is not None:
                note_end(tr, self.layout, now, position, item.value, end)

    def clear(self, tr: Transaction, now: int) -> None:
        """Delete all items, their claims, dead letters and counters, and the import progress."""
        layout = self.layout
        is_paused = self.options.is_paused(tr)
        for prefix in (*layout.of_items, layout.totals, layout.imports):
            tr.clear_range(*layout.range_of(prefix))
        self.groups.settling.begin_again(tr, now)
        self.rate.begin_again(tr, now)
        self.history.begin_again(tr, now)
        if is_paused:
            self.tally(tr, now, paused=1)


def _add(tr: Transaction, counter_of: _CounterOf, n: int) -> None:
    """Add to the counter of a level."""
    counter, counts_taken = counter_of
    if counter is not None:
        tr.add(counter, encode_level(n) if counts_taken else encode_count(n))


# What an item has besides its row


def clear_owned(tr: Transaction, layout: Layout, position: bytes, value: bytes) -> None:
    """Delete what an item that ended owns besides its row.

    That is its pieces, its unique key, its failed attempts, and the way to it by its id.
    """
    if value.startswith(MARKS):
        free_unique(tr, layout, value)
        clear_kept(tr, layout, position, value)


def clear_kept(tr: Transaction, layout: Layout, position: bytes, value: bytes) -> None:
    """Delete what a done or dead item still owns: all but its unique key."""
    if not value.startswith(MARKS):
        return
    header, content = header_of(value)
    if content.startswith(PIECES):
        tr.clear_range(*layout.range_of(layout.pieces_prefix(content)))
    if header.failed_attempts:
        tr.clear_range(*layout.attempts_range(position))
    if header.origin is not None:
        tr.clear(layout.moved + header.origin)
    if header.steps:
        tr.clear_range(*layout.range_of(layout.owned_prefix(layout.steps, position)))
    clear_waits(tr, layout, position, value)


def free_unique(tr: Transaction, layout: Layout, value: bytes) -> None:
    """Release the unique key that an item holds, if it holds one, for another item.

    If the next tick of its schedule waits for this, it is due now.
    """
    header = header_of(value)[0]
    if header.unique is not None:
        tr.clear(layout.unique_key(header.unique))
    if header.schedule is not None and header.blocks:
        set_timer(tr, layout, 0, layout.schedule_reference(header.schedule))
        Waiters(layout, layout.waiters).wake(tr, 1)  # a client may sleep until a later time


def with_unique_keys(
    tr: Transaction, layout: Layout, items: list[ReturnedItem]
) -> Iterator[ReturnedItem]:
    """Let items that return hold the unique keys again that their claims have freed.

    An item whose key another one holds meanwhile waits without it.
    """
    headers = [header_of(item.value) for item in items]
    freed = [None if header.unique else header.held_while_waiting for header, _ in headers]
    # Start all reads before waiting for the first.
    reads = {key: tr[layout.unique_key(key)] for key in freed if key is not None}
    for item, (header, content), key in zip(items, headers, freed):
        read = reads.pop(key or "", None)  # the first item of a key gets it
        if read is None or read.present():
            yield item
        else:
            tr[layout.unique_key(key or "")] = item.position
            yield item._replace(value=with_header(header._replace(unique=key), content))


class LocatedItem(NamedTuple):
    """An item that the transaction read, in any state.

    Attributes:
        state: The state.
        item: The item, with the key that it has while it is ready.
        attempts: How often it was claimed; how often that failed, if it is ready or delayed.
        due: When it becomes available, if it is delayed.
        token: The identity of its claim; empty if it is not claimed, but staged for a pop.
        lease_end: The version at which the lease of its claim ends.
        died_at: When it became a dead letter.
        error: Why it became one, if that is known.
        finished_at: When it was done.
        outcome: How it ended, if it is done.
        started_at: When the client that ended it had claimed it, if that is known.
        client: The name of that client.
        log: The lines that it has logged.
    """

    state: State
    item: StoredItem
    attempts: int
    due: int = 0
    token: bytes = b""
    lease_end: int = 0
    died_at: int = 0
    error: str | None = None
    finished_at: int = 0
    outcome: Outcome = "done"
    started_at: int | None = None
    client: str = ""
    log: str = ""

    @property
    def key(self) -> bytes:
        """The key that it has while it is ready."""
        return self.item.key

    def timer_over(self, tr: ReadTransaction, layout: Layout, now: int) -> bytes | None:
        """Return the key of its timer if that is over; `None` otherwise.

        A lease that is over by its version may have to be renewed, because of the clock.
        """
        position, expires = layout.position(self.key), self.item.header.expires
        if self.state == "claimed" and self.lease_end <= tr.get_read_version().wait():
            return layout.timer_key(layout.leases, self.lease_end, position)
        if self.state == "delayed" and self.due <= now:
            return layout.timer_key(layout.dues, self.due, position)
        if self.state == "ready" and expires is not None and expires <= now:
            return layout.timer_key(layout.expiries, expires, position)
        return None
