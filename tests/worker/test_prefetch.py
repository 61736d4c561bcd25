"""Jobs that are claimed ahead do not wait for a long one while another worker is idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, Worker
from fdbqueue.admin import check
from fdbqueue.worker import claiming
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import make_quick


class Long:
    """A handler whose jobs are quick, except for the jobs "long", which the test ends.

    Args:
        seconds: How long the others take.

    Attributes:
        began: The values of the jobs that have begun.
        held: How many jobs the worker held each time.
    """

    worker: Worker

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.began: list[Any] = []
        self.held: list[int] = []
        self.go = threading.Event()

    def __call__(self, item: Any) -> None:
        self.began.append(item.value)
        self.held.append(len(self.worker._pool))
        time.sleep(self.seconds)
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
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        handler.go.set()
        worker.stop()
        thread.join(MAX_WAIT)
        assert not thread.is_alive()


def test_what_waits_for_a_long_job_goes_back_in_its_order(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, ["long", *range(150)])
    handler, other = Long(), Long()
    with working(db, queue, handler) as worker:
        wait_until(lambda: handler.began == ["long"] and len(worker._pool) == 1)
        # Another worker gets them all, in their order, and no attempt was counted.
        with working(db, PriorityQueue(queue.subspace), other, is_quick=False) as idle:
            wait_until(lambda: idle.report.done == 150)
        assert other.began == [*range(150)]
        assert handler.began == ["long"]
        assert queue.stats(db).total_failed == 0
    assert check(db, queue).ok


@pytest.mark.parametrize("concurrency", [1, 2])
def test_nothing_is_claimed_ahead_of_jobs_that_take_longer_than_a_claim(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr(claiming, "_AHEAD", 1e-9)  # seconds, which every job takes
    assert most_held(db, queue, concurrency=concurrency) <= concurrency


@pytest.mark.parametrize("prefetch", [0, 5])
def test_prefetch_limits_what_is_claimed_ahead(
    db: Any, queue: PriorityQueue, prefetch: int
) -> None:
    assert most_held(db, queue, concurrency=2, prefetch=prefetch) <= 2 + prefetch


def most_held(db: Any, queue: PriorityQueue, **options: Any) -> int:
    """Return how many jobs a worker holds at most while it runs 200 quick ones."""
    queue.push_many(db, range(200))
    handler = Long()
    with working(db, queue, handler, **options):
        wait_until(lambda: len(handler.began) == 200)
    return max(handler.held)


@pytest.mark.parametrize("group", [None, "a"])
def test_jobs_that_go_back_use_up_no_start_of_a_rate(
    db: Any, space: Subspace, group: str | None
) -> None:
    """The worker meets the rate with its first claim, which has claimed some ahead."""
    queue = PriorityQueue(space["queue"])
    queue.push_many(db, ["long", *range(4)], group=group)
    if group is None:
        queue.configure(db, rate=(5, "1h"))
    else:
        queue.set_group(db, group, rate=(5, "1h"))
    handler = Long()
    with working(db, queue, handler) as worker:
        wait_until(lambda: handler.began == ["long"] and queue.size(db) == 4)
        handler.go.set()
        wait_until(lambda: worker.report.done == 5)
