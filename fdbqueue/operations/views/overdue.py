"""The items that the next sweep moves, because something is over or due."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field

from fdbqueue.layout.items import Counters
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    Lease,
    decode_claim,
    decode_expiry,
    decode_lease,
    decode_metadata,
    decode_options,
    header_of,
    with_header,
)
from fdbqueue.operations.items import WANT_ALL
from fdbqueue.operations.views.staged import begin_staged, ranges_by_life
from fdbqueue.types import KeyValue, Options, ReadTransaction


@dataclass(slots=True)
class Overdue:
    """The items that the next sweep moves, by their positions.

    Attributes:
        returned: Claimed items that become ready, because their leases are over.
        died: Claimed items that become dead letters, because it was the last attempt.
        due: Delayed items that become ready.
        staged: Items staged for the pop of a dead process: they become ready.
        expired: Ready items that have expired.
        ended: Claimed items that have expired.
        lapsed: Delayed items that have expired.
    """

    returned: list[bytes] = field(default_factory=list[bytes])
    died: list[bytes] = field(default_factory=list[bytes])
    due: list[bytes] = field(default_factory=list[bytes])
    staged: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    expired: set[bytes] = field(default_factory=set[bytes])
    ended: list[bytes] = field(default_factory=list[bytes])
    lapsed: list[bytes] = field(default_factory=list[bytes])

    @property
    def positions(self) -> list[bytes]:
        """The positions of the items that become ready."""
        return [*self.returned, *self.due, *(position for position, _ in self.staged)]

    @property
    def ready(self) -> int:
        """How many more items are ready than the counters say."""
        return len(self.positions) - len(self.expired)


def begin_overdue(
    tr: ReadTransaction,
    layout: Layout,
    options: Options | None,
    now: int,
    counters: Counters | None = None,
) -> Callable[[], Overdue]:
    """Start to read the timers that are over.

    Args:
        tr: A transaction.
        layout: The layout of the queue.
        options: The options of the queue.
        now: The time in milliseconds since 1970.
        counters: Its counters, if they are known: of what there is none, no timers are read.

    Returns:
        A function that waits for the reads and returns what is overdue.
    """
    version: int = tr.get_read_version().wait()
    max_attempts = None if options is None else options.max_attempts
    numbers = (1, 1, 1) if counters is None else with_timers(counters)
    reads: list[Iterable[KeyValue]] = [
        tr.get_range(*timers, streaming_mode=WANT_ALL) if number else ()
        for timers, number in zip(layout.due_timers(version, now), numbers)
    ]
    _, dead = ranges_by_life(layout, layout.results, version)
    staged = begin_staged(tr, layout, dead) if numbers[0] else ()

    def finish() -> Overdue:
        overdue = Overdue()
        leases, dues, expiries = reads
        for row in leases:
            _, position = layout.unpack_timer_key(layout.leases, row.key)
            lease = decode_lease(row.value) or Lease(0, 0)
            if lease.left(now) > 0:
                continue
            if lease.delivery_count == 0:  # a timer of an earlier release, or of a repair
                lease = _lease_of_claim(tr[layout.claims + position].value, lease)
            if max_attempts is not None and lease.delivery_count >= max_attempts:
                overdue.died.append(position)
            elif 0 < lease.expires <= now:
                overdue.ended.append(position)
            else:
                overdue.returned.append(position)
        for row in dues:
            _, position = layout.unpack_timer_key(layout.dues, row.key)
            expires = decode_expiry(row.value)
            if expires is not None and expires <= now:
                overdue.lapsed.append(position)
            else:
                overdue.due.append(position)
        for row in expiries:
            overdue.expired.add(layout.unpack_timer_key(layout.expiries, row.key)[1])
        for key, value in staged:
            expires = header_of(value)[0].expires
            if expires is not None and expires <= now:
                overdue.ended.append(layout.position(key))
            else:
                overdue.staged.append((layout.position(key), value))
        return overdue

    return finish


def _lease_of_claim(claim: bytes | None, lease: Lease) -> Lease:
    """Return a lease with what its timer does not know."""
    if claim is None:
        return lease
    item = decode_claim(claim)
    expires = header_of(item.value)[0].expires
    return lease._replace(delivery_count=item.delivery_count, expires=expires or 0)


def with_timers(counters: Counters) -> tuple[int, int, int]:
    """Return the numbers of items that have a lease, a delay, or a time to expire."""
    return counters.claimed, counters.tallies["delayed"], counters.tallies["expiring"]


def overdue_items(
    tr: ReadTransaction, layout: Layout, overdue: Overdue, positions: Container[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and the value of those items at these positions that become ready."""
    # Start all reads before waiting for the first.
    claims = [
        (position, tr[layout.claims + position])
        for position in overdue.returned
        if position in positions
    ]
    delayed = [
        (position, tr[layout.delayed + position])
        for position in overdue.due
        if position in positions
    ]
    for position, read in claims:
        if read.value is not None:
            item = decode_claim(read.value)
            header, content = header_of(item.value)
            header = header._replace(attempts=item.delivery_count)
            yield layout.items + position, with_header(header, content)
    for position, read in delayed:
        if read.value is not None:
            yield layout.items + position, decode_metadata(read.value)[1]
    for position, value in overdue.staged:
        if position in positions:
            yield layout.items + position, value


def stored_options(tr: ReadTransaction, layout: Layout) -> Options | None:
    """Return the options of the queue, which it has once it was pushed to."""
    stored = getattr(tr, "snapshot", tr).get(layout.options).value
    return None if stored is None else decode_options(stored)
