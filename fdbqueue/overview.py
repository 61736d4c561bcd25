"""All named queues at a glance: for a dashboard, for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.database import first_greater_or_equal, is_database, run
from fdbqueue.directory import subspaces
from fdbqueue.layout import Layout, decode_count

__all__ = ["QueueStatus", "overview"]

_MOST_LEVELS = 100  # of which the oldest item is looked for


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How a queue is at one moment.

    `counts` is how many items each priority has, `came` and `went` how many ever came into the
    queue and went, `oldest` when the oldest item was pushed: `None` if there is none, or it was
    pushed by another client.
    """

    name: str
    size: int
    counts: dict[Any, int]
    came: int
    went: int
    oldest: datetime | None


def overview(tr: Any) -> list[QueueStatus]:
    """How all named queues are, in order of their names.

    Snapshot reads. Cost: a range read of the names, and for each queue that of its counters and a
    key of each priority, of at most 100; items are not read.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x", 5)
    >>> [(status.name, status.size, status.counts) for status in overview(db)]
    [('mail', 1, {5: 1})]
    """
    found = subspaces(tr).items()
    if is_database(tr):
        return [run(tr, partial(_status, name=name, subspace=where)) for name, where in found]
    return [_status(tr, name, where) for name, where in found]


def _status(tr: Any, name: str, subspace: Subspace) -> QueueStatus:
    layout = Layout(subspace)
    came, went = tr.snapshot[layout.came], tr.snapshot[layout.went]
    levels = {
        layout.counted_level(row.key): decode_count(row.value)
        for row in tr.snapshot.get_range(*layout.range_of(layout.counts))
    }
    begins = [first_greater_or_equal(level + b"\x00", 0) for level in [*levels][:_MOST_LEVELS]]
    firsts = [tr.snapshot.get_key(begin) for begin in begins]
    first_id = tr.snapshot.get_key(first_greater_or_equal(layout.ids + b"\x00", 0))
    times = [
        layout.pushed_at(first.value)
        for first, level in zip(firsts, levels)
        if layout.is_place(first.value, level)
    ]
    times.append(layout.time_of_id(first_id.value))
    counted = decode_count(came.value), decode_count(went.value)
    return QueueStatus(
        name,
        max(0, counted[0] - counted[1]),
        {layout.priority_of(level): count for level, count in levels.items() if count > 0},
        *counted,
        min((time for time in times if time is not None), default=None),
    )
