"""Queues of at most so many items: pushes that together never exceed it, and rarely conflict."""

from __future__ import annotations

import random
from typing import Any
from weakref import WeakKeyDictionary

from fdbqueue.layout import Layout

__all__ = ["Places"]


class Places:
    """The places of a bounded queue, of which every push takes some until it has committed.

    Nobody writes a place; pushes only conflict on them. A push that sees `size` items takes places
    at random from `size` up to the bound. It conflicts with a push of the same places, with one
    that saw more items than the number of its place, and with one of a place below the number of
    items that itself saw. Far from the bound that hardly ever happens; near to it pushes conflict.

    So the bound is never exceeded. Of the pushes that committed so far, take the one with the
    latest read version, and let m be the number of items that it saw. Whatever committed since that
    version was checked against each other, as no read version is later. So their places differ;
    none is below m, or it would conflict with the one that saw m; and none is above the bound. With
    pops meanwhile there are only fewer items.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # What the transactions under way have taken: read version, begin, end.
        self._taken: WeakKeyDictionary[Any, tuple[int, int, int]] = WeakKeyDictionary()

    def take(self, tr: Any, size: int, bound: int, n: int) -> None:
        """Take `n` places, besides those that the transaction has; there must be room for them.

        `size` is the number of items, with those that the transaction itself has pushed.
        """
        version = tr.get_read_version().wait()
        since, begin, end = self._taken.get(tr, (version, 0, 0))
        if since != version:  # of another attempt
            begin = end = 0
        seen = size - (end - begin)
        if begin == end:
            begin = end = random.randrange(seen, bound - n + 1)
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
