"""A coroutine that waits for a transaction is told so, once for each place."""

from __future__ import annotations

import asyncio
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fdbqueue import PriorityQueue, aio, transactional
from fdbqueue.admin import queue_names
from fdbqueue.jobs import App, Context


@pytest.fixture
def jobs(db: Any, name: str) -> PriorityQueue[Any]:
    return PriorityQueue.named(db, name)


@contextmanager
def noted() -> Iterator[list[warnings.WarningMessage]]:
    """Note warnings, once for each place."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield caught


def places(caught: list[warnings.WarningMessage]) -> list[tuple[str, int]]:
    blocking = [each for each in caught if "a coroutine makes a blocking call" in str(each.message)]
    assert all(issubclass(each.category, RuntimeWarning) for each in blocking)
    return [(each.filename, each.lineno) for each in blocking]


def line_of(function: Callable[..., Any], text: str) -> tuple[str, int]:
    lines, first = inspect.getsourcelines(function)
    return __file__, first + next(n for n, line in enumerate(lines) if text in line)


def test_a_coroutine_that_pushes_is_told_so_once(db: Any, jobs: PriorityQueue[Any]) -> None:
    async def push() -> None:
        for number in range(3):
            jobs.push(db, number)

    with noted() as caught:
        asyncio.run(push())
    assert places(caught) == [line_of(push, "jobs.push")]
    assert "use fdbqueue.aio" in str(caught[0].message)
    assert jobs.size(db) == 3


def test_each_blocking_call_is_told(db: Any, name: str, jobs: PriorityQueue[Any]) -> None:
    @transactional
    def own(tr: Any) -> None:
        tr.clear(b"k")

    app = App(db)

    @app.job(queue=name)
    def job() -> None: ...

    calls: list[Callable[[], Any]] = [
        lambda: jobs.push(db, 1),
        lambda: jobs.push_many(db, [1, 2]),
        lambda: jobs.pop(db),
        lambda: jobs.size(db),
        lambda: jobs.claim(db),
        lambda: jobs.stats(db),
        lambda: [*jobs.items(db)],
        lambda: own(db),
        lambda: queue_names(db),
        job.push,
    ]

    async def call(function: Callable[[], Any]) -> None:
        function()

    for function in calls:
        with noted() as caught:
            asyncio.run(call(function))
        assert places(caught), inspect.getsource(function)


def test_a_callback_of_the_loop_is_told(db: Any, jobs: PriorityQueue[Any]) -> None:
    def push() -> None:
        jobs.push(db, 1)

    async def later() -> None:
        asyncio.get_running_loop().call_soon(push)
        await asyncio.sleep(0.01)

    with noted() as caught:
        asyncio.run(later())
    assert places(caught) == [line_of(push, "jobs.push")]


def test_nothing_else_is_told(db: Any, name: str, jobs: PriorityQueue[Any]) -> None:
    ended: list[int] = []

    async def awaits() -> None:
        queue = await aio.PriorityQueue.named(db, name)
        await queue.push(db, 1)
        await queue.pop(db)
        await aio.run(jobs.push, db, 2)
        await asyncio.to_thread(jobs.push, db, 3)
        await aio.Worker(db, queue, lambda item: ended.append(item.value)).run(drain=True)

    with noted() as caught:
        asyncio.run(awaits())
        jobs.push(db, 4)
        thread = threading.Thread(target=jobs.push, args=(db, 5))
        thread.start()
        thread.join()
        jobs.pop(db)
    assert places(caught) == []
    assert ended == [2, 3]


def test_a_cell_of_a_notebook_is_no_coroutine(db: Any, jobs: PriorityQueue[Any]) -> None:
    async def cell() -> None:
        exec("jobs.push(db, 1)", {"__name__": "__main__", "jobs": jobs, "db": db})

    with noted() as caught:
        asyncio.run(cell())
    assert places(caught) == []


def test_a_job_that_is_a_coroutine_is_told(db: Any, name: str) -> None:
    app = App(db)

    @app.job(queue=name)
    def mail() -> None: ...

    @app.job(queue=name)
    async def order(context: Context) -> None:
        await context.aio.step("awaited", aio.run, mail.push)
        mail.push()

    order.push()
    with noted() as caught:
        app.work(name, drain=True)
    assert places(caught) == [line_of(order.function, "        mail.push()")]
