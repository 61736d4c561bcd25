"""A tuple as priority: tasks by urgency, then deadline, then cost, then time of arrival.

FoundationDB's tuple layer packs tuples so that their bytes are in the order of the tuples: what is
urgent comes first, of that what is due first, of that what is cheapest. So the order of the tasks
is the order of the keys (rank, count, random), and nothing is ever sorted: a push writes one key,
and a pop takes the first. `count` is one more than that of the last task of the same rank, by a
snapshot read, so that pushes do not conflict. What has no deadline has an infinite one.

    python -m recipes.deadline_queue
"""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue


class DeadlineQueue:
    """Tasks in a subspace; values are bytes."""

    def __init__(self, subspace: Subspace) -> None:
        self._tasks = subspace["tasks"]

    @fdbqueue.transactional
    def push(
        self,
        tr: Any,
        value: bytes,
        urgency: int,
        deadline: datetime | None = None,
        cost: float = 0,
    ) -> None:
        """Put a task into its place; the lowest urgency comes first."""
        due = math.inf if deadline is None else deadline.timestamp()
        same_rank = self._tasks[urgency][float(due)][float(cost)]
        whole = same_rank.range()
        count = 0
        for last in tr.snapshot.get_range(whole.start, whole.stop, limit=1, reverse=True):
            count = same_rank.unpack(last.key)[0] + 1
        tr[same_rank.pack((count, os.urandom(16)))] = value

    @fdbqueue.transactional
    def pop(self, tr: Any) -> bytes | None:
        """Take the first task; `None` if there is none."""
        whole = self._tasks.range()
        for first in tr.get_range(whole.start, whole.stop, limit=1):
            del tr[first.key]
            value: bytes = first.value
            return value
        return None


if __name__ == "__main__":
    db = fdbqueue.open("memory:")
    tasks = DeadlineQueue(Subspace(("tasks",)))
    for hour, cost in [(14, 5.0), (16, 3.0), (14, 1.0)]:
        due = datetime(2030, 1, 1, hour, tzinfo=UTC)
        tasks.push(db, f"due at {hour}:00, costs {cost:g}".encode(), 3, due, cost)
    tasks.push(db, b"urgent, some time", 1)
    while (value := tasks.pop(db)) is not None:
        print(value.decode())
