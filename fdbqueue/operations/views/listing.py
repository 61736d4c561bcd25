"""The items of a queue in each state, and single items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.values import Lease, decode_lease, header_of, lease_expiry
from fdbqueue.operations.items import Items, LocatedItem
from fdbqueue.operations.timers import Fate, fate_of_delay, fate_of_lease
from fdbqueue.operations.views.overdue import (
    NOTHING_OVERDUE,
    Overdue,
    after_timer,
    begin_overdue,
    read_overdue,
)
from fdbqueue.operations.views.staged import begin_staged, ranges_by_life
from fdbqueue.types import ReadTransaction, State

_key_of = attrgetter("key")


class Views:
    """The views of one queue. Each method is part of a transaction that only reads."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items

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
                return begin_overdue(tr, layout, self._items.options.read(snapshot), now)()
        return NOTHING_OVERDUE

    # Ready items

    def _moved(
        self, tr: ReadTransaction, overdue: Overdue, positions: Iterable[bytes], now: int
    ) -> list[LocatedItem]:
        """Return the overdue items at some positions as the next sweep leaves them."""
        found = read_overdue(tr, self._items, overdue, positions)
        moved = [after_timer(self._items, item, fate, now) for item, fate in found]
        return [item for item in moved if item is not None]

    def _between(
        self, positions: Iterable[bytes], begin: bytes, end: bytes, limit: int, reverse: bool
    ) -> list[bytes]:
        """Return the first of some positions in a range of keys."""
        first, last = self._layout.position(begin), self._layout.position(end)
        among = [position for position in positions if first <= position < last]
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
        hidden = overdue.leaving(state)
        entering = self._between(overdue.entering(state), begin, end, limit, reverse)
        more = self._moved(tr, overdue, entering, now)
        if state == "claimed":
            more += [item for item in self._staged(tr) if begin <= item.key < end]
        more.sort(key=_key_of, reverse=reverse)
        prefix = layout.prefix_of[state]
        rows = tr.get_range(
            prefix + layout.position(begin),
            prefix + layout.position(end),
            limit=limit and limit + len(hidden),
            reverse=reverse,
        )
        stored = (
            self._items.located(state, layout.items + row.key[len(prefix) :], row.value)
            for row in rows
            if row.key[len(prefix) :] not in hidden
        )
        return islice(merge(stored, more, key=_key_of, reverse=reverse), limit or None)

    def _staged(self, tr: ReadTransaction) -> list[LocatedItem]:
        """Return the items staged for the pops of live processes: they count as claimed."""
        layout, item = self._layout, self._items.levels.item
        alive, _ = ranges_by_life(layout, layout.results, tr.get_read_version().wait())
        staged = [item(*row) for row in begin_staged(tr, layout, [alive])]
        return [LocatedItem("claimed", each, each.header.attempts) for each in staged]

    def first(
        self, tr: ReadTransaction, n: int, now: int, at_max: bool = False
    ) -> list[StoredItem]:
        """Return the items that `Items.first` returns after a sweep."""
        position = self._layout.position
        # Start to read before looking for what is overdue, which is rare.
        begun = None if at_max else self._items.begin_read(tr, *self._layout.all_items, n)
        overdue = self.overdue(tr, now)
        expired, returning = overdue.leaving("ready"), overdue.entering("ready")
        if begun is None or (expired and n):
            stored = self._items.first(tr, n + len(expired) if n else 0, at_max)
        else:
            stored = begun()
        if not returning and not expired:
            return stored
        found = {position(item.key): item for item in stored}
        places = sorted({*found, *returning} - expired)
        if at_max:
            places.sort(key=self._level_of, reverse=True)
        chosen = places[:n]
        for moved in self._moved(tr, overdue, {*chosen} - found.keys(), now):
            found[position(moved.key)] = moved.item
        return [found[place] for place in chosen if place in found]

    def _level_of(self, position: bytes) -> bytes:
        return self._items.levels.level_of(self._layout.items + position).prefix

    def indexed(
        self,
        tr: ReadTransaction,
        index: bytes,
        is_one: Callable[[ReadTransaction, StoredItem], bool],
        begin: bytes,
        end: bytes,
        now: int,
        limit: int,
        reverse: bool = False,
    ) -> list[StoredItem]:
        """Return up to `limit` ready items of an index, in a range of keys.

        `is_one(tr, item)` returns whether an item belongs to this index.
        """
        layout = self._layout
        overdue = self.overdue(tr, now)
        expired = overdue.leaving("ready")
        rows = tr.get_range(
            index + layout.position(begin),
            index + layout.position(end),
            limit=limit + len(expired),
            reverse=reverse,
        )
        positions = [row.key[len(index) :] for row in rows]
        found = self._items.at_positions(tr, [one for one in positions if one not in expired])
        returning = self._between(overdue.entering("ready"), begin, end, 0, reverse)
        moved = self._moved(tr, overdue, returning, now)
        found += [each.item for each in moved if is_one(tr, each.item)]
        return sorted(found, key=_key_of, reverse=reverse)[:limit]

    def count_before(self, tr: ReadTransaction, key: bytes, counted: int, now: int) -> int:
        """Correct the number of items before a key, as counted by their rows."""
        overdue, position = self.overdue(tr, now), self._layout.position(key)
        more = sum(other < position for other in overdue.entering("ready"))
        return counted + more - sum(other < position for other in overdue.leaving("ready"))

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
                staged = LocatedItem("claimed", item, item.header.attempts)
                fate = self.overdue(tr, now).fates.get(position)
                return staged if fate is None else after_timer(self._items, staged, fate, now)
        return None

    def begin_lease(self, tr: ReadTransaction, found: LocatedItem) -> Callable[[], Lease | None]:
        """Start to read the lease of an item; the result is `None` if it has none."""
        if not found.token:
            return lambda: None
        layout = self._layout
        timer = tr[layout.timer_key(layout.leases, found.lease_end, layout.position(found.key))]
        return lambda: decode_lease(timer.value or b"")

    def _as_swept(self, tr: ReadTransaction, found: LocatedItem, now: int) -> LocatedItem | None:
        if found.timer_over(tr, self._layout, now) is None:
            return found
        expires = lease_expiry(found.item.header)
        fate: Fate | None = Fate.EXPIRED
        if found.state == "claimed":
            lease = self.begin_lease(tr, found)() or Lease(0, 0)
            lease = lease._replace(delivery_count=found.attempts, expires=expires or 0)
            options = self._items.options.read(getattr(tr, "snapshot", tr))
            fate = fate_of_lease(lease, options, now)
        elif found.state == "delayed":
            fate = fate_of_delay(expires, now)
        return found if fate is None else after_timer(self._items, found, fate, now)
