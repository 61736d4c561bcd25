"""Jobs that run for too long, or when a worker stops: they are told, and hold up nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Worker, WorkerReport
from fdbqueue.coordination.store import Store
from fdbqueue.jobs import App, Context, Dead, Discard, Retry
from fdbqueue.queue.base import store_of
from tests.support.waiting import MAX_WAIT, until, wait_until
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


@pytest.mark.parametrize("error", [None, InterruptedError, Dead])
def test_a_job_whose_lease_is_lost_is_told(db: Any, queue: PriorityQueue, error: Any) -> None:
    """So that it stops while another worker runs the job again."""
    reasons: list[Any] = []
    item = queue.push(db, 1)

    def handler(context: Context) -> None:
        if reasons:
            return
        assert queue.release(db, item)
        assert context.cancelled.wait(MAX_WAIT)
        reasons.append(context.cancelled.reason)
        if error is not None:
            raise error

    assert Worker(db, queue, handler, lease=0.6).run(drain=True) == WorkerReport(done=1, lost=1)
    assert reasons == ["lost"]


def test_a_lost_lease_is_no_cancellation(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, range(6))
    claims: list[Any] = [queue.claim(db) for _ in range(6)]
    _, marked, ended, _, released, moved = (claim.item for claim in claims)
    queue.cancel(db, marked)
    queue.cancel(db, ended, force=True)
    queue.ack(db, claims[3])
    queue.release(db, released)
    queue.release(db, moved)
    queue.update(db, moved, priority=5)
    watch, cancelled = store_of(queue).watch_cancelled(db, claims)
    watch.cancel()
    assert cancelled == [False, True, True, True, False, False]


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


# Jobs that run for too long


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
