"""Nothing that a job does stops a worker: each error fails its attempt, and the next job runs."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Worker, WorkerReport, aio
from fdbqueue.jobs import App, Context, Dead, Discard, Handle, Retry, RetryIn
from fdbqueue.jobs.handler import JobHandler
from fdbqueue.types import Transaction
from tests.support.waiting import MAX_WAIT

ONCE = Retry(attempts=1)


class Exit(BaseException):
    """Not an `Exception`."""


class Evil(Exception):
    """An error whose methods and attributes raise errors."""

    def __str__(self) -> str:
        raise Exit("no text")

    def __repr__(self) -> str:
        raise Exit("no representation")

    def __bool__(self) -> bool:
        raise Exit("neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise Exit("not comparable")

    def __hash__(self) -> int:
        raise Exit("no hash")

    @property
    def stderr(self) -> bytes:
        raise Exit("no standard error")


class EvilDiscard(Discard):
    def __str__(self) -> str:
        raise OSError("no text")


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise type(error)(*error.args)

    return fail


def returning(value: Any) -> Callable[..., Any]:
    return lambda *_: value


DECISIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "exits": (raising(SystemExit(3)), "SystemExit: 3"),
    "raises an evil error": (raising(Evil()), "Evil"),
    "returns nothing": (returning(None), "not None"),
    "returns no number": (returning(math.nan), "not nan"),
    "returns a class": (returning(Dead), "not <class"),
    "returns evil": (returning(EvilDiscard()), "OSError: no text"),
    "takes one parameter": (lambda error: 1, "takes 1 positional argument but 2 were given"),
}


EXITS = [SystemExit(3), KeyboardInterrupt("by the job"), asyncio.CancelledError("by the job")]


def info_of(handle: Handle[Any]) -> Any:
    info = handle.info()
    assert info is not None
    return info


def failed_attempts(handle: Handle[Any]) -> Any:
    return info_of(handle).failed_attempts


def run_with_a_neighbour(app: App, name: str) -> None:
    """Let a worker do what is ready, and then another job."""

    @app.job(queue=name, name="neighbour", priority=100)
    def neighbour() -> None:
        pass

    handle = neighbour.push()
    report = app.work(name, drain=True, concurrency=1)
    assert (report.done, report.lost) == (1, 0)
    assert report.failed >= 1  # more if the job is due again before the end
    info = handle.info()
    assert info is None or info.state == "done"


@pytest.mark.parametrize("kind", DECISIONS)
def test_an_error_of_a_retry_decision_fails_the_attempt_by_the_default_policy(
    app: App, name: str, kind: str
) -> None:
    decision, text = DECISIONS[kind]

    @app.job(queue=name, retry=decision)
    def fail() -> None:
        raise ValueError("of the job")

    handle = fail.push()
    run_with_a_neighbour(app, name)
    info = info_of(handle)
    assert info.state in ("delayed", "ready")  # which it is soon
    attempt, *_ = failed_attempts(handle)
    assert text in str(attempt.error)
    if kind != "raises an evil error":
        assert "ValueError: of the job" in str(attempt.traceback)


@pytest.mark.parametrize("takes", ["function", "coroutine", "body", "middleware", "step", "at_end"])
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_an_exit_in_a_job_is_a_failure_like_others(
    app: App, name: str, takes: str, error: BaseException
) -> None:
    seen: list[tuple[Exception, int]] = []
    fail = raising(error)

    def policy(failure: Exception, context: Context) -> float:
        seen.append((failure, context.attempt))
        return 3600

    async def coroutine() -> None:
        await asyncio.sleep(0)
        fail()

    def body(tr: Transaction) -> None:
        fail()

    @app.middleware
    def around(context: Context) -> Iterator[None]:
        if (context.job, takes) == ("exit", "middleware"):
            fail()
        yield

    def function(context: Context) -> None:
        if takes == "step":
            context.step("exit", fail)
        elif takes == "at_end":
            context.at_end(fail)
        else:
            fail()

    functions: dict[str, Any] = {"coroutine": coroutine, "body": body}
    job = app.job(queue=name, name="exit", retry=policy)(functions.get(takes, function))
    handle = job.push()
    run_with_a_neighbour(app, name)
    ((failure, number),) = seen
    assert isinstance(failure, Exception)
    assert number == 1
    assert handle.state() == "delayed"
    (attempt,) = failed_attempts(handle)
    assert type(error).__name__ in str(attempt.traceback)
    assert str(error) in str(attempt.error)


def test_a_suspended_job_that_raises_an_error_has_not_failed(
    app: App, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(queue=name)
    def job(context: Context) -> None:
        try:
            context.sleep("for an hour", "1h")
        finally:
            sys.exit("cannot clean up")

    handle = job.push()
    assert app.work(name, drain=True) == WorkerReport()
    assert "raised an error when it was suspended" in caplog.text
    info = info_of(handle)
    assert (info.state, info.error) == ("delayed", None)
    assert info.waits_for is not None
    assert info.waits_for.step == "for an hour"


def fail_by_text(context: Context) -> None:
    raise Evil


def leave_an_exit_to_the_loop(context: Context) -> Any:
    async def job() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.01)
        raise OSError("after the exit")

    return job()


def progress_badly(context: Context) -> None:
    context.progress(math.nan)


def retry_for_no_reason(context: Context) -> None:
    raise RetryIn(5, reason=Exit)


async def stop_the_loop(context: Context) -> None:
    asyncio.get_running_loop().stop()
    raise OSError("after the stop")


HANDLERS = [
    fail_by_text,
    leave_an_exit_to_the_loop,
    stop_the_loop,
    raising(EvilDiscard()),
    progress_badly,
    retry_for_no_reason,
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_an_error_in_what_a_handler_raises_or_leaves_behind_fails_its_attempt(
    db: Any, name: str, handler: Any
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, ["bad", "good"])

    def work(context: Context) -> Any:
        return handler(context) if context.item.value == "bad" else None

    report = Worker(db, queue, work).run(drain=True)
    assert report.done == 1
    assert report.failed >= 1  # more if the worker meets the next attempt, too
    left = [*queue.items(db, state="delayed"), *queue.items(db)]  # it is ready soon
    assert {info.item.value for info in left} == {"bad"}
    assert fdbqueue.admin.check(db, queue).ok


@contextmanager
def exit_badly(context: Context) -> Iterator[None]:
    yield
    raise OSError("cannot exit")


@contextmanager
def yield_twice(context: Context) -> Iterator[None]:
    yield
    yield


@contextmanager
def yield_never(context: Context) -> Iterator[None]:
    if context is None:
        yield


@pytest.mark.parametrize("around", [exit_badly, yield_twice, yield_never, lambda context: 7])
def test_an_error_of_a_middleware_fails_the_attempt(app: App, name: str, around: Any) -> None:
    @app.job(queue=name, name="around", retry=Retry(first="1h"))
    def job() -> None:
        pass

    @app.job(queue=name, name="unknown to the first worker", priority=9)
    def other() -> None:
        pass

    handle, after = job.push(), other.push()
    queue = app.queue(name)

    def only_around(context: Context) -> Any:
        return around(context) if context.job == "around" else exit_well()

    @contextmanager
    def exit_well() -> Iterator[None]:
        yield

    worker = Worker(app.db, queue, JobHandler(app.jobs, [only_around]))
    assert worker.run(drain=True) == WorkerReport(done=1, failed=1)
    assert handle.state() == "delayed"
    assert after.state() in ("done", None)


# Context variables

seen_by = ContextVar("seen_by", default="nobody")


@pytest.mark.parametrize("takes", ["function", "coroutine", "body", "at_end", "program's loop"])
def test_a_job_runs_in_a_fresh_copy_of_the_context_of_the_worker(
    db: Any, name: str, takes: str
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, [f"job {n}" for n in range(6)])
    before: list[str] = []
    in_the_end: list[str] = []

    def note(item: Any) -> None:
        before.append(seen_by.get())
        seen_by.set(item.value)

    async def coroutine(item: Any) -> None:
        note(item)
        await asyncio.sleep(0)
        assert seen_by.get() == item.value

    def body(tr: Any, item: Any) -> None:
        note(item)
        if before.count("the worker") < 3:  # repeats begin with it, too
            raise fdbqueue.FDBError(1020)

    def with_end(context: Context) -> None:
        note(context.item)
        context.at_end(lambda tr: in_the_end.append(seen_by.get()))

    handlers: dict[str, Any] = {"function": note, "body": body, "at_end": with_end}
    handler = handlers.get(takes, coroutine)
    token = seen_by.set("the worker")
    try:
        if takes == "program's loop":
            worker = aio.Worker(db, aio.PriorityQueue(queue), handler, concurrency=2)
            asyncio.run(worker.run(drain=True))
        else:
            Worker(db, queue, handler, concurrency=2).run(drain=True)
    finally:
        seen_by.reset(token)
    assert {*before} == {"the worker"}
    assert len(before) >= 6
    assert takes != "at_end" or {*in_the_end} == {f"job {n}" for n in range(6)}


def test_a_job_sees_what_middleware_sets_and_the_next_job_does_not(app: App, name: str) -> None:
    seen: list[str] = []

    def note() -> None:
        seen.append(seen_by.get())

    @app.middleware
    def around(context: Context) -> Iterator[None]:
        note()
        seen_by.set("middleware")
        yield

    async def coroutine() -> None:
        note()

    def body(tr: Transaction) -> None:
        note()

    for job in (note, coroutine, body) * 2:
        app.job(queue=name, name=f"{job.__name__} {len(app.jobs)}")(job).push()
    app.work(name, drain=True, concurrency=1)
    assert seen == ["nobody", "middleware"] * 6


# The time of transactions


@pytest.mark.parametrize("way", ["body", "at_end", "commit", "aio commit"])
def test_a_transaction_of_a_job_that_takes_too_long_fails_the_attempt(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("fdbqueue.worker.functions.guards.TRANSACTION", 0.0)
    tries: list[int] = []

    def slow(tr: Transaction) -> None:
        tries.append(1)
        raise fdbqueue.FDBError(1007)

    def plain(context: Context) -> None:
        if way == "at_end":
            context.at_end(slow)
        else:
            context.commit("slow", slow)

    async def coroutine(context: Context) -> None:
        await context.aio.commit("slow", slow)

    functions: dict[str, Any] = {"body": slow, "aio commit": coroutine}
    handle = app.job(queue=name, name="slow", retry=ONCE)(functions.get(way, plain)).push()
    run_with_a_neighbour(app, name)
    assert len(tries) == 1
    assert "a transaction lives five" in str(info_of(handle).error)


@pytest.mark.parametrize("has_timeout", [True, False])
def test_a_job_that_hangs_at_its_end_is_given_up(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch, has_timeout: bool
) -> None:
    if not has_timeout:
        monkeypatch.setattr("fdbqueue.worker.pool.TRANSACTION", 0.05)
    go = threading.Event()

    def hang(tr: Any) -> None:
        go.wait(MAX_WAIT)

    @app.job(queue=name, retry=ONCE, timeout=0.05 if has_timeout else None)
    def job(context: Context) -> None:
        context.at_end(hang)

    handle = job.push()
    assert app.work(name, drain=True, grace=0.05) == WorkerReport(failed=1)
    go.set()
    info = info_of(handle)
    assert info.state == "dead"
    assert str(info.error).startswith("TimedOut" if has_timeout else "HandlerTooSlow")


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_end_that_is_tried_again_for_ever_is_given_up(
    app: App, name: str, is_stopped: bool
) -> None:
    tries = threading.Event()

    def conflict(tr: Any) -> None:
        tries.set()
        raise fdbqueue.FDBError(1020)

    @app.job(queue=name, retry=ONCE, timeout=None if is_stopped else 0.05)
    def job(context: Context) -> None:
        context.at_end(conflict)

    handle = job.push()
    worker = Worker(app.db, app.queue(name), JobHandler(app.jobs), grace=0.05)
    with futures.ThreadPoolExecutor() as pool:
        running = pool.submit(worker.run, drain=True)
        assert tries.wait(MAX_WAIT)
        if is_stopped:
            worker.stop()
        report = running.result(MAX_WAIT)
    assert report == WorkerReport(failed=0 if is_stopped else 1)
    assert handle.state() == ("ready" if is_stopped else "dead")


async def end_in_a_coroutine(tr: Any) -> None:
    raise AssertionError


def end_in_a_generator(tr: Any) -> Iterator[None]:
    yield


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("end", [end_in_a_coroutine, end_in_a_generator])
def test_an_end_whose_code_would_not_run_fails_the_attempt(app: App, name: str, end: Any) -> None:
    @app.job(queue=name, retry=ONCE)
    def job(context: Context) -> None:
        context.at_end(lambda tr: end(tr))

    handle = job.push()
    run_with_a_neighbour(app, name)
    (attempt,) = failed_attempts(handle)
    assert "at_end needs a plain function" in str(attempt.error)
