"""After `stop`, no attempt counts that the shutdown has interrupted, and no handler holds it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.jobs import Context, Dead, Discard
from tests.support.waiting import MAX_WAIT, wait_until
from tests.support.workers import make_quick, running

GRACE = 0.2


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """Return an event for which jobs wait; the end of the test sets it."""
    event = threading.Event()
    yield event
    event.set()


def assert_released(db: Any, queue: PriorityQueue, number: int) -> None:
    """Assert that items are back in the queue as if they had never been claimed."""
    infos = list(queue.items(db, state="ready"))
    assert [info.attempts for info in infos] == [0] * number
    assert [info.failed_attempts for info in infos] == [()] * number
    assert queue.stats(db).total_failed == 0


@pytest.mark.parametrize("kind", ["function", "coroutine", "done", "dead"])
def test_a_running_job_is_told_and_may_end_as_it_wants_but_an_error_counts_no_attempt(
    db: Any, queue: PriorityQueue, kind: str
) -> None:
    reasons: list[Any] = []
    began = threading.Event()

    def function(context: Context) -> None:
        began.set()
        assert context.cancelled.wait(MAX_WAIT)
        reasons.append(context.cancelled.reason)
        raise {"done": Discard, "dead": Dead}.get(context.item.value, InterruptedError)

    async def coroutine(context: Context) -> None:
        began.set()
        await context.cancelled
        reasons.append(context.cancelled.reason)
        raise InterruptedError

    queue.configure(db, max_attempts=1)
    queue.push(db, kind)
    handler = coroutine if kind == "coroutine" else function
    worker = Worker(db, queue, handler, grace=MAX_WAIT)
    with running(worker):
        assert began.wait(MAX_WAIT)
    assert worker.report == WorkerReport(done=kind == "done", failed=kind == "dead")
    assert reasons == ["shutdown"]
    assert queue.stats(db).dead == (kind == "dead")
    if kind in ("function", "coroutine"):
        assert_released(db, queue, 1)


@pytest.mark.parametrize("kind", ["sleeps", "refuses", "blocks"])
def test_coroutines_that_outlast_the_grace_period_go_back(
    db: Any, queue: PriorityQueue, go: threading.Event, kind: str
) -> None:
    began, cancelled = threading.Event(), threading.Event()

    async def handler(item: Any) -> None:
        began.set()
        if kind == "blocks":
            go.wait(MAX_WAIT)
        while True:
            try:
                await asyncio.sleep(MAX_WAIT)
            except asyncio.CancelledError:
                cancelled.set()
                if kind != "refuses":
                    raise

    queue.push(db, "job")
    worker = Worker(db, queue, handler, grace=GRACE)
    with running(worker):
        assert began.wait(MAX_WAIT)
    assert worker.report == WorkerReport()
    assert_released(db, queue, 1)
    assert kind == "blocks" or cancelled.wait(MAX_WAIT)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("kind", ["body", "at_end"])
def test_what_outlasts_the_grace_period_goes_back_and_has_no_effect(
    db: Any, queue: PriorityQueue, go: threading.Event, concurrency: int, kind: str
) -> None:
    """No more than the jobs that were claimed ahead, and have not begun."""
    key = queue.subspace["effect"].key()
    threads = set[threading.Thread]()

    def body(tr: Any, item: Any) -> None:
        tr[key] = b"1"
        threads.add(threading.current_thread())
        assert go.wait(MAX_WAIT)

    def at_end(context: Context) -> str:
        context.at_end(lambda tr: tr.set(key, b"1"))
        threads.add(threading.current_thread())
        assert go.wait(MAX_WAIT)
        return "late"

    queue.configure(db, keep=10)
    queue.push_many(db, range(9))
    handler: Any = body if kind == "body" else at_end
    worker = Worker(
        db, queue, handler, concurrency=concurrency, grace=GRACE, store_results=kind == "at_end"
    )
    make_quick(worker)
    with running(worker):
        wait_until(lambda: len(threads) == concurrency)
    assert worker.report == WorkerReport()
    assert_released(db, queue, 9)
    claim = queue.claim(db)
    go.set()
    for thread in threads:
        thread.join(MAX_WAIT)
    assert worker.report == WorkerReport()
    assert not bytes(db[key] or b"")
    queue.release(db, claim)
    assert_released(db, queue, 9)


def test_a_time_out_during_the_shutdown_counts(
    db: Any, queue: PriorityQueue, go: threading.Event
) -> None:
    """Also if the job is told of it in the grace period, and would have had one of its own."""
    began = threading.Event()

    def handler(item: Any) -> None:
        began.set()
        assert go.wait(MAX_WAIT)

    item = queue.push(db, "job")
    worker = Worker(db, queue, handler, timeout=0.05, grace=MAX_WAIT)
    with running(worker):
        assert began.wait(MAX_WAIT)
        worker.stop()
        wait_until(lambda: worker._pool.all()[0].late)
        worker._shutdown._began -= MAX_WAIT  # the grace period is over
    assert worker.report == WorkerReport(failed=1)
    (attempt,) = queue.get(db, item).failed_attempts
    assert "TimedOut" in str(attempt.error)
