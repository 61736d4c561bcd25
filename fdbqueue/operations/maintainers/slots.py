"""Concurrency limits: how many items of a queue may be claimed at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.values import ONE, ZERO, decode_count, encode_count
from fdbqueue.operations.limits.places import Places
from fdbqueue.operations.transitions import Change
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import Options, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items

MAX_SLOTS = 10_000
"""The highest concurrency limit."""

First: TypeAlias = Callable[[Transaction, int], Sequence[StoredItem]]
"""A function that reads up to `n` first items in a transaction."""


class Slots:
    """The slots of one queue, which enforce its concurrency limit.

    A queue with a limit has as many slots as the limit allows, and a claimed item holds one of
    them. Only their number is stored; `Places` says how claims keep to the limit without
    conflicting with each other far from it. A claim conflicts with an acknowledgement that frees a
    slot only if it saw that none was free.

    Cost: a claim reads one counter, whatever the limit is.
    """

    def __init__(self, items: Items, places: Places) -> None:
        layout = self._layout = items.layout
        self._places = places
        self._rate = items.rate
        self._counter = layout.slots + layout.slot_of_queue
        self._waiting = Waiters(layout, layout.waiting_claims)

    def admit(
        self,
        tr: Transaction,
        now: int,
        n: int,
        options: Options | None,
        first: First,
    ) -> Sequence[StoredItem]:
        """Return up to `n` first items that may be claimed; none if the queue is paused.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            n: The maximum number of items, from 1.
            options: The options of the queue, as the transaction read them.
            first: Reads the first items.
        """
        if options is not None:
            if options.paused:
                return []
            if options.rate is not None:
                n = self._rate.room(tr, now, options, n)
            if options.concurrency is not None and n:
                left = max(0, options.concurrency - self._taken(tr))
                if not left:  # conflict with operations that free a slot
                    tr.add_read_conflict_key(self._counter)
                n = min(n, left)
        return first(tr, n) if n else []

    def hold(self, tr: Transaction, now: int, options: Options | None, n: int) -> tuple[bytes, ...]:
        """Note that the transaction claims `n` items that were admitted.

        Returns:
            The slots that each of them holds.
        """
        if options is not None and options.rate is not None:
            self._rate.note(tr, now, options, n)
        if options is None or options.concurrency is None or n == 0:
            return ()
        places = self._layout.slot_places + self._layout.slot_of_queue
        self._places.take(tr, places, self._taken(tr), options.concurrency, n)
        tr.add(self._counter, encode_count(n))
        return (self._layout.slot_of_queue,)

    def _taken(self, tr: Transaction) -> int:
        return decode_count(tr.snapshot[self._counter].value)

    def follow(self, tr: Transaction, now: int, changes: Sequence[Change]) -> None:
        """Free the slots of items, and wake the clients that wait for a free slot."""
        freed = Counter[bytes]()
        for _, before, after, _ in changes:
            if before is not None and (after is None or after.state != "claimed"):
                freed.update(before.slots)
        for slot, n in freed.items():
            counter = self._layout.slots + slot
            tr.add(counter, encode_count(-n))
            tr.compare_and_clear(counter, ZERO)
        if freed:
            tr.add(self._layout.wake_counter, ONE)
            self._waiting.wake(tr, freed.total())
