"""Views of a queue within a transaction: what is over or due is shown as the next sweep leaves it.

No process sweeps a queue by itself. So a lease may be over, a delay may have passed, or an item may
have expired, while its rows still say otherwise. A view reads these timers, which few items have at
a time, and shows every item in the state that it really has. It writes nothing.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.layout import (
    Counters,
    Layout,
    Lease,
    counters_range,
    decode_claim,
    decode_expiry,
    decode_lease,
    decode_metadata,
    decode_options,
    header_of,
    with_header,
)
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.tasks import RANK, decode_header
from fdbqueue.layout.values import Moment, utc_time
from fdbqueue.operations.items import WANT_ALL, Items, LocatedItem
from fdbqueue.operations.schedule import (
    LEASE_OVER,
    begin_results,
    live_requests,
)
from fdbqueue.types import Key, KeyValue, Options, QueueStats, ReadTransaction, State

__all__ = ["Overdue", "Views", "begin_size", "begin_stats"]

_MAX_LEVELS = 100  # of which the oldest item is looked for

FirstKey: TypeAlias = Callable[[ReadTransaction, bytes], Key]
"""A function that starts to read the first key from a key on, without its value."""

_T = TypeVar("_T")

_key_of = attrgetter("key")


@dataclass(slots=True)
class Overdue:
    """The items that the next sweep moves, by their positions.

    Attributes:
        returned: Claimed items that become ready, because their leases are over.
        died: Claimed items that become dead letters, because it was the last attempt.
        due: Delayed items that become ready.
        staged: Items staged for the pop of a dead process: they become ready.
        expired: Ready items that have expired.
        ended: Claimed items that have expired.
        lapsed: Delayed items that have expired.
    """

    returned: list[bytes] = field(default_factory=list[bytes])
    died: list[bytes] = field(default_factory=list[bytes])
    due: list[bytes] = field(default_factory=list[bytes])
    staged: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    expired: set[bytes] = field(default_factory=set[bytes])
    ended: list[bytes] = field(default_factory=list[bytes])
    lapsed: list[bytes] = field(default_factory=list[bytes])

    @property
    def positions(self) -> list[bytes]:
        """The positions of the items that become ready."""
        return [*self.returned, *self.due, *(position for position, _ in self.staged)]

    @property
    def ready(self) -> int:
        """How many more items are ready than the counters say."""
        return len(self.positions) - len(self.expired)


def begin_overdue(
    tr: ReadTransaction,
    layout: Layout,
    options: Options | None,
    now: int,
    counters: Counters | None = None,
) -> Callable[[], Overdue]:
    """Start to read the timers that are over.

    Args:
        tr: A transaction.
        layout: The layout of the queue.
        options: The options of the queue.
        now: The time in milliseconds since 1970.
        counters: Its counters, if they are known: of what there is none, no timers are read.

    Returns:
        A function that waits for the reads and returns what is overdue.
    """
    version: int = tr.get_read_version().wait()
    max_attempts = None if options is None else options.max_attempts
    numbers = (1, 1, 1) if counters is None else _with_timers(counters)
    reads: list[Iterable[KeyValue]] = [
        tr.get_range(*timers, streaming_mode=WANT_ALL) if number else ()
        for timers, number in zip(layout.due_timers(version, now), numbers)
    ]
    results = begin_results(tr, layout, version) if numbers[0] else ()

    def finish() -> Overdue:
        overdue = Overdue()
        leases, dues, expiries = reads
        for row in leases:
            _, position = layout.unpack_timer_key(layout.leases, row.key)
            lease = decode_lease(row.value) or Lease(0, 0)
            if lease.left(now) > 0:
                continue
            if lease.delivery_count == 0:  # a timer of an earlier release, or of a repair
                lease = _lease_of_claim(tr[layout.claims + position].value, lease)
            if max_attempts is not None and lease.delivery_count >= max_attempts:
                overdue.died.append(position)
            elif 0 < lease.expires <= now:
                overdue.ended.append(position)
            else:
                overdue.returned.append(position)
        for row in dues:
            _, position = layout.unpack_timer_key(layout.dues, row.key)
            expires = decode_expiry(row.value)
            if expires is not None and expires <= now:
                overdue.lapsed.append(position)
            else:
                overdue.due.append(position)
        for row in expiries:
            overdue.expired.add(layout.unpack_timer_key(layout.expiries, row.key)[1])
        for key, value in layout.staged_items(results):
            expires = header_of(value)[0].expires
            if expires is not None and expires <= now:
                overdue.ended.append(layout.position(key))
            else:
                overdue.staged.append((layout.position(key), value))
        return overdue

    return finish


def _lease_of_claim(claim: bytes | None, lease: Lease) -> Lease:
    """Return a lease with what its timer does not know."""
    if claim is None:
        return lease
    item = decode_claim(claim)
    expires = header_of(item.value)[0].expires
    return lease._replace(delivery_count=item.delivery_count, expires=expires or 0)


def _with_timers(counters: Counters) -> tuple[int, int, int]:
    """Return the numbers of items that have a lease, a delay, or a time to expire."""
    return counters.claimed, counters.tallies["delayed"], counters.tallies["expiring"]


def overdue_items(
    tr: ReadTransaction, layout: Layout, overdue: Overdue, positions: Container[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and the value of those items at these positions that become ready."""
    # Start all reads before waiting for the first.
    claims = [
        (position, tr[layout.claims + position])
        for position in overdue.returned
        if position in positions
    ]
    delayed = [
        (position, tr[layout.delayed + position])
        for position in overdue.due
        if position in positions
    ]
    for position, read in claims:
        if read.value is not None:
            item = decode_claim(read.value)
            header, content = header_of(item.value)
            header = header._replace(attempts=item.delivery_count)
            yield layout.items + position, with_header(header, content)
    for position, read in delayed:
        if read.value is not None:
            yield layout.items + position, decode_metadata(read.value)[1]
    for position, value in overdue.staged:
        if position in positions:
            yield layout.items + position, value


# Statistics


def begin_stats(
    tr: ReadTransaction, subspace: Subspace, counters: Counters, now: int, first_key: FirstKey
) -> Callable[[], QueueStats]:
    """Start to read what the counters of a queue leave open about its statistics.

    Args:
        tr: A transaction.
        subspace: The subspace of the queue.
        counters: Its counters, from `counters_range`.
        now: The time in milliseconds since 1970.
        first_key: Reads the first key from a key on.

    Returns:
        A function that waits for the reads and returns the statistics, without the options.
    """
    has_timers = any(_with_timers(counters))
    if not has_timers and not counters.levels and not counters.ready:
        return lambda: _stats(counters, Overdue(), {}, None, None)  # there may be very many
    layout = Layout(subspace)
    options = _options(tr, layout) if has_timers else None
    overdue = Overdue if options is None else begin_overdue(tr, layout, options, now, counters)
    oldest = _begin_oldest(tr, layout, counters, first_key)
    after_now = layout.timer_key(layout.dues, now + 1, b"")
    dues: Iterable[KeyValue] = ()
    if counters.tallies["delayed"]:
        dues = tr.get_range(after_now, layout.range_of(layout.dues)[1], limit=1)

    def finish() -> QueueStats:
        found = overdue()
        times = [layout.unpack_timer_key(layout.dues, row.key)[0] for row in dues]
        by_priority = _by_priority(tr, layout, options, counters, found)
        next_due = utc_time(times[0]) if times else None
        return _stats(counters, found, by_priority, oldest(found), next_due)

    return finish


def _options(tr: ReadTransaction, layout: Layout) -> Options | None:
    """Return the options of the queue, which it has once it was pushed to."""
    stored = getattr(tr, "snapshot", tr).get(layout.options).value
    return None if stored is None else decode_options(stored)


def begin_size(
    tr: ReadTransaction, subspace: Subspace, counters: Counters, now: int
) -> Callable[[], int]:
    """Start to read what the counters of a queue leave open about the number of ready items."""
    if not any(_with_timers(counters)):
        return lambda: max(0, counters.ready)
    layout = Layout(subspace)
    overdue = begin_overdue(tr, layout, _options(tr, layout), now, counters)
    return lambda: max(0, counters.ready + overdue().ready)


def _stats(
    counters: Counters,
    overdue: Overdue,
    by_priority: dict[Any, int],
    oldest: Moment | None,
    next_due: Moment | None,
) -> QueueStats:
    tallies = counters.tallies
    returned, died, ended = map(len, (overdue.returned, overdue.died, overdue.ended))
    over = returned + died + ended + len(overdue.staged)
    return QueueStats(
        ready=max(0, counters.ready + overdue.ready),
        delayed=max(0, tallies["delayed"] - len(overdue.due) - len(overdue.lapsed)),
        claimed=max(0, counters.claimed - over),
        dead=max(0, tallies["dead"] + died),
        done=max(0, tallies["done"]),
        by_priority=by_priority,
        oldest=oldest,
        next_due=next_due,
        paused=tallies["paused"] > 0,
        options=None,
        total_pushed=counters.pushed,
        total_completed=counters.completed,
        # Attempts whose leases are over have not failed yet: they may still be acknowledged.
        total_failed=tallies["failed"],
        total_retried=tallies["retried"],
        total_expired=tallies["expired"] + len(overdue.expired) + ended + len(overdue.lapsed),
        total_removed=tallies["removed"],
        total_died=tallies["died"],
        total_put_back=tallies["put_back"],
        total_rejected=counters.rejected,
    )


def _by_priority(
    tr: ReadTransaction,
    layout: Layout,
    options: Options | None,
    counters: Counters,
    overdue: Overdue,
) -> dict[Any, int]:
    """Return the number of ready items of each priority that has any.

    The options are needed only if something is overdue.
    """
    kind = "" if options is None else options.kind
    unpack = layout.unpack_level_prefix
    levels = counters.levels
    counts = Counter({unpack(prefix): levels[prefix] for prefix in sorted(levels)})
    if kind == "task":
        ranks = Priorities(layout, RANK, are_counted=False)
        stored = overdue_items(tr, layout, overdue, {*overdue.positions})
        expired = [(layout.items + place, tr[layout.items + place]) for place in overdue.expired]

        def urgencies(rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[int]:
            for key, value in rows:
                with suppress(ValueError, struct.error):  # a damaged task must not hide the others
                    if value is not None:
                        yield decode_header(layout.read_payload(tr, ranks.item(key, value)))[0]

        counts.update(urgencies(stored))
        counts.subtract(urgencies((key, read.value) for key, read in expired))
    elif kind == "priority":

        def priority(position: bytes) -> Any:
            return layout.unpack_item_key(layout.items + position)[0]

        counts.update(map(priority, overdue.positions))
        counts.subtract(map(priority, overdue.expired))
    found = {priority: n for priority, n in counts.items() if n > 0}
    return {priority: found[priority] for priority in sorted(found)}


def _begin_oldest(
    tr: ReadTransaction, layout: Layout, counters: Counters, first_key: FirstKey
) -> Callable[[Overdue], Moment | None]:
    """Start to read the first key of some levels, and of the ids of tasks.

    Returns:
        A function that waits for the reads and returns when the oldest ready item was pushed.
    """
    # All items of a FIFO queue are in one level, which has no counter.
    prefixes = [*islice(counters.levels, _MAX_LEVELS)] or [layout.items]
    firsts = [(prefix, first_key(tr, prefix + b"\x00")) for prefix in prefixes]
    first_id = first_key(tr, layout.ids + b"\x00")

    def oldest(overdue: Overdue) -> Moment | None:
        expired = overdue.expired
        times = [layout.pushed_at(layout.items + position) for position in overdue.positions]
        for prefix, first in firsts:
            key = first.value
            if layout.position(key) in expired:  # look behind all that have expired
                rows = tr.get_range(*layout.range_of(prefix), limit=len(expired) + 1)
                live = (row.key for row in rows if layout.position(row.key) not in expired)
                key = next(live, b"")
            if key.startswith(prefix) and layout.is_item_key(key, prefix):
                times.append(layout.pushed_at(key))
        key = first_id.value
        if expired:
            rows = tr.get_range(*layout.range_of(layout.ids), limit=len(expired) + 1)
            key = next((row.key for row in rows if row.value not in expired), b"")
        times.append(layout.task_pushed_at(key))
        return min((time for time in times if time is not None), default=None)

    return oldest


class Views:
    """The views of one queue. Each method is part of a transaction that only reads."""

    def __init__(self, layout: Layout, items: Items, first_key: FirstKey) -> None:
        self._layout = layout
        self._items = items
        self._first_key = first_key

    def overdue(self, tr: ReadTransaction, now: int) -> Overdue:
        """Return what is overdue, as of `now` in milliseconds since 1970."""
        layout = self._layout
        snapshot = getattr(tr, "snapshot", tr)
        # One read, as most queues have neither timers nor results of pops, nor rows in between.
        begin, end = layout.timers_and_results
        for row in snapshot.get_range(begin, end, limit=1):
            between = row.key != begin and not row.key.startswith(layout.results)
            results = snapshot.get_range(layout.results, end, limit=1) if between else [row]
            if [*results]:
                return begin_overdue(tr, layout, _options(tr, layout), now)()
        return Overdue()

    # Numbers

    def stats(self, tr: ReadTransaction, now: int, given: Options) -> QueueStats:
        """Return the statistics of the queue; `given` are its options before its first push."""
        begun = self._items.begin_counters(tr, counters_range)
        options = tr[self._layout.options]
        finish = begin_stats(tr, self._layout.subspace, begun(), now, self._first_key)
        stored = given if options.value is None else decode_options(options.value)
        return replace(finish(), options=stored)

    def size(self, tr: ReadTransaction, now: int) -> int:
        """Return the number of ready items."""
        return begin_size(tr, self._layout.subspace, self._items.begin_counters(tr)(), now)()

    def counts(self, tr: ReadTransaction, now: int) -> dict[Any, int]:
        """Return the number of ready items of each priority that has any."""
        layout = self._layout
        counters = self._items.begin_counters(tr, counters_range)()
        if not any(_with_timers(counters)):
            return _by_priority(tr, layout, None, counters, Overdue())
        options = _options(tr, layout)
        overdue = begin_overdue(tr, layout, options, now, counters)()
        return _by_priority(tr, layout, options, counters, overdue)

    def corrections(
        self, tr: ReadTransaction, now: int, of: Callable[[ReadTransaction, StoredItem], _T]
    ) -> Counter[_T]:
        """Count the items that are ready although not stored so, less those that have expired.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            of: Returns what to count by.
        """
        overdue = self.overdue(tr, now)
        keys = [self._layout.items + position for position in overdue.expired]
        # Start all reads before waiting for the first.
        values = [(key, tr[key]) for key in keys]
        item = self._items.levels.item
        expired = [item(key, read.value) for key, read in values if read.value is not None]
        more = self._overdue_items(tr, overdue, overdue.positions)
        counts = Counter(of(tr, item) for item in more)
        counts.subtract(of(tr, item) for item in expired)
        return counts

    # Ready items

    def _overdue_items(
        self, tr: ReadTransaction, overdue: Overdue, positions: Iterable[bytes]
    ) -> list[StoredItem]:
        """Return those items at these positions that become ready."""
        item = self._items.levels.item
        return [item(*row) for row in overdue_items(tr, self._layout, overdue, {*positions})]

    def _overdue_between(
        self, overdue: Overdue, begin: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> list[bytes]:
        """Return the first positions, in a range of keys, of the items that become ready."""
        first, last = self._layout.position(begin), self._layout.position(end)
        among = [position for position in overdue.positions if first <= position < last]
        return sorted(among, reverse=reverse)[: limit or None]

    def listed(
        self,
        tr: ReadTransaction,
        state: State,
        begin: bytes,
        end: bytes,
        now: int,
        limit: int = 0,
        reverse: bool = False,
    ) -> Iterator[LocatedItem]:
        """Iterate over the items in a state, which are read as they are needed.

        Args:
            tr: A transaction.
            state: The state.
            begin: The first key, as that of a ready item.
            end: The key behind the last one, as that of a ready item.
            now: The time in milliseconds since 1970.
            limit: The maximum number of items, 0 for all.
            reverse: Iterate in the opposite order of keys.
        """
        layout = self._layout
        overdue = self.overdue(tr, now)
        hidden: Iterable[bytes]
        more: Iterable[LocatedItem]
        if state == "ready":
            hidden = overdue.expired
            among = self._overdue_between(overdue, begin, end, limit, reverse)
            more = [LocatedItem(state, item) for item in self._overdue_items(tr, overdue, among)]
        elif state == "delayed":
            hidden, more = {*overdue.due, *overdue.lapsed}, ()
        elif state == "claimed":
            hidden = {*overdue.returned, *overdue.died, *overdue.ended}
            more = self._staged(tr)
        else:
            hidden, more = (), self._died(tr, overdue, now)
        others = sorted(
            (item for item in more if begin <= item.key < end), key=_key_of, reverse=reverse
        )
        prefix = layout.prefix_of[state]
        rows = tr.get_range(
            prefix + layout.position(begin),
            prefix + layout.position(end),
            limit=limit and limit + len([*hidden]),
            reverse=reverse,
        )
        stored = (
            self._located(state, row.key[len(prefix) :], row.value)
            for row in rows
            if row.key[len(prefix) :] not in hidden
        )
        return islice(merge(stored, others, key=_key_of, reverse=reverse), limit or None)

    def _located(self, state: State, position: bytes, stored: bytes) -> LocatedItem:
        metadata, value = ((), stored) if state == "ready" else decode_metadata(stored)
        return LocatedItem(
            state, self._items.levels.item(self._layout.items + position, value), metadata
        )

    def _staged(self, tr: ReadTransaction) -> list[LocatedItem]:
        """Return the items staged for the pops of live processes: they count as claimed."""
        layout, item = self._layout, self._items.levels.item
        alive = live_requests(layout, layout.results, tr.get_read_version().wait())
        staged = layout.staged_items(tr.get_range(*alive, streaming_mode=WANT_ALL))
        return [LocatedItem("claimed", item(*row)) for row in staged]

    def _died(self, tr: ReadTransaction, overdue: Overdue, now: int) -> list[LocatedItem]:
        claims = [(position, tr[self._layout.claims + position]) for position in overdue.died]
        found = [
            self._located("claimed", position, read.value)
            for position, read in claims
            if read.value is not None
        ]
        return [self._as_dead(item, now) for item in found]

    @staticmethod
    def _as_dead(claimed: LocatedItem, now: int) -> LocatedItem:
        return LocatedItem("dead", claimed.item, (claimed.metadata[2], now, LEASE_OVER))

    def first(
        self, tr: ReadTransaction, n: int, now: int, at_max: bool = False
    ) -> list[StoredItem]:
        """Return the items that `Items.first` returns after a sweep."""
        position = self._layout.position
        # Start to read before looking for what is overdue, which is rare.
        begun = None if at_max else self._items.begin_read(tr, *self._layout.all_items, n)
        overdue = self.overdue(tr, now)
        if begun is None or (overdue.expired and n):
            stored = self._items.first(tr, n + len(overdue.expired) if n else 0, at_max)
        else:
            stored = begun()
        if not overdue.positions and not overdue.expired:
            return stored
        found = {position(item.key): item for item in stored}
        places = sorted({*found, *overdue.positions} - overdue.expired)
        if at_max:
            places.sort(key=self._level_of, reverse=True)
        chosen = places[:n]
        more = self._overdue_items(tr, overdue, {*chosen} - found.keys())
        found |= {position(item.key): item for item in more}
        return [found[place] for place in chosen if place in found]

    def _level_of(self, position: bytes) -> bytes:
        return self._items.levels.level_of(self._layout.items + position).prefix

    def first_of(
        self,
        tr: ReadTransaction,
        first: Callable[[ReadTransaction, int], Iterable[StoredItem]],
        is_one: Callable[[ReadTransaction, StoredItem], bool],
        now: int,
    ) -> StoredItem | None:
        """Return the first item of those that `first(tr, n)` reads and `is_one` accepts."""
        overdue = self.overdue(tr, now)
        position = self._layout.position
        stored = first(tr, 1 + len(overdue.expired))
        live = [item for item in stored if position(item.key) not in overdue.expired]
        more = self._overdue_items(tr, overdue, overdue.positions)
        live += [item for item in more if is_one(tr, item)]
        return min(live, key=_key_of, default=None)

    def indexed(
        self,
        tr: ReadTransaction,
        index: bytes,
        is_one: Callable[[ReadTransaction, StoredItem], bool],
        begin: bytes,
        end: bytes,
        now: int,
        limit: int,
    ) -> list[StoredItem]:
        """Return up to `limit` ready items of an index, in a range of keys.

        `is_one(tr, item)` returns whether an item belongs to this index.
        """
        layout = self._layout
        overdue = self.overdue(tr, now)
        rows = tr.get_range(
            index + layout.position(begin),
            index + layout.position(end),
            limit=limit + len(overdue.expired),
        )
        positions = [row.key[len(index) :] for row in rows]
        # Start all reads before waiting for the first.
        reads = [
            (layout.items + position, tr[layout.items + position])
            for position in positions
            if position not in overdue.expired
        ]
        item = self._items.levels.item
        more = self._overdue_items(tr, overdue, self._overdue_between(overdue, begin, end, 0))
        found = [item(key, bytes(value)) for key, value in reads]
        found += [one for one in more if is_one(tr, one)]
        return sorted(found, key=_key_of)[:limit]

    def count_before(self, tr: ReadTransaction, key: bytes, counted: int, now: int) -> int:
        """Correct the number of items before a key, as counted by their rows."""
        overdue, position = self.overdue(tr, now), self._layout.position(key)
        more = sum(other < position for other in overdue.positions)
        return counted + more - sum(other < position for other in overdue.expired)

    # Single items

    def locate(self, tr: ReadTransaction, reference: bytes, now: int) -> LocatedItem | None:
        """Return the item with this reference, and its state; `None` if it ended."""
        found = self._items.find(tr, reference)
        if found is not None:
            return self._as_swept(tr, found, now)
        layout = self._layout
        # Perhaps it is staged for a pop. There are few of these, and they are not in an index.
        results = tr.get_range(*layout.range_of(layout.results), streaming_mode=WANT_ALL)
        for key, value in layout.staged_items(results):
            position = layout.position(key)
            origin = header_of(value)[0].origin
            if reference in (position, origin, layout.unpack_item_key(key)[-1]):
                item = self._items.levels.item(key, value)
                overdue = self.overdue(tr, now)
                if position in overdue.ended:
                    return None
                is_back = (position, value) in overdue.staged
                return LocatedItem("ready" if is_back else "claimed", item)
        return None

    def begin_lease(self, tr: ReadTransaction, found: LocatedItem) -> Callable[[], Lease | None]:
        """Start to read the lease of an item; the result is `None` if it has none."""
        if found.state != "claimed" or not found.metadata:  # an item staged for a pop has none
            return lambda: None
        layout = self._layout
        timer = tr[layout.timer_key(layout.leases, found.metadata[1], layout.position(found.key))]
        return lambda: decode_lease(timer.value or b"")

    def _as_swept(self, tr: ReadTransaction, found: LocatedItem, now: int) -> LocatedItem | None:
        layout, item = self._layout, found.item
        if found.state == "claimed":
            _, lease_end, delivery_count, *_ = found.metadata
            if lease_end > tr.get_read_version().wait():
                return found
            position = layout.position(item.key)
            timer = tr[layout.timer_key(layout.leases, lease_end, position)].value
            lease = decode_lease(timer or b"") or Lease(0, 0)
            if lease.left(now) > 0:
                return found
            options = _options(tr, layout)
            max_attempts = None if options is None else options.max_attempts
            if max_attempts is not None and delivery_count >= max_attempts:
                return self._as_dead(found, now)
            value = with_header(item.header._replace(attempts=delivery_count), item.content)
            found = LocatedItem("ready", self._items.levels.item(item.key, value))
        elif found.state == "delayed" and found.metadata[0] <= now:
            found = LocatedItem("ready", item)
        if found.state == "ready":
            expires = found.item.header.expires
            if expires is not None and expires <= now:
                return None
        return found
