"""Time-dependent changes: leases expire, delayed items become available, items expire."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple, TypeAlias

from fdbqueue.layout import (
    MINUS_ONE,
    ONE,
    ZERO,
    ClaimedItem,
    Layout,
    Lease,
    decode_attempt,
    decode_claim,
    decode_lease,
    decode_metadata,
    decode_options,
    encode_attempt,
    encode_claim,
    encode_metadata,
    header_of,
    with_header,
)
from fdbqueue.layout.values import utc_time
from fdbqueue.operations.items import WANT_ALL, Items, LocatedItem, ReturnedItem
from fdbqueue.operations.waiters import Waiters
from fdbqueue.types import (
    FailedAttempt,
    KeySelector,
    KeyValue,
    Options,
    ReadTransaction,
    Transaction,
)

__all__ = [
    "LEASE_OVER",
    "MAX_KEPT_ATTEMPTS",
    "MAX_SWEPT",
    "MAX_TRACEBACK",
    "VERSIONS",
    "FailedItem",
    "Schedule",
    "Swept",
    "begin_attempts",
    "retry_delay",
    "text_end",
]

VERSIONS = 1_000_000
"""The approximate number of read versions per second."""

_FOREIGN_LOOK = 10_000  # milliseconds between looks for leases of another cluster

MAX_KEPT_ATTEMPTS = 1_000
"""How many failed attempts of an item a queue may keep."""

MAX_TRACEBACK = 30_000
"""How many bytes of a traceback a queue may keep: a claim of some 300 items may fail with one."""

_NO_OPTIONS = Options("", "", None, None)  # those of a queue before its first push

LEASE_OVER = "its lease ran out"
"""The error of an attempt whose lease has ended."""

_FEW = 32
MAX_SWEPT = 256
"""The maximum number of items of each kind that one transaction sweeps."""


_FIRST_DELAY, _MAX_DELAY = 1.0, 3600.0  # seconds after the first failure, and after many


def retry_delay(failures: int, uniform: Callable[[float, float], float]) -> float:
    """Return the seconds before an item that failed this often becomes available again.

    >>> retry_delay(1, max), retry_delay(1, min), retry_delay(1000, max)
    (1.0, 0.5, 3600.0)
    """
    delay = min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** (min(failures, 100) - 1))
    return delay * uniform(0.5, 1.0)


def text_end(text: str, size: int) -> str:
    """Return the end of a text, up to this many bytes in UTF-8.

    >>> text_end("Grüße", 4)
    'ße'
    """
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded[max(0, len(encoded) - size) :].decode(errors="ignore")


def begin_attempts(
    tr: ReadTransaction, layout: Layout, position: bytes
) -> Callable[[], list[FailedAttempt]]:
    """Start to read the failed attempts of the item at a position, the oldest first."""
    rows = tr.get_range(*layout.attempts_range(position))

    def finish() -> list[FailedAttempt]:
        attempts: list[FailedAttempt] = []
        for row in rows:
            ended_at, client, error, traceback = decode_attempt(row.value)
            number = layout.unpack_attempt_key(row.key)[1]
            attempts.append(FailedAttempt(number, utc_time(ended_at), client, error, traceback))
        return attempts

    return finish


def begin_last_error(
    tr: ReadTransaction, layout: Layout, position: bytes
) -> Callable[[], str | None]:
    """Start to read the error of the last failed attempt of the item at a position."""
    rows = tr.get_range(*layout.attempts_range(position), limit=1, reverse=True)
    return lambda: next((decode_attempt(row.value)[2] for row in rows), None)


class Swept(NamedTuple):
    """The progress of a sweep.

    Attributes:
        all: Whether nothing that was due is left.
        expired: Whether all expired items are deleted.
        wrote: Whether the sweep wrote anything.
    """

    all: bool
    expired: bool
    wrote: bool


class FailedItem(NamedTuple):
    """A claimed item whose processing failed.

    Attributes:
        position: Its position.
        value: Its value.
        attempts: How often it was claimed.
        due: When it becomes available again, in milliseconds since 1970; `None` for now.
        client: The name of the client that had claimed it.
    """

    position: bytes
    value: bytes
    attempts: int
    due: int | None
    client: str


Begin: TypeAlias = Callable[[bytes], bytes | KeySelector]
"""Where to begin to read timers, given the first key of their range."""


class Schedule:
    """The timers of one queue, and its stored options.

    No dedicated process runs the schedule. A client that takes items first sweeps: it releases
    expired leases, makes due items available and deletes expired ones. One sweep moves up to 256
    items of each kind. If more are due, about those that were due first become available first, and
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

    def __init__(self, layout: Layout, items: Items) -> None:
        self._layout = layout
        self._items = items
        self._waiting_claims = Waiters(layout, layout.waiting_claims)
        # As read by the last claim.
        self.max_attempts: int | None = None
        self.keeps_done: bool | None = None
        self.may_have_done = False
        self._foreign_look = 0  # the time of the last look for leases of another cluster

    def options(self, tr: ReadTransaction) -> Options | None:
        """Return the options of the queue; `None` before its first push."""
        return self.begin_options(tr)()

    def begin_options(self, tr: ReadTransaction) -> Callable[[], Options | None]:
        """Start to read the options; return a function that waits for them."""
        read = tr.get(self._layout.options)

        def finish() -> Options | None:
            return None if read.value is None else decode_options(read.value)

        return finish

    def note_options(self, options: Options) -> None:
        """Note the options that a claim has read."""
        self.max_attempts = options.max_attempts
        self.keeps_done = options.keeps_done
        self.may_have_done = (options.keep_seconds, options.keep_number) != (None, None)

    def is_paused(self, tr: Transaction) -> bool:
        """Return whether the queue is paused."""
        options = self.options(tr)
        return options is not None and options.paused

    def note_limit(self, tr: Transaction) -> None:
        """Let clients check the limits from now on, and wake those that wait."""
        tr[self._layout.scheduled] = b""
        tr.add(self._layout.wake_counter, ONE)
        self._items.waiters.wake_all(tr)

    def sweep(self, tr: Transaction, now: int, begin: Begin | None = None) -> Swept:
        """Release expired leases, make due items available and delete expired ones.

        The sweep moves at most 256 items of each kind, so that the transaction has room for them.
        It conflicts with any claim, acknowledgement, pop or sweep of the same items.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            begin: Where to begin; by default with the items that were due first.
        """
        version = tr.get_read_version().wait()
        begin_sweep = partial(self.begin_sweep, tr, now, version, may_leave=False)
        if begin is not None:
            swept = begin_sweep(MAX_SWEPT, begin=begin)()
            if swept.wrote:
                return swept._replace(all=False)
        few = begin_sweep(_FEW)()
        if few.all:
            return few
        rest = begin_sweep(MAX_SWEPT - _FEW)()
        return rest._replace(wrote=True)

    def sweep_few(self, tr: Transaction, now: int) -> Swept:
        """Sweep as `sweep` does if few items are due. If many are, only delete expired ones.

        Clients that take items at the same time would all conflict on the same due items.
        """
        return self.begin_sweep(tr, now, tr.get_read_version().wait())()

    def begin_sweep(
        self,
        tr: Transaction,
        now: int,
        version: int,
        limit: int = _FEW,
        *,
        begin: Begin | None = None,
        may_leave: bool = True,
    ) -> Callable[[], Swept]:
        """Start the reads of a sweep; return a function that waits for them and sweeps.

        From time to time, this looks for leases of another cluster first, and ends them.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            version: The read version of the transaction.
            limit: The maximum number of items of each kind.
            begin: Where to begin; by default with the items that were due first.
            may_leave: Whether to leave leases and due items, as `sweep_few` does, if there are as
                many as the limit.
        """
        wrote = False
        # A try of the transaction that fails after this has looked in vain; the next look helps.
        if abs(now - self._foreign_look) >= _FOREIGN_LOOK:
            self._foreign_look = now
            wrote = self._sweep_foreign_leases(tr, now)
        # Read only what is due: a queue may have very many timers.
        due = self._layout.due_timers(version, now)
        # Start all reads before waiting for the first.
        begin_read = partial(tr.snapshot.get_range, limit=limit, streaming_mode=WANT_ALL)
        starts = due if begin is None else [(begin(first), end) for first, end in due]
        reads = [*starmap(begin_read, starts)]

        def finish() -> Swept:
            leases, dues, expiries = map(list, reads)
            if begin is not None:
                # A selector skips any keys, so the rows may begin with keys behind the end.
                leases, dues, expiries = (
                    [row for row in rows if row.key < end]
                    for rows, (_, end) in zip((leases, dues, expiries), due)
                )
            is_all = len(leases) < limit and len(dues) < limit
            moves = bool(leases or dues) and (is_all or not may_leave)
            if moves:
                self._end_leases(tr, leases, now)
                self._make_available(tr, dues, now)
                # There may be expired items among those that just became available.
                expiries = list(begin_read(*due[2]))
            if expiries:
                self._expire(tr, expiries, now)
            return Swept(
                all=is_all and len(expiries) < limit,
                expired=len(expiries) < limit,
                wrote=wrote or moves or bool(expiries),
            )

        return finish

    def find(self, tr: Transaction, reference: bytes, now: int) -> LocatedItem | None:
        """Return the item with this reference; `None` if it ended.

        If its lease or its delay is over, or if it has expired, sweep it alone first. So an
        operation on a single item finds it in the state that views show.
        """
        return self._swept(tr, now, lambda: self._items.find(tr, reference))

    def find_at(self, tr: Transaction, position: bytes, now: int) -> LocatedItem | None:
        """Return the item at this position as `find` does."""
        return self._swept(tr, now, lambda: self._items.at(tr, position))

    def _swept(
        self, tr: Transaction, now: int, find: Callable[[], LocatedItem | None]
    ) -> LocatedItem | None:
        layout = self._layout
        sweep: Callable[[Transaction, list[KeyValue], int], None]
        found = find()
        for _ in range(2):  # a claimed or delayed item becomes ready, and then expires
            if found is None:
                return None
            position, expires = layout.position(found.key), found.item.header.expires
            if found.state == "claimed" and found.metadata[1] <= tr.get_read_version().wait():
                index, when, sweep = layout.leases, found.metadata[1], self._end_leases
            elif found.state == "delayed" and found.metadata[0] <= now:
                index, when, sweep = layout.dues, found.metadata[0], self._make_available
            elif found.state == "ready" and expires is not None and expires <= now:
                index, when, sweep = layout.expiries, expires, self._expire
            else:
                return found
            timer = layout.timer_key(index, when, position)
            sweep(tr, list(tr.get_range(timer, timer + b"\x00", limit=1)), now)
            found = find()
        return found

    @staticmethod
    def _clear_timers(tr: Transaction, timers: list[KeyValue]) -> None:
        """Clear timers that are next to each other.

        One range, because keys cleared one by one would slow down the next reader, which has to
        skip each of them. A timer that another client adds between them conflicts.
        """
        if len(timers) == 1:
            tr.clear(timers[0].key)
        elif timers:
            begin, end = timers[0].key, timers[-1].key + b"\x00"
            tr.add_read_conflict_range(begin, end)
            tr.clear_range(begin, end)

    def _sweep_foreign_leases(self, tr: Transaction, now: int) -> bool:
        """End or renew leases whose versions are those of another cluster; return if any were."""
        leases = self._layout.leases
        swept = False
        for row in tr.snapshot.get_range(*self._layout.range_of(leases), limit=_FEW, reverse=True):
            end = self._layout.unpack_timer_key(leases, row.key)[0]
            lease = decode_lease(row.value)
            ahead = end - tr.get_read_version().wait()
            if lease is not None and ahead > lease.length * VERSIONS // 1000:
                self._end_leases(tr, [row], now)
                swept = True
        return swept

    def _end_leases(self, tr: Transaction, timers: list[KeyValue], now: int) -> None:
        """End leases that are over by their versions, and renew those not over by the clock."""
        layout = self._layout
        ends = [layout.unpack_timer_key(layout.leases, timer.key) for timer in timers]
        # Start all reads before waiting for the first.
        claims = [tr[layout.claims + position] for _, position in ends]
        failed: list[FailedItem] = []
        self._clear_timers(tr, timers)
        for timer, (end, position), claim in zip(timers, ends, claims):
            item = None if claim.value is None else decode_claim(claim.value)
            if item is None or item.lease_end != end:
                continue
            lease = decode_lease(timer.value) or Lease(0, 0)
            left = lease.left(now)
            if left > 0:
                end = tr.get_read_version().wait() + left * VERSIONS // 1000
                self.store_claim(tr, position, item._replace(lease_end=end), timer.value)
            else:
                self._items.unpark(tr, layout.claims, position)
                self.free_slots(tr, item.slots)
                count, client = item.delivery_count, lease.client
                failed.append(FailedItem(position, item.value, count, None, client))
        self.return_failed(tr, failed, now, LEASE_OVER)

    def store_claim(
        self, tr: Transaction, position: bytes, item: ClaimedItem, lease: bytes
    ) -> None:
        """Store a claimed item, and the timer of its lease with this value."""
        layout = self._layout
        self._items.park(tr, layout.claims, position, encode_claim(item))
        tr[layout.timer_key(layout.leases, item.lease_end, position)] = lease

    def _make_available(self, tr: Transaction, timers: list[KeyValue], _: int) -> None:
        layout = self._layout
        dues = [layout.unpack_timer_key(layout.dues, timer.key) for timer in timers]
        # Start all reads before waiting for the first.
        delayed = [tr[layout.delayed + position] for _, position in dues]
        n = 0
        self._clear_timers(tr, timers)
        for (due, position), stored in zip(dues, delayed):
            self._items.unpark(tr, layout.delayed, position)
            if stored.value is not None:
                header, content = header_of(decode_metadata(stored.value)[1])
                value = with_header(header._replace(since=due), content)
                self._items.insert(tr, layout.items + position, value)
                n += 1
        if n:
            self._items.tally(tr, delayed=-n)

    def _expire(self, tr: Transaction, timers: list[KeyValue], _: int) -> None:
        layout = self._layout
        keys = [
            layout.items + layout.unpack_timer_key(layout.expiries, timer.key)[1]
            for timer in timers
        ]
        # Start all reads before waiting for the first.
        items = [tr[key] for key in keys]
        n = 0
        self._clear_timers(tr, timers)
        for key, stored in zip(keys, items):
            if stored.value is not None:
                self._items.take(tr, self._items.levels.item(key, stored.value), None)
                n += 1
        if n:
            self._items.tally(tr, expired=n)

    def seconds_left(self, tr: Transaction, now: int) -> float:
        """Return the seconds until a lease ends or an item is due; `math.inf` without either."""
        layout = self._layout
        first = partial(tr.snapshot.get_range, limit=1)
        leases, dues = first(*layout.range_of(layout.leases)), first(*layout.range_of(layout.dues))
        left = math.inf
        for row in leases:
            end = layout.unpack_timer_key(layout.leases, row.key)[0]
            left = (end - tr.get_read_version().wait()) / VERSIONS
        for row in dues:
            due = layout.unpack_timer_key(layout.dues, row.key)[0]
            left = min(left, (due - now) / 1000)
        return max(0.0, left)

    def free_slots(self, tr: Transaction, slots: Sequence[bytes]) -> None:
        """Free slots, and wake the clients that wait for a free slot."""
        for slot in slots:
            counter = self._layout.slot_counter(slot)
            tr.add(counter, MINUS_ONE)
            tr.compare_and_clear(counter, ZERO)
        if slots:
            tr.add(self._layout.wake_counter, ONE)
            self._waiting_claims.wake(tr, len(slots))

    def return_failed(
        self,
        tr: Transaction,
        failed: list[FailedItem],
        now: int,
        error: str | None,
        traceback: str | None = None,
    ) -> None:
        """Return failed items to their positions, now or when due, or make them dead letters.

        The last failed attempts of an item are kept until it ends, as many as the options say.
        """
        if not failed:
            return
        options = self.options(tr.snapshot) or _NO_OPTIONS
        max_attempts, kept = options.max_attempts, options.kept_attempts
        if traceback is not None:
            traceback = text_end(traceback, options.traceback_bytes) or None
        returned: list[ReturnedItem] = []
        layout = self._layout
        for position, value, attempts, due, client in failed:
            attempt = encode_attempt(now, client, error, traceback)
            tr[layout.attempt_key(position, attempts)] = attempt
            if attempts > kept:
                begin, _ = layout.attempts_range(position)
                tr.clear_range(begin, layout.attempt_key(position, attempts - kept + 1))
            if max_attempts is not None and attempts >= max_attempts:
                self._layout.free_unique(tr, value)
                stored = encode_metadata((attempts, now, error), value)
                self._items.park(tr, self._layout.dead, position, stored)
            else:
                header, payload = header_of(value)
                value = with_header(header._replace(attempts=attempts, since=now), payload)
                returned.append(ReturnedItem(position, value, due))
        n, died = len(failed), len(failed) - len(returned)
        counts = {"returned": n, "failed": n, "retried": n - died, "died": died, "dead": died}
        self._items.requeue(tr, returned, **counts)
