"""The state of all named queues at a glance, for dashboards and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import first_greater_or_equal
from fdbqueue.database.pages import read_pages, read_ranges
from fdbqueue.layout import (
    NAMES,
    Counters,
    Layout,
    counters_range,
    decode_name,
    decode_subspace,
    name_key,
)
from fdbqueue.operations.items import State
from fdbqueue.queue.arguments import validate_number
from fdbqueue.types import Database, Key, KeyValue, ReadTransaction, ReadTransactor

__all__ = ["QueueStatus", "count_not_waiting", "overview", "read_queues"]

_MAX_LEVELS = 100  # of which the oldest item is looked for

_MAX_COUNTERS = 10_000
"""How many counters one transaction reads, but at least all of one queue."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The state of a queue at one moment.

    Attributes:
        name: The name of the queue.
        size: The number of items, delayed items included.
        counts: The number of waiting items of each priority.
        total_in: The number of items ever pushed or returned to the queue.
        total_out: The number of items ever popped, claimed or otherwise removed from it.
        oldest: The time at which the oldest item was pushed; `None` if there is none, or if another
            implementation of the recipe pushed it.
    """

    name: str
    size: int
    counts: dict[Any, int]
    total_in: int
    total_out: int
    oldest: datetime | None

    @property
    def is_empty(self) -> bool:
        """Tell whether no item is waiting or delayed."""
        return not self.size and not self.counts


def overview(tr: ReadTransactor, *, after: str | None = None, limit: int = 0) -> list[QueueStatus]:
    """Return the state of all named queues, in order of their names, or of a page of them.

    Uses snapshot reads, which conflict with nothing. Given a database, queues are read in pages of
    up to 1,024, each in a transaction of its own. Cost: for each page one range read of the names.
    Neighbouring queues that hold little share a read of their counters, up to 50 of them; other
    queues have a read each. A queue that is not empty takes another read, and one for each
    priority, for up to 100 priorities. A page ends early with the queue that reaches 10,000
    counters, so that a transaction ends within its five seconds. Items are not decoded.

    Args:
        tr: A transaction or a database.
        after: A name, of a queue or not: only queues whose names follow it.
        limit: The maximum number of queues, 0 for all.

    Raises:
        InvalidQueueName: A queue cannot have the name `after`.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> for name in ["jobs", "mail"]:
        ...     _ = fdbqueue.PriorityQueue.named(db, name).push(db, "x", 5)
        >>> [(status.name, status.size, status.counts) for status in overview(db, limit=1)]
        [('jobs', 1, {5: 1})]
        >>> [status.name for status in overview(db, after="jobs")]
        ['mail']
    """
    return read_queues(tr, _statuses, after, limit)


def _statuses(tr: ReadTransaction, page: dict[str, Subspace]) -> list[QueueStatus]:
    """Return the state of the first queues of a page: as many as a transaction ought to read."""
    begun: list[Callable[[], QueueStatus]] = []
    left = _MAX_COUNTERS
    counters = read_ranges(tr, [counters_range(subspace) for subspace in page.values()])
    for (name, subspace), rows in zip(page.items(), counters):
        begun.append(_begin_status(tr, name, subspace, Counters.of(subspace, rows)))
        left -= len(rows)
        if left <= 0:
            break
    return [status() for status in begun]


def _begin_status(
    tr: ReadTransaction, name: str, subspace: Subspace, counters: Counters
) -> Callable[[], QueueStatus]:
    """Start to read what the counters of a queue leave open about its state.

    Returns:
        A function that waits for the reads and returns the state.
    """
    levels, total_in, total_out = counters
    size = max(0, counters.size)
    if not levels and not size:  # an idle queue, of which there may be very many
        return lambda: QueueStatus(name, 0, {}, total_in, total_out, None)
    layout = Layout(subspace)
    counts = {layout.unpack_level_prefix(prefix): n for prefix, n in levels.items() if n > 0}
    # All items of a FIFO queue are in one level, which has no counter.
    oldest = _begin_oldest(tr, layout, list(islice(levels, _MAX_LEVELS)) or [layout.items])
    return lambda: QueueStatus(name, size, counts, total_in, total_out, oldest())


def _begin_oldest(
    tr: ReadTransaction, layout: Layout, levels: list[bytes]
) -> Callable[[], datetime | None]:
    """Start to read the first key of some levels, and of the ids of tasks.

    Returns:
        A function that waits for the reads and returns when the oldest item was pushed.
    """

    def first(prefix: bytes) -> Key:
        return tr.get_key(first_greater_or_equal(prefix + b"\x00", 0))

    firsts = [(prefix, first(prefix)) for prefix in levels]
    first_id = first(layout.ids)

    def oldest() -> datetime | None:
        times = [
            layout.pushed_at(first.value)
            for prefix, first in firsts
            if layout.is_item_key(first.value, prefix)
        ]
        times.append(layout.task_pushed_at(first_id.value))
        return min((time for time in times if time is not None), default=None)

    return oldest


_T = TypeVar("_T")

_PAGE = 1024
"""How many queues one transaction reads at most."""


def read_queues(
    tr: ReadTransactor,
    read: Callable[[ReadTransaction, dict[str, Subspace]], list[_T]],
    after: str | None = None,
    limit: int = 0,
) -> list[_T]:
    """Read something of all named queues, or of a page, in order of the names, by snapshot reads.

    `read(tr, page)` reads it of the first of some queues, at least of one. Given a database, each
    call has its own transaction. A queue that is renamed meanwhile may be read twice, or not at
    all.
    """

    def page(tr: ReadTransaction, rows: list[KeyValue]) -> list[_T]:
        return read(tr, {decode_name(row.key): decode_subspace(row.value) for row in rows})

    names = NAMES.range()
    begin = names.start if after is None else name_key(after) + b"\x00"
    limit = validate_number(limit, "limit", noun="queues")
    pages = read_pages(
        tr, begin, names.stop, page, size=_PAGE, limit=limit, is_snapshot=True, taken=len
    )
    return list(chain.from_iterable(pages))


_ROWS = 1000  # rows that one transaction counts


def count_not_waiting(db: Database, layout: Layout) -> dict[State, int]:
    """Count the delayed, claimed and dead items, which are not among the waiting ones.

    Cost: a scan, in transactions of 1,000 items each; the values of dead letters are read.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> item = jobs.push(db, "send", delay=60)
        >>> count_not_waiting(db, Layout(jobs.subspace))
        {'delayed': 1, 'claimed': 0, 'dead': 0}
    """
    # Of delayed and claimed items an index is read, which has no values.
    return {
        "delayed": _count_rows(db, *layout.range_of(layout.dues)),
        "claimed": _count_rows(db, *layout.range_of(layout.leases)),
        "dead": _count_rows(db, *layout.range_of(layout.dead)),
    }


def _count_rows(db: Database, begin: bytes, end: bytes) -> int:
    pages = read_pages(db, begin, end, lambda _, rows: len(rows), size=_ROWS, is_snapshot=True)
    return sum(pages)
