"""Functions around the call of each job: before it, after it, and when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fdbqueue import FDBError, Transaction, WorkerReport
from fdbqueue.jobs import App, Context, Discard, Retry, Snooze
from fdbqueue.worker.worker import Worker
from tests.support.waiting import MAX_WAIT

ONCE = Retry(attempts=1)


def test_an_error_arrives_at_the_yield_and_fails_the_job_all_the_same(app: App, name: str) -> None:
    notes: list[str] = []

    @app.middleware
    def trace(context: Context) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            notes.append(type(error).__name__)
            raise
        notes.append("no error")

    @app.job(queue=name, retry=ONCE, priority=1)
    def fail(n: int) -> None:
        raise OSError("busy")

    @app.job(queue=name, retry=ONCE, priority=2)
    async def discard() -> None:
        raise Discard("gone")

    @app.job(queue=name, retry=ONCE, priority=3)
    def unstorable() -> Any:
        return object()

    @app.job(queue=name, retry=ONCE, priority=4, timeout="50ms")
    async def slow() -> None:
        await asyncio.sleep(MAX_WAIT)

    handles = [fail.push(1), discard.push(), unstorable.push(), slow.push()]
    app.queue(name).push(app.db, {"job": fail.name, "args": ["many", "arguments"]}, 5)
    app.work(drain=True, concurrency=1)
    assert [handle.state() for handle in handles] == ["dead", "done", "dead", "dead"]
    assert notes == ["OSError", "Discard", "Dead", "TimedOut", "UndecodableArguments"]


def test_it_surrounds_functions_coroutines_and_transactions_the_first_one_declared_outermost(
    app: App, name: str
) -> None:
    notes: list[str] = []

    for label in ("outer", "inner"):

        @app.middleware
        def around(context: Context, label: str = label) -> Iterator[None]:
            notes.append(label)
            yield
            notes.append(f"{label} ends")

    def function() -> None:
        notes.append("function")

    async def coroutine() -> None:
        await asyncio.sleep(0)
        notes.append("coroutine")

    def body(tr: Transaction) -> None:
        notes.append("body")

    for job in (function, coroutine, body):
        app.job(queue=name, name=job.__name__)(job).push()
        app.work(drain=True)
        assert notes == ["outer", "inner", job.__name__, "inner ends", "outer ends"]
        notes.clear()


def test_it_may_end_the_attempt_itself_or_forgive_an_error(app: App, name: str) -> None:
    @app.middleware
    def decide(context: Context) -> Iterator[None]:
        if context.item.value["args"] == ["later"]:
            raise Snooze("1h")
        with suppress(KeyError):
            yield

    @app.job(queue=name)
    def fail(word: str) -> int:
        raise KeyError(word)

    @app.job(queue=name)
    def fail_in(tr: Transaction, word: str) -> int:
        raise KeyError(word)

    later, forgiven, both = fail.push("later"), fail.push("now"), fail_in.push("now")
    assert app.work(drain=True) == WorkerReport(done=2)
    assert (later.state(), later.info().attempts) == ("delayed", 0)  # it does not count
    assert forgiven.state() == both.state() == "done"
    assert forgiven.result() is both.result() is None


def test_only_generator_functions_are_middleware(app: App) -> None:
    wrong: Any
    for wrong in (print, lambda context: None, Worker):
        with pytest.raises(TypeError, match="a middleware is a generator function, with a `yield`"):
            app.middleware(wrong)


def test_an_end_that_it_adds_is_part_of_the_body_of_a_transaction(app: App, name: str) -> None:
    tries: list[int] = []
    key = name.encode()

    @app.middleware
    def count(context: Context) -> Iterator[None]:
        context.at_end(lambda tr: tr.add(key, b"\1"))
        yield

    @app.job(queue=name, retry=ONCE)
    def body(tr: Transaction) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise FDBError(1020)

    body.push()
    assert app.work(drain=True) == WorkerReport(done=1)
    assert app.db[key] == b"\1"
