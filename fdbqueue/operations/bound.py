"""Bounded queues: a transaction that adds items takes places below the bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from fdbqueue.layout import Layout
from fdbqueue.operations.items import WANT_ALL
from fdbqueue.types import Transaction

__all__ = ["Bound"]

_MAX_ROWS = 2**31 - 1  # the highest limit of a range read


class Bound:
    """The places of a bounded queue. A transaction takes one place for each item that it adds.

    An item occupies a place from its push until it ends: while it waits, is delayed or is claimed.
    Pops, acknowledgements, expiry, removal and death end an item. A claim, its release, a retried
    failure and an expired lease only move it, and the number of taken places stays the same. So
    only pushes and retries of dead letters take places. (`put_back` takes none: it may exceed the
    bound.)

    Claimed items have no counter. The transaction counts their leases in its own snapshot. This
    count is exact, even for claims made before the queue had a bound. Unbounded queues pay nothing.

    Places are never written; transactions only conflict on them. A transaction that sees `taken`
    taken places chooses places at random between `taken` and the bound. Two transactions conflict
    if they choose the same place, or if one chooses a place with a number below the `taken` of the
    other. Conflicts are rare far from the bound, and frequent near it.

    Proof that the bound is never exceeded: consider all transactions that took places and have
    committed. Let T be the one with the latest read version, and m the number of taken places that
    T saw. Only the transactions that committed after this read version matter. No read version is
    later, so all of them were checked against each other and against T. So their places differ. No
    place is below m, because its transaction would have conflicted with T. No place is above the
    bound. All other operations since then left the number of taken places unchanged or lowered it,
    claims and releases included. So the taken places never outnumber the bound.

    A transaction that also ends items sees their places as free. This is sound: it conflicts with
    every other operation that ends or moves the same items, so each place is freed only once.
    """

    def __init__(self, layout: Layout, randrange: Callable[[int, int], int]) -> None:
        self._layout = layout
        self._randrange = randrange
        # The places that transactions in progress took: read version, begin, end.
        self._taken: WeakKeyDictionary[Any, tuple[int, int, int]] = WeakKeyDictionary()

    def begin_count(self, tr: Transaction, bound: int) -> Callable[[], int]:
        """Start to count the taken places; stop counting claims at the bound.

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
        """Take `n` places in addition to the places that the transaction already has.

        Args:
            tr: The transaction.
            taken: The number of taken places, including the transaction's own.
            bound: The bound of the queue.
            n: The number of places to take; the bound must have room for them.
        """
        version = tr.get_read_version().wait()
        since, begin, end = self._taken.get(tr, (version, 0, 0))
        if since != version:  # an earlier try of the transaction took these places
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
        """Conflict with every operation that frees a place, so that the queue is full at commit."""
        tr.add_read_conflict_key(self._layout.total_out)
        tr.add_read_conflict_range(*self._layout.range_of(self._layout.leases))
