"""What ended jobs leave behind."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker
from fdbqueue.jobs import Context

JOBS = 200


def plain(item: Any) -> None:
    """Do nothing."""


def with_context(context: Context) -> None:
    context.progress(0.5)


def in_transaction(tr: Any, item: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("handler", [plain, with_context, in_transaction])
def test_jobs_leave_no_cycles_to_the_garbage_collector(
    db: Any, queue: PriorityQueue, handler: Callable[..., Any]
) -> None:
    """Otherwise it would stop a busy worker again and again, and keep what handlers held.

    Other threads of the process leave garbage, too, so only that of this package counts.
    """
    worker = Worker(db, queue, handler, concurrency=2)
    worker.run(drain=True)  # what a run itself leaves
    queue.push_many(db, range(JOBS))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        assert worker.run(drain=True).done == JOBS
        gc.collect()
        left = Counter(type(each) for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    ours = {kind: n for kind, n in left.items() if kind.__module__.startswith("fdbqueue")}
    assert sum(ours.values()) < JOBS, ours
