"""The state of all named queues at a glance, for dashboards and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import first_greater_or_equal
from fdbqueue.database.pages import read_pages
from fdbqueue.layout import NAMES, Layout, decode_count, decode_name, decode_subspace
from fdbqueue.operations.items import WANT_ALL, State
from fdbqueue.types import Database, KeyValue, ReadTransaction, ReadTransactor

__all__ = ["QueueStatus", "count_not_waiting", "overview", "read_queues"]

_MAX_LEVELS = 100  # of which the oldest item is looked for


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


def overview(tr: ReadTransactor) -> list[QueueStatus]:
    """Return the state of all named queues, in order of their names.

    Uses snapshot reads, which conflict with nothing. Given a database, queues are read in pages of
    200, each in a transaction of its own. Cost: for each page one range read of the names, and for
    each queue one of its counters and one key for each priority, for up to 100 priorities; the
    reads of a page run at the same time. Items are not read.

    Args:
        tr: A transaction or a database.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x", 5)
        >>> [(status.name, status.size, status.counts) for status in overview(db)]
        [('mail', 1, {5: 1})]
    """
    return read_queues(tr, _statuses)


def _statuses(tr: ReadTransaction, page: dict[str, Subspace]) -> list[QueueStatus]:
    # Every read is under way before the first is waited for; some depend on others.
    reads = [_Reads(tr, name, subspace) for name, subspace in page.items()]
    for queue_reads in reads:
        queue_reads.begin_firsts(tr)
    return [queue_reads.status() for queue_reads in reads]


class _Reads:
    """The reads of one queue, all under way at the same time."""

    def __init__(self, tr: ReadTransaction, name: str, subspace: Subspace) -> None:
        layout = self._layout = Layout(subspace)
        self._name = name
        self._total_in, self._total_out = tr[layout.total_in], tr[layout.total_out]
        self._counts = tr.get_range(*layout.range_of(layout.counts), streaming_mode=WANT_ALL)
        self._first_id = tr.get_key(first_greater_or_equal(layout.ids + b"\x00", 0))

    def begin_firsts(self, tr: ReadTransaction) -> None:
        """Start to read the first key of each priority."""
        prefix_of = self._layout.counted_level_prefix
        self._levels = {prefix_of(row.key): decode_count(row.value) for row in self._counts}
        self._firsts = [
            (prefix, tr.get_key(first_greater_or_equal(prefix + b"\x00", 0)))
            for prefix in islice(self._levels, _MAX_LEVELS)
        ]

    def status(self) -> QueueStatus:
        layout = self._layout
        times = [
            layout.pushed_at(first.value)
            for prefix, first in self._firsts
            if layout.is_item_key(first.value, prefix)
        ]
        times.append(layout.task_pushed_at(self._first_id.value))
        total_in, total_out = (
            decode_count(self._total_in.value),
            decode_count(self._total_out.value),
        )
        return QueueStatus(
            self._name,
            max(0, total_in - total_out),
            {layout.unpack_level_prefix(prefix): n for prefix, n in self._levels.items() if n > 0},
            total_in,
            total_out,
            min((time for time in times if time is not None), default=None),
        )


_T = TypeVar("_T")

_PAGE = 200
"""How many queues one transaction reads."""


def read_queues(
    tr: ReadTransactor, read: Callable[[ReadTransaction, dict[str, Subspace]], list[_T]]
) -> list[_T]:
    """Read something of all named queues, in order of the names, by snapshot reads.

    `read(tr, page)` reads it of some of them. Given a database, each page is its own
    transaction: a queue that is renamed meanwhile may be read twice, or not at all.
    """

    def page(tr: ReadTransaction, rows: list[KeyValue]) -> list[_T]:
        return read(tr, {decode_name(row.key): decode_subspace(row.value) for row in rows})

    names = NAMES.range()
    pages = read_pages(tr, names.start, names.stop, page, size=_PAGE, is_snapshot=True)
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
