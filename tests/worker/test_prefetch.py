"""Jobs that are claimed ahead do not wait for a long one while another worker is idle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker
from fdbqueue.worker import claiming
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import make_quick, running


class Long:
    """A handler whose jobs are quick, except for the jobs "long", which the test ends.

    Attributes:
        began: The values of the jobs that have begun.
        held: How many jobs the worker held each time.
    """

    worker: Worker

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.held: list[int] = []
        self.go = threading.Event()

    def __call__(self, item: Any) -> None:
        self.began.append(item.value)
        self.held.append(len(self.worker._pool.held))
        if item.value == "long":
            assert self.go.wait(MAX_WAIT)


@contextmanager
def working(
    db: Any, queue: PriorityQueue, handler: Long, *, is_quick: bool = True, **options: Any
) -> Iterator[Worker]:
    """Run a worker, by default as if it had run quick jobs for a while."""
    worker = handler.worker = Worker(db, queue, handler, **options)
    if is_quick:
        make_quick(worker)
    with running(worker, on_end=handler.go.set):
        yield worker


def test_what_waits_for_a_long_job_goes_back_in_its_order(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, ["long", *range(150)])
    handler, other = Long(), Long()
    with working(db, queue, handler) as worker:
        wait_until(lambda: handler.began == ["long"] and len(worker._pool.held) == 1)
        # Another worker gets them all, in their order, and no attempt was counted.
        with working(db, PriorityQueue(queue.subspace), other, is_quick=False) as idle:
            wait_until(lambda: idle.report.done == 150)
        assert other.began == [*range(150)]
        assert handler.began == ["long"]
        assert queue.stats(db).total_failed == 0


@pytest.mark.parametrize("prefetch", [None, 0, 5])
def test_what_is_claimed_ahead_is_limited_by_prefetch_and_by_how_long_jobs_take(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch, prefetch: int | None
) -> None:
    if prefetch is None:
        monkeypatch.setattr(claiming, "_AHEAD", 1e-9)  # seconds, which every job takes
    queue.push_many(db, range(200))
    handler, options = Long(), {} if prefetch is None else {"prefetch": prefetch}
    with working(db, queue, handler, concurrency=2, **options):
        wait_until(lambda: len(handler.began) == 200)
    assert max(handler.held) <= 2 + (prefetch or 0)
