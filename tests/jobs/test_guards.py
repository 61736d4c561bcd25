"""Nothing that a job does stops a worker: each error fails its attempt, and the next job runs."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Worker, WorkerReport, aio
from fdbqueue.jobs import App, Context, Dead, Discard, Handle, Retry, RetryIn
from fdbqueue.jobs.handler import JobHandler
from fdbqueue.types import ItemInfo, Transaction
from tests.support.waiting import MAX_WAIT

ONCE = Retry(attempts=1)


class Exit(BaseException):
    """Not an `Exception`."""


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise type(error)(*error.args)

    return fail


class Evil(Exception):
    """An error whose methods and attributes raise errors."""

    __str__ = __repr__ = __bool__ = __eq__ = __hash__ = raising(Exit())
    stderr = property(raising(Exit("no standard error")))


class EvilDiscard(Discard):
    __str__ = raising(OSError("no text"))


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


def info_after(app: App, handle: Handle[Any]) -> ItemInfo:
    """Let a worker do what is ready, and then another job; return what became of a job."""

    @app.job(queue=handle.queue, name="neighbour", priority=100)
    def neighbour() -> None: ...

    neighbour.push()
    report = app.work(handle.queue, drain=True, concurrency=1)
    assert (report.done, report.lost) == (1, 0)
    assert report.failed >= 1  # more if the job is due again before the end
    return info_of(handle)


def info_of(handle: Handle[Any]) -> ItemInfo:
    info = handle.info()
    assert info is not None
    return info


@pytest.mark.parametrize("kind", DECISIONS)
def test_an_error_of_a_retry_decision_fails_the_attempt_by_the_default_policy(
    app: App, name: str, kind: str
) -> None:
    decision, text = DECISIONS[kind]

    @app.job(queue=name, retry=decision)
    def fail() -> None:
        raise ValueError("of the job")

    info = info_after(app, fail.push())
    assert info.state in ("delayed", "ready")  # which it is soon
    attempt = info.failed_attempts[0]
    assert text in str(attempt.error)
    if kind != "raises an evil error":
        assert "ValueError: of the job" in str(attempt.traceback)


@pytest.mark.parametrize("takes", ["function", "coroutine", "body", "middleware", "step", "at_end"])
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_an_exit_in_a_job_is_a_failure_like_others(
    app: App, name: str, takes: str, error: BaseException
) -> None:
    seen: list[Exception] = []
    fail = raising(error)

    def policy(failure: Exception, context: Context) -> float:
        seen.append(failure)
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
    info = info_after(app, job.push())
    assert [isinstance(failure, Exception) for failure in seen] == [True]
    assert info.state == "delayed"
    (attempt,) = info.failed_attempts
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


def retry_for_no_reason(context: Context) -> None:
    raise RetryIn(5, reason=Exit)


async def exit_by_the_loop(context: Context) -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.01)
    raise OSError("after the exit")


async def stop_the_loop(context: Context) -> None:
    asyncio.get_running_loop().stop()
    raise OSError("after the stop")


HANDLERS = [raising(Evil()), raising(EvilDiscard()), retry_for_no_reason]
HANDLERS += [exit_by_the_loop, stop_the_loop]


@pytest.mark.parametrize("function", HANDLERS)
def test_an_error_in_what_a_job_raises_or_leaves_behind_fails_its_attempt(
    app: App, name: str, function: Any
) -> None:
    info = info_after(app, app.job(queue=name, name="bad")(function).push())
    assert info.state in ("delayed", "ready")  # which it is soon


def exit_badly() -> Iterator[None]:
    yield
    raise OSError("cannot exit")


def yield_twice() -> Iterator[None]:
    yield
    yield


def yield_never() -> Iterator[None]:
    yield from ()


@pytest.mark.parametrize("around", [exit_badly, yield_twice, yield_never])
def test_an_error_of_a_middleware_fails_the_attempt(app: App, name: str, around: Any) -> None:
    @app.middleware
    def around_the_first(context: Context) -> Iterator[None]:
        yield from around() if context.job == "around" else [None]

    @app.job(queue=name, name="around", retry=Retry(first="1h"))
    def job() -> None: ...

    assert info_after(app, job.push()).state == "delayed"


# Context variables

seen_by = ContextVar("seen_by", default="nobody")


@pytest.mark.parametrize("is_program_loop", [False, True])
def test_each_job_runs_in_a_fresh_copy_of_the_context_of_the_worker(
    app: App, name: str, is_program_loop: bool
) -> None:
    """It sees what middleware sets, and the next job does not."""
    seen, tries = list[str](), list[int]()

    def note(*_: object) -> None:
        seen.append(seen_by.get())
        seen_by.set("a job")

    @app.middleware
    def around(context: Context) -> Iterator[None]:
        note()
        seen_by.set("middleware")
        yield

    def function(context: Context) -> None:
        context.at_end(note)

    async def coroutine() -> None:
        note()

    def body(tr: Transaction) -> None:
        note()
        if not tries:  # the next try begins with a fresh copy, too
            tries.append(1)
            raise fdbqueue.FDBError(1020)

    for job in (function, coroutine, body) * 2:
        app.job(queue=name, name=f"{job.__name__} {len(app.jobs)}")(job).push()

    async def handler(item: Any) -> None:
        note()

    token = seen_by.set("the worker")
    try:
        if is_program_loop:
            queue = aio.PriorityQueue(app.queue(name))
            asyncio.run(aio.Worker(app.db, queue, handler, concurrency=1).run(drain=True))
        else:
            app.work(name, drain=True, concurrency=1)
    finally:
        seen_by.reset(token)
    assert {*seen} == ({"the worker"} if is_program_loop else {"the worker", "middleware"})
    assert len(seen) >= 6


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
    assert "a transaction lives five" in str(info_after(app, handle).error)
    assert len(tries) == 1


def test_a_job_without_a_timeout_that_hangs_at_its_end_is_given_up(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.worker.pool.TRANSACTION", 0.05)
    go = threading.Event()

    @app.job(queue=name, retry=ONCE)
    def job(context: Context) -> None:
        context.at_end(lambda tr: go.wait(MAX_WAIT))

    handle = job.push()
    assert app.work(name, drain=True, grace=0.05) == WorkerReport(failed=1)
    go.set()
    info = info_of(handle)
    assert (info.state, str(info.error)[:14]) == ("dead", "HandlerTooSlow")


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_end_that_is_tried_again_for_ever_is_given_up(
    app: App, name: str, is_stopped: bool
) -> None:
    def conflict(tr: Any) -> None:
        if is_stopped:
            worker.stop()
        raise fdbqueue.FDBError(1020)

    @app.job(queue=name, retry=ONCE, timeout=None if is_stopped else 0.05)
    def job(context: Context) -> None:
        context.at_end(conflict)

    handle = job.push()
    worker = Worker(app.db, app.queue(name), JobHandler(app.jobs), grace=0.05)
    assert worker.run(drain=True) == WorkerReport(failed=0 if is_stopped else 1)
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

    (attempt,) = info_after(app, job.push()).failed_attempts
    assert "at_end needs a plain function" in str(attempt.error)
