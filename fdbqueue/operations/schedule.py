"""Time-dependent changes: leases expire, delayed items become available, items expire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple

from fdbqueue.layout import (
    ONE,
    ClaimedItem,
    Layout,
    decode_claim,
    decode_lease,
    decode_metadata,
    decode_options,
    encode_claim,
    header_of,
    with_header,
)
from fdbqueue.operations.dead_letters import DeadLetters
from fdbqueue.operations.items import Items
from fdbqueue.types import KeyValue, Options, ReadTransaction, Transaction

__all__ = ["MAX_SWEPT", "VERSIONS", "Schedule", "Swept", "retry_delay"]

VERSIONS = 1_000_000
"""The approximate number of read versions per second."""

_FOREIGN_LOOK = 10_000  # milliseconds between looks for leases of another cluster

_MAX_SWEPT = 32  # timers of each kind per round
_ROUNDS = 8  # rounds per transaction
MAX_SWEPT = _MAX_SWEPT * _ROUNDS
"""The maximum number of items of each kind that one transaction sweeps."""


_FIRST_DELAY, _MAX_DELAY = 1.0, 3600.0  # seconds after the first failure, and after many


def retry_delay(failures: int, uniform: Callable[[float, float], float]) -> float:
    """Return the seconds before an item that failed this often becomes available again.

    >>> retry_delay(1, max), retry_delay(1, min), retry_delay(1000, max)
    (1.0, 0.5, 3600.0)
    """
    delay = min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** (min(failures, 100) - 1))
    return delay * uniform(0.5, 1.0)


class Swept(NamedTuple):
    """The progress of a sweep.

    Attributes:
        all: Whether all timers that were due are done.
        expired: Whether all expired items are deleted.
        wrote: Whether the sweep wrote anything.
        had_timers: Whether there was a timer, due or not. Then the queue is marked as scheduled.
    """

    all: bool
    expired: bool
    wrote: bool
    had_timers: bool


class Schedule:
    """The timers of one queue, and its stored options.

    No dedicated process runs the schedule. A client that takes items first sweeps: it releases
    expired leases, makes due items available and deletes expired ones. One sweep moves up to 256
    items of each kind. If more are due, items become available in the order of their due times, and
    available items are taken in the order of the queue. So an available item may be taken before an
    item of a lower priority that became due later. An expired item is never taken, because it is
    deleted first.

    A lease ends when it is over by the versions of the database and by the clock of the client that
    sweeps. A recovery advances the versions by a hundred seconds' worth, so the clock has to agree;
    clocks differ, so the versions have to agree. A lease that is over by its version only gets a
    new version for its end: the time that the clock leaves, at most its length. So does a lease
    whose version lies further ahead than its length: the queue was restored from the backup of
    another cluster, whose versions were higher.
    """

    def __init__(self, layout: Layout, items: Items, dead_letters: DeadLetters) -> None:
        self._layout = layout
        self._items = items
        self._timers = [*map(layout.range_of, (layout.leases, layout.dues, layout.expiries))]
        self._dead_letters = dead_letters
        self.max_attempts: int | None = None  # as read by the last claim
        self._foreign_look = 0  # the time of the last look for leases of another cluster

    def options(self, tr: ReadTransaction) -> Options | None:
        """Return the options of the queue; `None` before its first push."""
        stored = tr.get(self._layout.options).value
        return None if stored is None else decode_options(stored)

    def is_paused(self, tr: Transaction) -> bool:
        """Return whether the queue is paused."""
        options = self.options(tr)
        return options is not None and options.paused

    def sweep(self, tr: Transaction, now: int) -> Swept:
        """Release expired leases, make due items available and delete expired ones.

        Items that were due first become available first. The sweep moves at most 256 items of each
        kind, so that the transaction has room for them. It conflicts with any claim,
        acknowledgement, pop or sweep of the same items.
        """
        wrote = had_timers = False
        # A try of the transaction that fails after this has looked in vain; the next look helps.
        if abs(now - self._foreign_look) >= _FOREIGN_LOOK:
            self._foreign_look = now
            wrote = self._sweep_foreign_leases(tr, now)
        for _ in range(_ROUNDS):
            # The next round finds expired items among those that just became available.
            swept, has_timers = self._sweep(tr, now)
            had_timers = had_timers or has_timers
            if swept == 0:
                return Swept(all=True, expired=True, wrote=wrote, had_timers=had_timers)
            wrote = True
        layout = self._layout
        expiries = tr.snapshot.get_range(*layout.range_of(layout.expiries), limit=1)
        times = [layout.unpack_timer_key(layout.expiries, row.key)[0] for row in expiries]
        expired = all(time > now for time in times)
        return Swept(all=False, expired=expired, wrote=wrote, had_timers=had_timers)

    def _sweep(self, tr: Transaction, now: int) -> tuple[int, bool]:
        """Do one round; return how many timers were due, and whether there were any at all."""
        layout = self._layout
        # Start all reads before waiting for the first.
        begin_read = partial(tr.snapshot.get_range, limit=_MAX_SWEPT)
        leases, dues, expiries = list(starmap(begin_read, self._timers))
        swept, has_timers = 0, False
        for row in leases:
            has_timers = True
            end, position = layout.unpack_timer_key(layout.leases, row.key)
            if end > tr.get_read_version().wait():
                break
            self._end_lease(tr, row, now)
            swept += 1
        for row in dues:
            has_timers = True
            due, position = layout.unpack_timer_key(layout.dues, row.key)
            if due > now:
                break
            self._make_available(tr, due, position)
            swept += 1
        for row in expiries:
            has_timers = True
            expires, position = layout.unpack_timer_key(layout.expiries, row.key)
            if expires > now:
                break
            self._expire(tr, row.key, layout.items + position)
            swept += 1
        return swept, has_timers

    def _sweep_foreign_leases(self, tr: Transaction, now: int) -> bool:
        """End or renew leases whose versions are those of another cluster; return if any were."""
        leases = self._layout.leases
        swept = False
        for row in tr.snapshot.get_range(*self._timers[0], limit=_MAX_SWEPT, reverse=True):
            end = self._layout.unpack_timer_key(leases, row.key)[0]
            lease = decode_lease(row.value)
            ahead = end - tr.get_read_version().wait()
            if lease is not None and ahead > lease[0] * VERSIONS // 1000:
                self._end_lease(tr, row, now)
                swept = True
        return swept

    def _end_lease(self, tr: Transaction, timer: KeyValue, now: int) -> None:
        """End a lease that is over by its version, or renew it if it is not over by the clock."""
        layout = self._layout
        tr.clear(timer.key)
        end, position = layout.unpack_timer_key(layout.leases, timer.key)
        stored = tr[layout.claims + position].value
        item = None if stored is None else decode_claim(stored)
        if item is None or item.lease_end != end:
            return
        length, clock_end = decode_lease(timer.value) or (0, 0)
        left = min(length, clock_end - now)
        if left > 0:
            end = tr.get_read_version().wait() + left * VERSIONS // 1000
            self.store_claim(tr, position, item._replace(lease_end=end), timer.value)
            return
        self._items.unpark(tr, layout.claims, position)
        self.free_slots(tr, item.slots)
        self.return_failed(tr, position, item.delivery_count, item.value, now, "its lease ran out")

    def store_claim(
        self, tr: Transaction, position: bytes, item: ClaimedItem, lease: bytes
    ) -> None:
        """Store a claimed item, and the timer of its lease with this value."""
        layout = self._layout
        self._items.park(tr, layout.claims, position, encode_claim(item))
        tr[layout.timer_key(layout.leases, item.lease_end, position)] = lease

    def _make_available(self, tr: Transaction, due: int, position: bytes) -> None:
        stored = tr[self._layout.delayed + position].value
        self._items.undelay(tr, position, due)
        if stored is not None:
            self._items.insert(tr, self._layout.items + position, decode_metadata(stored)[1])

    def _expire(self, tr: Transaction, timer: bytes, key: bytes) -> None:
        tr.clear(timer)
        stored = tr[key].value
        if stored is not None:
            self._items.take(tr, self._items.levels.item(key, stored))
            tr.add(self._layout.total_expired, ONE)

    def free_slots(self, tr: Transaction, slots: Sequence[bytes]) -> None:
        """Free slots, and wake the clients that wait for a free slot."""
        for slot in slots:
            tr.clear(self._layout.slots + slot)
        if slots:
            tr.add(self._layout.wake_counter, ONE)

    def return_failed(
        self,
        tr: Transaction,
        position: bytes,
        delivery_count: int,
        value: bytes,
        now: int,
        error: str | None,
        due: int | None = None,
    ) -> None:
        """Return a failed item to its position, now or when due, or make it a dead letter."""
        options = self.options(tr.snapshot)
        max_attempts = None if options is None else options.max_attempts
        if max_attempts is not None and delivery_count >= max_attempts:
            self._dead_letters.add(
                tr, position, value, attempts=delivery_count, now=now, error=error
            )
            return
        header, payload = header_of(value)
        value = with_header(header._replace(attempts=delivery_count), payload)
        self._items.requeue(tr, position, value, due)
