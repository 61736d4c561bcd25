"""After `stop`, no attempt counts that the shutdown has interrupted, and no handler holds it up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.jobs import Context, Dead
from tests.support.waiting import MAX_WAIT, wait_until

GRACE = 0.2


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """Return an event for which jobs wait; the end of the test sets it."""
    event = threading.Event()
    yield event
    event.set()


def start(worker: Worker) -> Callable[[], WorkerReport]:
    """Run a worker in a thread; return a function that waits for its end."""
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()

    def joined() -> WorkerReport:
        thread.join(MAX_WAIT)
        assert not thread.is_alive(), "the worker does not end"
        return worker.report

    return joined


def assert_released(db: Any, queue: PriorityQueue, number: int) -> None:
    """Assert that items are back in the queue as if they had never been claimed."""
    infos = list(queue.items(db, state="ready"))
    assert [info.attempts for info in infos] == [0] * number
    assert [info.failed_attempts for info in infos] == [()] * number
    assert queue.stats(db).total_failed == 0


def test_a_job_that_outlasts_the_grace_period_goes_back_and_its_end_has_no_effect(
    db: Any, queue: PriorityQueue, go: threading.Event
) -> None:
    began, threads = threading.Event(), list[threading.Thread]()

    def handler(context: Context) -> str:
        context.at_end(lambda tr: tr.set(queue.subspace["late"].key(), b"1"))
        threads.append(threading.current_thread())
        began.set()
        assert go.wait(MAX_WAIT)
        return "late"

    queue.configure(db, keep=10)
    queue.push(db, "job")
    worker = Worker(db, queue, handler, grace=GRACE, store_results=True)
    joined = start(worker)
    assert began.wait(MAX_WAIT)
    worker.stop()
    assert joined() == WorkerReport()
    assert_released(db, queue, 1)
    claim = queue.claim(db)
    go.set()
    threads[0].join(MAX_WAIT)
    assert worker.report == WorkerReport()
    assert claim.attempt == 1
    queue.ack(db, claim)
    assert not bytes(db[queue.subspace["late"].key()] or b"")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_running_job_is_told_and_an_error_counts_no_attempt(
    db: Any, queue: PriorityQueue, kind: str
) -> None:
    reasons: list[Any] = []
    began = threading.Event()

    def function(context: Context) -> None:
        began.set()
        assert context.cancelled.wait(MAX_WAIT)
        reasons.append(context.cancelled.reason)
        raise InterruptedError

    async def coroutine(context: Context) -> None:
        began.set()
        await context.cancelled
        reasons.append(context.cancelled.reason)
        raise InterruptedError

    queue.configure(db, max_attempts=1)
    queue.push(db, "job")
    handler = coroutine if kind == "coroutine" else function
    worker = Worker(db, queue, handler, grace=MAX_WAIT)
    joined = start(worker)
    assert began.wait(MAX_WAIT)
    worker.stop()
    assert joined() == WorkerReport()
    assert reasons == ["shutdown"]
    assert_released(db, queue, 1)


def test_a_job_that_is_told_may_still_end_as_it_wants(db: Any, queue: PriorityQueue) -> None:
    began = threading.Barrier(3)

    def handler(context: Context) -> None:
        began.wait(MAX_WAIT)
        assert context.cancelled.wait(MAX_WAIT)
        if context.item.value == "dead":
            raise Dead("for good")

    queue.push_many(db, ["done", "dead"])
    worker = Worker(db, queue, handler, concurrency=2, grace=MAX_WAIT)
    joined = start(worker)
    began.wait(MAX_WAIT)
    worker.stop()
    assert joined() == WorkerReport(done=1, failed=1)
    assert queue.stats(db).dead == 1


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
    joined = start(worker)
    assert began.wait(MAX_WAIT)
    worker.stop()
    assert joined() == WorkerReport()
    assert_released(db, queue, 1)
    assert kind == "blocks" or cancelled.wait(MAX_WAIT)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_transaction_that_outlasts_the_grace_period_has_no_effect(
    db: Any, queue: PriorityQueue, go: threading.Event, concurrency: int
) -> None:
    key = queue.subspace["effect"].key()
    began, threads = threading.Event(), set[threading.Thread]()

    def handler(tr: Any, item: Any) -> None:
        tr[key] = b"1"
        threads.add(threading.current_thread())
        began.set()
        assert go.wait(MAX_WAIT)

    queue.push_many(db, range(3))
    worker = Worker(db, queue, handler, concurrency=concurrency, grace=GRACE)
    joined = start(worker)
    assert began.wait(MAX_WAIT)
    wait_until(lambda: len(threads) == concurrency)
    worker.stop()
    assert joined() == WorkerReport()
    assert_released(db, queue, 3)
    go.set()
    for thread in threads:
        thread.join(MAX_WAIT)
    assert worker.report == WorkerReport()
    assert not bytes(db[key] or b"")
    assert_released(db, queue, 3)


def test_a_time_out_during_the_shutdown_counts(
    db: Any, queue: PriorityQueue, go: threading.Event
) -> None:
    began = threading.Event()

    def handler(item: Any) -> None:
        began.set()
        assert go.wait(MAX_WAIT)

    item = queue.push(db, "job")
    worker = Worker(db, queue, handler, timeout=0.05, grace=0.3)
    joined = start(worker)
    assert began.wait(MAX_WAIT)
    time.sleep(0.06)  # its time is over before the worker stops
    worker.stop()
    assert joined() == WorkerReport(failed=1)
    (attempt,) = queue.get(db, item).failed_attempts
    assert "TimedOut" in str(attempt.error)
