"""Nothing that a job does stops a worker: each error fails its attempt, and the next job runs."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue, Worker, WorkerReport, aio
from fdbqueue.jobs import App, Context, Dead, Discard, Handle, Retry, RetryIn, Snooze
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


class EvilSnooze(Snooze):
    def __init__(self) -> None:
        """Do not say for how long."""


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise type(error)(*error.args)

    return fail


def returning(value: Any) -> Callable[..., Any]:
    return lambda *_: value


DECISIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raising(KeyError("decision")), "KeyError"),
    "exits": (raising(SystemExit(3)), "SystemExit: 3"),
    "is interrupted": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "raises an evil error": (raising(Evil()), "Evil"),
    "returns nothing": (returning(None), "not None"),
    "returns less than 0": (returning(-1), "not -1"),
    "returns no number": (returning(math.nan), "not nan"),
    "returns a class": (returning(Dead), "not <class"),
    "returns text": (returning("soon"), "not 'soon'"),
    "returns evil": (returning(EvilDiscard()), "OSError: no text"),
    "takes one parameter": (lambda error: 1, "takes 1 positional argument but 2 were given"),
}


class EvilOutput(bytes):
    def decode(self, *_: object, **__: object) -> str:
        raise Exit("no text")


class CommandFailed(Exception):
    stderr = EvilOutput(b"no such file")


EXITS: list[BaseException] = [
    SystemExit(3),
    KeyboardInterrupt("by the job"),
    asyncio.CancelledError("by the job"),
    GeneratorExit("by the job"),
    Exit("by the job"),
]


def failed_attempts(handle: Handle[Any]) -> Any:
    info = handle.info()
    assert info is not None
    return info.failed_attempts


def run_with_a_neighbour(app: App, name: str) -> None:
    """Let a worker do what is ready, and then another job."""

    @app.job(queue=name, name="neighbour", priority=100)
    def neighbour() -> None:
        pass

    handle = neighbour.push()
    report = app.work(name, max_jobs=2, concurrency=1)  # a failed job may be due again by then
    assert report == WorkerReport(done=1, failed=1)
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
    info = handle.info()
    assert info is not None
    assert info.state in ("delayed", "ready")  # which it is soon
    (attempt,) = failed_attempts(handle)
    assert text in str(attempt.error)
    if kind != "raises an evil error":
        assert "ValueError: of the job" in str(attempt.traceback)


@pytest.mark.parametrize("takes", ["function", "coroutine", "body", "middleware", "step", "at_end"])
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_an_exit_in_a_job_is_a_failure_like_others(
    app: App, name: str, takes: str, error: BaseException
) -> None:
    seen: list[tuple[Exception, int]] = []

    def policy(failure: Exception, context: Context) -> float:
        seen.append((failure, context.attempt))
        return 3600

    fail = raising(error)
    if takes == "function":
        job = app.job(queue=name, name="exit", retry=policy)(lambda: fail())
    elif takes == "coroutine":

        async def coroutine() -> None:
            await asyncio.sleep(0)
            fail()

        job = app.job(queue=name, name="exit", retry=policy)(coroutine)
    elif takes == "body":

        def body(tr: Transaction) -> None:
            fail()

        job = app.job(queue=name, name="exit", retry=policy)(body)
    elif takes == "middleware":
        job = app.job(queue=name, name="exit", retry=policy)(lambda: None)

        @app.middleware
        def around(context: Context) -> Iterator[None]:
            if context.job == "exit":
                fail()
            yield

    elif takes == "step":

        def stepping(context: Context) -> None:
            context.step("exit", fail)

        job = app.job(queue=name, name="exit", retry=policy)(stepping)
    else:

        def ending(context: Context) -> None:
            context.at_end(fail)

        job = app.job(queue=name, name="exit", retry=policy)(ending)

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
    info = handle.info()
    assert info is not None
    assert (info.state, info.error) == ("delayed", None)
    assert info.waits_for is not None
    assert info.waits_for.step == "for an hour"


def fail_by_text(context: Context) -> None:
    raise Evil


def fail_without_a_name(context: Context) -> None:
    class Kind(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise Exit("no name")

    class Nameless(Exception, metaclass=Kind):
        """An error whose class has no name."""

    raise Nameless


def leave_an_exit_to_the_loop(context: Context) -> Any:
    async def job() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.01)
        raise OSError("after the exit")

    return job()


def snooze_for_no_time(context: Context) -> None:
    raise EvilSnooze


def progress_badly(context: Context) -> None:
    context.progress(math.nan)


def return_evil(context: Context) -> Any:
    class Result:
        __class__ = property(raising(Exit("no class")))

    return Result()


def retry_for_no_reason(context: Context) -> None:
    raise RetryIn(5, reason=Exit)


HANDLERS = [
    fail_by_text,
    leave_an_exit_to_the_loop,
    snooze_for_no_time,
    raising(EvilDiscard()),
    fail_without_a_name,
    raising(CommandFailed()),
    progress_badly,
    return_evil,
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


def enter_badly(context: Context) -> Any:
    raise OSError("cannot enter")


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


@pytest.mark.parametrize(
    "around", [enter_badly, exit_badly, yield_twice, yield_never, lambda context: 7]
)
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


@pytest.mark.parametrize("kind", ["unique", "group"])
@pytest.mark.parametrize("error", [KeyError("key"), SystemExit(3), Evil()], ids=type)
def test_an_error_of_a_key_of_a_push_fails_the_attempt_that_pushes(
    app: App, name: str, kind: Any, error: BaseException
) -> None:
    @app.job(queue=name, name="pushed", **{kind: raising(error)})
    def pushed() -> None:
        pass

    @app.job(queue=name, retry=Retry(first="1h"))
    def push() -> None:
        pushed.push()

    handle = push.push()
    run_with_a_neighbour(app, name)
    assert handle.state() == "delayed"


# Context variables

seen_by = ContextVar("seen_by", default="nobody")


@pytest.mark.parametrize("takes", ["function", "coroutine", "body", "at_end", "program's loop"])
def test_a_job_runs_in_a_fresh_copy_of_the_context_of_the_worker(
    db: Any, name: str, takes: str
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, [f"job {n}" for n in range(12)])
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

    def end(tr: Any) -> None:
        in_the_end.append(seen_by.get())
        seen_by.set("the end")

    def with_end(context: Context) -> None:
        note(context.item)
        context.at_end(end)

    handlers: dict[str, Any] = {
        "function": note,
        "coroutine": coroutine,
        "program's loop": coroutine,
        "body": body,
        "at_end": with_end,
    }
    handler = handlers[takes]
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
    assert len(before) >= 12
    if takes == "at_end":
        assert {*in_the_end} == {f"job {n}" for n in range(12)}


def test_repeats_of_a_transaction_begin_with_the_context_of_the_worker(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push(db, "job")
    before: list[str] = []

    def body(tr: Any, item: Any) -> None:
        before.append(seen_by.get())
        seen_by.set("an earlier try")
        if len(before) < 3:
            raise fdbqueue.FDBError(1020)

    Worker(db, queue, body).run(drain=True)
    assert before == ["nobody"] * 3


def test_a_job_sees_what_middleware_sets_and_the_next_job_does_not(app: App, name: str) -> None:
    before: list[str] = []
    within: list[str] = []

    @app.middleware
    def around(context: Context) -> Iterator[None]:
        before.append(seen_by.get())
        seen_by.set("middleware")
        yield

    @app.job(queue=name)
    def function() -> None:
        within.append(seen_by.get())

    @app.job(queue=name)
    async def coroutine() -> None:
        within.append(seen_by.get())

    @app.job(queue=name)
    def body(tr: Transaction) -> None:
        within.append(seen_by.get())

    for job in (function, coroutine, body) * 2:
        job.push()
    app.work(name, drain=True, concurrency=1)
    assert before == ["nobody"] * 6
    assert within == ["middleware"] * 6


# The time of transactions


def slow_at_end(context: Context, add: Callable[..., None]) -> None:
    context.at_end(add)


def slow_commit(context: Context, add: Callable[..., None]) -> None:
    context.commit("slow", add)


async def slow_aio_commit(context: Context, add: Callable[..., None]) -> None:
    await context.aio.commit("slow", add)


@pytest.mark.parametrize("way", [slow_at_end, slow_commit, slow_aio_commit])
def test_a_transaction_of_a_job_that_takes_too_long_fails_the_attempt(
    app: App, name: str, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    monkeypatch.setattr("fdbqueue.worker.functions.guards.TRANSACTION", 0.01)
    tries: list[int] = []

    def slow(tr: Any) -> None:
        tries.append(1)
        time.sleep(0.02)
        raise fdbqueue.FDBError(1007)

    def plain(context: Context) -> None:
        way(context, slow)

    async def coroutine(context: Context) -> None:
        await way(context, slow)

    function: Any = coroutine if way is slow_aio_commit else plain
    handle = app.job(queue=name, name="slow", retry=ONCE)(function).push()
    run_with_a_neighbour(app, name)
    assert len(tries) == 1
    info = handle.info()
    assert info is not None
    assert "a transaction lives five" in str(info.error)


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
    info = handle.info()
    assert info is not None
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


# What the program gives to the worker


@pytest.mark.parametrize("error", [OSError("no disk"), SystemExit(3), Evil()], ids=type)
@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_logging_that_raises_stops_no_worker_and_is_reported(
    db: Any, name: str, capsys: pytest.CaptureFixture[str], level: int, error: BaseException
) -> None:
    queue = PriorityQueue.named(db, name)
    queue.push_many(db, ["bad", "good"])
    logger = logging.getLogger("fdbqueue.worker")
    before, fail = logger.level, raising(error)
    logger.addFilter(fail)
    logger.setLevel(level)
    try:
        report = Worker(db, queue, lambda item: {"good": 1}[item.value]).run(drain=True)
    finally:
        logger.removeFilter(fail)
        logger.setLevel(before)
    assert report.done == 1
    assert report.failed >= 1  # more if the worker meets the next attempt, too
    assert "cannot log to fdbqueue.worker" in capsys.readouterr().err
