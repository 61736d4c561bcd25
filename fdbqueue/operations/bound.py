"""Queues of at most so many items: whatever adds one takes a place, and rarely conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from fdbqueue.layout import Layout
from fdbqueue.operations.items import WANT_ALL

__all__ = ["Places"]

_MOST_ROWS = 2**31 - 1  # the highest limit that a read takes


class Places:
    """The places of a bounded queue. Transactions that add items take some until they commit.

    An item has a place from its push until it ends: it waits, is delayed, or is claimed. Pops,
    acknowledgements, expiry, removal and death end it. A claim, its release, a failure that is
    tried again and a lease that runs out move an item, and leave the number of places taken as it
    is. So pushes and retries of dead letters alone take places. (`put_back` takes none: it may
    exceed the bound.)

    Claimed items have no counter. Their leases are counted in the transaction's own snapshot, which
    is exact, also of claims made before the queue had a bound, and costs unbounded queues nothing.

    Places are never written; transactions only conflict on them. A transaction that sees `taken`
    places taken chooses its own at random from `taken` up to the bound. It conflicts with one that
    chose the same places, with one that saw more places taken than the number of its place, and
    with one that chose a place below the number that itself saw. Far from the bound that hardly
    ever happens; near to it pushes conflict.

    So the bound is never exceeded. Of the transactions that took places and committed so far, take
    the one with the latest read version, and let m be the number of places that it saw taken. All
    others that committed since that version were checked against each other and against it, as no
    read version is later. So their places differ; none is below m, or it would conflict with the
    one that saw m; and none is above the bound. Whatever else committed since then, claims and
    releases included, left the number as it is or lowered it. So at most the bound are taken.

    A transaction that ends items itself sees their places free. That is sound: it conflicts with
    whatever else ends or moves the same items, and so lowers the number exactly once.
    """

    def __init__(self, layout: Layout, randrange: Callable[[int, int], int]) -> None:
        self._layout = layout
        self._randrange = randrange
        # What the transactions under way have taken: read version, begin, end.
        self._taken: WeakKeyDictionary[Any, tuple[int, int, int]] = WeakKeyDictionary()

    def begin_count(self, tr: Any, bound: int) -> Callable[[], int]:
        """Begin to read how many places are taken; claims are counted up to the bound.

        Snapshot reads, which see what the transaction itself has done. Cost: two counters, and a
        row for each claimed item.
        """
        size = self._layout.begin_size(tr.snapshot)
        leases = self._layout.range_of(self._layout.leases)
        limit = min(bound, _MOST_ROWS)
        claimed = tr.snapshot.get_range(*leases, limit=limit, streaming_mode=WANT_ALL)
        return lambda: size() + sum(1 for _ in claimed)

    def take(self, tr: Any, taken: int, bound: int, n: int) -> None:
        """Take `n` places, besides those that the transaction has; there must be room for them.

        `taken` is the number of places taken, with those of the transaction itself.
        """
        version = tr.get_read_version().wait()
        since, begin, end = self._taken.get(tr, (version, 0, 0))
        if since != version:  # of another attempt
            begin = end = 0
        seen = taken - (end - begin)
        if begin == end:
            begin = end = self._randrange(seen, bound - n + 1)
        above = min(n, bound - end)
        begin, end = begin - (n - above), end + above
        self._taken[tr] = version, begin, end
        self._conflict(tr, seen, begin, end)

    def _conflict(self, tr: Any, seen: int, begin: int, end: int) -> None:
        places, below = self._layout.places, self._layout.places_below
        taken = self._layout.places_between(places, begin, end)
        tr.add_write_conflict_range(*taken)
        tr.add_read_conflict_range(*taken)
        tr.add_read_conflict_range(*self._layout.places_between(below, begin, end))
        if seen > 0:
            tr.add_write_conflict_range(*self._layout.places_between(below, 0, seen))
            tr.add_read_conflict_range(*self._layout.places_between(places, 0, seen))

    def rely_on_full(self, tr: Any) -> None:
        """Conflict with whatever makes room, in a transaction that may rely on there being none."""
        tr.add_read_conflict_key(self._layout.went)
        tr.add_read_conflict_range(*self._layout.range_of(self._layout.leases))
