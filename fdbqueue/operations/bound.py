"""Bounded queues: transactions that add items take places below the bound, and rarely conflict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from fdbqueue.layout import Layout
from fdbqueue.operations.items import WANT_ALL
from fdbqueue.types import Transaction

__all__ = ["Bound"]

_MAX_ROWS = 2**31 - 1  # the highest limit that a read takes


class Bound:
    """The places of a bounded queue. A transaction that adds items takes one place for each.

    An item has a place from its push until it ends, while it waits, is delayed or is claimed. Pops,
    acknowledgements, expiry, removal and death end it. A claim, its release, a retried failure and
    an expired lease move an item and leave the number of taken places unchanged. So only pushes and
    retries of dead letters take places. (`put_back` takes none: it may exceed the bound.)

    Claimed items have no counter. Their leases are counted in the transaction's own snapshot. That
    is exact, even for claims made before the queue had a bound, and costs unbounded queues nothing.

    Places are never written; transactions only conflict on them. A transaction that sees `taken`
    taken places chooses its own at random between `taken` and the bound. It conflicts with a
    transaction that chose the same places, with one that saw more taken places than the number of
    its place, and with one that chose a place below the number that it saw itself. Far from the
    bound this is rare; near the bound pushes conflict.

    The bound is never exceeded. Consider all transactions that took places and committed so far,
    and let m be the number of taken places that the one with the latest read version saw. The
    others that committed since that version were checked against each other and against it, because
    no read version is later. So their places differ. No place is below m, or its transaction would
    conflict with the one that saw m, and no place is above the bound. All other operations since
    then, claims and releases included, left the number unchanged or lowered it. So the taken places
    never outnumber the bound.

    A transaction that itself ends items sees their places as free. That is sound: it conflicts with
    every other operation that ends or moves the same items, so it lowers the number exactly once.
    """

    def __init__(self, layout: Layout, randrange: Callable[[int, int], int]) -> None:
        self._layout = layout
        self._randrange = randrange
        # Taken by transactions in progress: read version, begin, end.
        self._taken: WeakKeyDictionary[Any, tuple[int, int, int]] = WeakKeyDictionary()

    def begin_count(self, tr: Transaction, bound: int) -> Callable[[], int]:
        """Start to count the taken places; claims are counted up to the bound.

        The reads are snapshot reads, which see the transaction's own writes.

        Cost: two counters, and one row per claimed item.

        Returns:
            A function that waits for the reads and returns the count.
        """
        size = self._layout.begin_size(tr.snapshot)
        leases = self._layout.range_of(self._layout.leases)
        limit = min(bound, _MAX_ROWS)
        claimed = tr.snapshot.get_range(*leases, limit=limit, streaming_mode=WANT_ALL)
        return lambda: size() + sum(1 for _ in claimed)

    def take(self, tr: Transaction, taken: int, bound: int, n: int) -> None:
        """Take `n` places in addition to those the transaction already has.

        Args:
            tr: The transaction.
            taken: The number of taken places, including the transaction's own.
            bound: The bound of the queue.
            n: How many places to take; the bound must have room for them.
        """
        version = tr.get_read_version().wait()
        since, begin, end = self._taken.get(tr, (version, 0, 0))
        if since != version:  # these places belong to another attempt
            begin = end = 0
        seen = taken - (end - begin)
        if begin == end:
            begin = end = self._randrange(seen, bound - n + 1)
        above = min(n, bound - end)
        begin, end = begin - (n - above), end + above
        self._taken[tr] = version, begin, end
        self._conflict(tr, seen, begin, end)

    def _conflict(self, tr: Transaction, seen: int, begin: int, end: int) -> None:
        places, below = self._layout.places, self._layout.places_below
        taken = self._layout.places_between(places, begin, end)
        tr.add_write_conflict_range(*taken)
        tr.add_read_conflict_range(*taken)
        tr.add_read_conflict_range(*self._layout.places_between(below, begin, end))
        if seen > 0:
            tr.add_write_conflict_range(*self._layout.places_between(below, 0, seen))
            tr.add_read_conflict_range(*self._layout.places_between(places, 0, seen))

    def rely_on_full(self, tr: Transaction) -> None:
        """Conflict with every operation that makes room, so that the queue is full at commit."""
        tr.add_read_conflict_key(self._layout.total_out)
        tr.add_read_conflict_range(*self._layout.range_of(self._layout.leases))
