"""`App.lifespan`: what a worker process opens before its first job and closes after the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fdbqueue import WorkerReport
from fdbqueue.jobs import App, Context
from fdbqueue.testing import drain


def test_jobs_and_middleware_see_what_it_yields_until_the_last_job_has_ended(
    app: App, name: str
) -> None:
    notes: list[str] = []

    @app.lifespan
    def resources() -> Iterator[list[str]]:
        notes.append("open")
        yield notes
        notes.append("close")

    @app.middleware
    def around(context: Context[list[str]]) -> Iterator[None]:
        context.state.append("before")
        yield

    @app.job(queue=name)
    def note(context: Context[list[str]], text: str) -> None:
        context.state.append(text)

    note.push_many([note.bind("a"), note.bind("b")])
    expected = ["open", "before", "a", "before", "b", "close"]
    assert app.work(drain=True, concurrency=1) == WorkerReport(done=2)
    assert notes == expected
    notes.clear()
    note.push_many([note.bind("a"), note.bind("b")])
    drain(app, name)
    assert notes[: len(expected)] == expected


def test_an_async_one_lives_in_one_task_in_the_event_loop_of_the_jobs(app: App, name: str) -> None:
    tasks: list[Any] = []

    @app.lifespan
    async def resources() -> AsyncIterator[asyncio.AbstractEventLoop]:
        tasks.append(asyncio.current_task())
        yield asyncio.get_running_loop()
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())

    @app.job(queue=name)
    async def is_same(context: Context[asyncio.AbstractEventLoop]) -> bool:
        return context.state is asyncio.get_running_loop()

    handle = is_same.push()
    assert app.work(drain=True) == WorkerReport(done=1)
    assert handle.result() is True
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_its_error_ends_the_worker(app: App, name: str, is_async: bool, begins: bool) -> None:
    def fail() -> Iterator[None]:
        if begins:
            yield
        raise OSError("no answer")

    async def fail_in_loop() -> AsyncIterator[None]:
        for each in fail():
            yield each

    app.lifespan(fail_in_loop if is_async else fail)
    job = app.job(queue=name)(print_nothing).push()
    with pytest.raises(OSError, match="no answer"):
        app.work(drain=True)
    assert job.state() == ("done" if begins else "ready")


def test_it_ends_after_an_error_of_the_worker_too(app: App, name: str) -> None:
    ended: list[bool] = []

    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        try:
            yield
        finally:
            ended.append(True)

    app.job(queue=name)(print_nothing).push()
    with pytest.raises(ValueError, match="not an address"):
        app.work(drain=True, health="not an address")
    assert not ended  # it had not begun
    app.work(drain=True)
    assert ended == [True]


def test_a_wrong_or_second_one_is_refused(app: App) -> None:
    wrong: Any
    for wrong in (print, lambda: None, print_nothing):
        with pytest.raises(TypeError, match="a lifespan is a generator function, with a `yield`"):
            app.lifespan(wrong)

    def first() -> Iterator[None]:
        yield

    def second() -> Iterator[None]:
        yield

    app.lifespan(first)
    with pytest.raises(ValueError, match="the app has another lifespan"):
        app.lifespan(second)


def print_nothing() -> None: ...
