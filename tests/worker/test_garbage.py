"""What ended jobs leave behind."""

from __future__ import annotations

import gc
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
    """Otherwise it would stop a busy worker again and again, and keep what handlers held."""
    worker = Worker(db, queue, handler, concurrency=2)
    worker.run(drain=True)  # what a run itself leaves
    queue.push_many(db, range(JOBS))
    gc.collect()
    gc.disable()
    try:
        assert worker.run(drain=True).done == JOBS
        assert gc.collect() < JOBS
    finally:
        gc.enable()
