"""The items that the next sweep moves, because something is over or due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from fdbqueue.layout.items import Counters, StoredItem
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import decode_claim, decode_expiry, header_of, with_header
from fdbqueue.operations.items import Items, LocatedItem
from fdbqueue.operations.timers import (
    Fate,
    error_of_lease,
    fate_of_delay,
    fate_of_lease,
    fate_of_return,
    lease_of,
)
from fdbqueue.operations.views.staged import begin_staged, ranges_by_life
from fdbqueue.types import KeyValue, Options, ReadTransaction, State

_T = TypeVar("_T")


class Overdue(NamedTuple):
    """The items that the next sweep moves, by their positions.

    Attributes:
        fates: What it does to each of them.
        staged: The values of those of them that are staged for the pop of a dead process.
    """

    fates: dict[bytes, Fate]
    staged: dict[bytes, bytes]

    def leaving(self, state: State) -> set[bytes]:
        """Return the positions of the items that cease to be in a state."""
        return {position for position, fate in self.fates.items() if fate.before == state}

    def entering(self, state: State | None) -> list[bytes]:
        """Return the positions of the items that come into a state; `None` for those that end."""
        return [position for position, fate in self.fates.items() if fate.after == state]

    def change(self, state: State) -> int:
        """Return how many more items are in a state than are stored in it."""
        return len(self.entering(state)) - len(self.leaving(state))


NOTHING_OVERDUE = Overdue({}, {})


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
    numbers = (1, 1, 1) if counters is None else with_timers(counters)
    reads: list[Iterable[KeyValue]] = [
        tr.get_range(*timers, streaming_mode=WANT_ALL) if number else ()
        for timers, number in zip(layout.due_timers(version, now), numbers)
    ]
    _, dead = ranges_by_life(layout, layout.results, version)
    staged = begin_staged(tr, layout, dead) if numbers[0] else ()

    def finish() -> Overdue:
        overdue = Overdue({}, {})
        leases, dues, expiries = reads
        for row in leases:
            _, position = layout.unpack_timer_key(layout.leases, row.key)
            lease = lease_of(row.value)
            if lease.delivery_count == 0 and (claim := tr[layout.claims + position].value):
                lease = lease_of(row.value, decode_claim(claim))
            fate = fate_of_lease(lease, options, now)
            if fate is not None:
                overdue.fates[position] = fate
        for row in dues:
            _, position = layout.unpack_timer_key(layout.dues, row.key)
            if layout.is_position(position):
                overdue.fates[position] = fate_of_delay(decode_expiry(row.value), now)
        for row in expiries:
            _, position = layout.unpack_timer_key(layout.expiries, row.key)
            overdue.fates[position] = Fate.EXPIRED
        for key, value in staged:
            position = layout.position(key)
            overdue.fates[position] = fate_of_return(header_of(value)[0].expires, now)
            overdue.staged[position] = value
        return overdue

    return finish


def with_timers(counters: Counters) -> tuple[int, int, int]:
    """Return the numbers of items that have a lease, a delay, or a time to expire."""
    return counters.claimed, counters.tallies["delayed"], counters.tallies["expiring"]


def read_overdue(
    tr: ReadTransaction, items: Items, overdue: Overdue, positions: Iterable[bytes]
) -> Iterator[tuple[LocatedItem, Fate]]:
    """Yield the overdue items at some positions as they are stored, each with its fate."""
    layout, staged = items.layout, overdue.staged
    moves = [(position, overdue.fates[position]) for position in positions]
    # Start all reads before waiting for the first.
    reads = [
        (layout.items + position, fate, tr[layout.prefix_of[fate.before] + position])
        for position, fate in moves
        if position not in staged
    ]
    for key, fate, read in reads:
        if read.value is not None:
            yield items.located(fate.before, key, read.value), fate
    for position, fate in moves:
        if position in staged:
            item = items.levels.item(layout.items + position, staged[position])
            yield LocatedItem("claimed", item, item.header.attempts), fate


def after_timer(items: Items, found: LocatedItem, fate: Fate, now: int) -> LocatedItem | None:
    """Return an item as it is after its timer was over; `None` if it ended."""
    if fate.after == "dead":
        error = error_of_lease(found.item.header)
        return LocatedItem("dead", found.item, found.attempts, died_at=now, error=error)
    if fate.after is None:
        return None
    header = found.item.header._replace(attempts=found.attempts)
    value = with_header(header, found.item.content)
    return LocatedItem("ready", items.levels.item(found.key, value), found.attempts)


def corrections(
    tr: ReadTransaction,
    items: Items,
    overdue: Overdue,
    of: Callable[[ReadTransaction, StoredItem], _T],
) -> Counter[_T]:
    """Count the items that are ready although not stored so, less those that have expired.

    Args:
        tr: A transaction.
        items: The items of the queue.
        overdue: What is overdue.
        of: Returns what to count by.
    """
    positions = [*overdue.entering("ready"), *overdue.leaving("ready")]
    counts = Counter[_T]()
    for found, fate in read_overdue(tr, items, overdue, positions):
        counts[of(tr, found.item)] += 1 if fate.after == "ready" else -1
    return counts
