"""The items of a queue in each state, and single items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from fdbqueue.layout.items import StoredItem, counters_range
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    Lease,
    decode_lease,
    decode_metadata,
    decode_options,
    header_of,
    with_header,
)
from fdbqueue.operations.items import Items, LocatedItem
from fdbqueue.operations.leases import LEASE_OVER
from fdbqueue.operations.views.overdue import (
    Overdue,
    begin_overdue,
    overdue_items,
    stored_options,
    with_timers,
)
from fdbqueue.operations.views.staged import begin_staged, ranges_by_life
from fdbqueue.operations.views.stats import FirstKey, begin_size, begin_stats, counts_by_priority
from fdbqueue.types import Options, QueueStats, ReadTransaction, State

_T = TypeVar("_T")

_key_of = attrgetter("key")


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
                return begin_overdue(tr, layout, stored_options(tr, layout), now)()
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
        if not any(with_timers(counters)):
            return counts_by_priority(tr, layout, None, counters, Overdue())
        options = stored_options(tr, layout)
        overdue = begin_overdue(tr, layout, options, now, counters)()
        return counts_by_priority(tr, layout, options, counters, overdue)

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
        alive, _ = ranges_by_life(layout, layout.results, tr.get_read_version().wait())
        staged = begin_staged(tr, layout, [alive])
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
        for key, value in begin_staged(tr, layout, [layout.range_of(layout.results)]):
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
            options = stored_options(tr, layout)
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
