"""A job that runs for too long is told to stop; one that hangs gives its slot to others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.coordination.store import Store
from fdbqueue.jobs import App, Context, Retry
from tests.support.waiting import MAX_WAIT, until


def test_a_function_is_told_and_may_still_succeed(db: Any, queue: PriorityQueue) -> None:
    def handler(context: Context) -> None:
        assert context.cancelled.wait(MAX_WAIT)

    queue.push(db, "job")
    assert Worker(db, queue, handler, timeout=0.05).run(drain=True) == WorkerReport(done=1)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_function_that_hangs_loses_its_slot_and_its_attempt(
    db: Any, queue: PriorityQueue, concurrency: int
) -> None:
    go = threading.Event()
    seen: list[Any] = []

    def hang(item: Any) -> None:
        seen.append(item.value)
        if item.value < concurrency:
            assert go.wait(MAX_WAIT)

    items = queue.push_many(db, range(concurrency + 5))
    worker = Worker(db, queue, hang, concurrency=concurrency, timeout=0.05, grace=0.05)
    queue.configure(db, max_attempts=1)
    try:
        assert worker.run(drain=True) == WorkerReport(done=5, failed=concurrency)
    finally:
        go.set()
    assert sorted(seen) == [*range(concurrency + 5)]
    for item in items[:concurrency]:
        info = queue.get(db, item)
        assert info.state == "dead"
        (attempt,) = info.failed_attempts
        assert attempt.error == "TimedOut: the job ran for more than 0.05 seconds"
        assert "in hang\n    assert go.wait(MAX_WAIT)" in str(attempt.traceback)


def test_a_job_is_told_although_its_lease_cannot_be_extended(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not answer just then."""
    waits, goes_on = threading.Event(), threading.Event()
    extend = Store.extend_each
    told: list[bool] = []

    def extend_late(*arguments: Any) -> Any:
        waits.set()
        assert goes_on.wait(2 * MAX_WAIT)
        return extend(*arguments)

    def handler(context: Context) -> None:
        assert waits.wait(MAX_WAIT)
        told.append(context.cancelled.wait(MAX_WAIT))
        goes_on.set()

    monkeypatch.setattr(Store, "extend_each", extend_late)
    queue.push(db, "job")
    Worker(db, queue, handler, lease=3, timeout=1.2).run(drain=True)
    assert told == [True]


def test_a_coroutine_that_blocks_its_event_loop_keeps_no_others_from_running(
    db: Any, name: str
) -> None:
    """Those that have not begun lose no attempt by it, although their time is short, too."""
    app = App(db)
    go = threading.Event()
    blocks = threading.Event()

    @app.job(queue=name, timeout="50ms", retry=Retry(attempts=1))
    async def block() -> None:
        blocks.set()
        assert go.wait(MAX_WAIT)

    @app.job(queue=name, timeout="50ms", retry=Retry(attempts=1))
    async def other() -> None:
        pass

    @app.job(queue=name, retry=Retry(attempts=1))
    async def bystander() -> None:
        block.push()
        for _ in range(5):
            other.push()
        await until(blocks.is_set)

    bystander.push()
    try:
        report = app.work(drain=True, concurrency=3, grace=0.05)
    finally:
        go.set()
    assert report == WorkerReport(done=5, failed=2)
    first, second = app.queue(name).items(db, state="dead")
    assert first.error == "RuntimeError: another job blocks the event loop in which this one ran"
    assert second.error == "TimedOut: the job ran for more than 0.05 seconds"
    assert "in block\n    assert go.wait(MAX_WAIT)" in str(second.failed_attempts[0].traceback)
