"""The limits of a claim, and how transactions keep below a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_count
from fdbqueue.types import Options, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items

First: TypeAlias = Callable[[int], Sequence[StoredItem]]


RandRange: TypeAlias = Callable[[int, int], int]
"""Chooses a number from the first to before the second, as `random.randrange` does."""

_taken: WeakKeyDictionary[Any, dict[bytes, tuple[int, int, int]]] = WeakKeyDictionary()
"""The places of transactions in progress, by prefix: read version, begin, end."""


def take_places(
    tr: Transaction, prefix: bytes, taken: int, bound: int, n: int, choose: RandRange
) -> None:
    """Take `n` numbered places below a bound, one for each item that the transaction adds.

    There must be room; `taken`, read by a snapshot, includes the transaction's own. Two
    transactions conflict if they choose the same place, or if one chooses a place below the number
    read by the other (`docs/design/bounded-pushes.md`).

    A transaction that also ends items may reuse their places: it conflicts with every other end of
    these items.
    """
    version = tr.get_read_version().wait()
    own = _taken.setdefault(tr, {})
    since, begin, end = own.get(prefix, (version, 0, 0))
    if since != version:  # an earlier try of the transaction took these places
        begin = end = 0
    seen = taken - (end - begin)
    if begin == end:
        begin = end = choose(seen, bound - n + 1)
    above = min(n, bound - end)
    begin, end = begin - (n - above), end + above
    own[prefix] = version, begin, end
    between = Layout.places_between
    places = between(prefix, 0, begin, end)
    tr.add_write_conflict_range(*places)
    tr.add_read_conflict_range(*places)
    tr.add_read_conflict_range(*between(prefix, 1, begin, end))
    if seen > 0:
        tr.add_write_conflict_range(*between(prefix, 1, 0, seen))
        tr.add_read_conflict_range(*between(prefix, 0, 0, seen))


class Slots:
    """The slots of one queue, which enforce its concurrency limit.

    Each claimed item holds one. A claim conflicts with the release of a slot only if it saw no free
    one.
    """

    def __init__(self, items: Items, randrange: RandRange) -> None:
        layout = self._layout = items.layout
        self._randrange = randrange
        self._rate = items.rate
        self._counter = layout.slots + layout.slot_of_queue

    def admit(
        self, tr: Transaction, now: int, n: int, options: Options, first: First
    ) -> Sequence[StoredItem]:
        """Return up to `n` (at least 1) first items that may be claimed; none while paused."""
        if options.paused:
            return []
        if options.rate is not None:
            n = self._rate.room(tr, now, options, n)
        if options.concurrency is not None and n:
            left = max(0, options.concurrency - self._taken(tr))
            if not left:  # conflict with operations that free a slot
                tr.add_read_conflict_key(self._counter)
            n = min(n, left)
        return first(n) if n else []

    def hold(self, tr: Transaction, now: int, options: Options, n: int) -> tuple[bytes, ...]:
        """Take slots for `n` admitted items; return the slots of each."""
        if options.rate is not None:
            self._rate.note(tr, now, options, n)
        if options.concurrency is None or n == 0:
            return ()
        places = self._layout.slot_places + self._layout.slot_of_queue
        take_places(tr, places, self._taken(tr), options.concurrency, n, self._randrange)
        return (self._layout.slot_of_queue,)

    def _taken(self, tr: Transaction) -> int:
        return decode_count(tr.snapshot[self._counter].value)
