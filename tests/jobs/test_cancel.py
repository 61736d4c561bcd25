"""A job that runs is told that it was cancelled, and does not run again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fdbqueue import Worker, WorkerReport
from fdbqueue.jobs import App, Context
from fdbqueue.jobs.handler import JobHandler
from tests.support.waiting import MAX_WAIT, wait_until


def work_until(app: App, name: str, ended: Any) -> None:
    """Run a worker until something has happened."""
    queue = app.queue(name)
    worker = Worker(app.db, queue, JobHandler(app.jobs), concurrency=2, store_results=True)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(ended)
    finally:
        worker.stop()
        thread.join()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the outcomes in the log of workers, which are those in the metrics."""
    return [record.__dict__["outcome"] for record in caplog.records if hasattr(record, "outcome")]


def test_a_running_function_is_told(app: App, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    runs: list[int] = []
    begun = threading.Event()

    @app.job(queue=name)
    def job(context: Context) -> str:
        runs.append(context.attempt)
        begun.set()
        assert context.cancelled.wait(MAX_WAIT)
        raise OSError("it stops with an error")

    handle = job.push()

    def cancelled() -> bool:
        if begun.wait(0) and not runs[1:] and handle.state() == "claimed":
            handle.cancel()
        return handle.state() == "done"

    work_until(app, name, cancelled)
    info = handle.info()
    assert (info.outcome, info.attempts, runs) == ("cancelled", 1, [1])
    assert logged(caplog) == ["cancelled"]
    assert not handle.cancel()


def test_a_coroutine_can_await_its_cancellation(
    app: App, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    @app.job(queue=name)
    async def job(context: Context) -> str:
        handle.cancel()
        work = asyncio.create_task(asyncio.sleep(MAX_WAIT))
        await context.cancelled
        work.cancel()
        await context.cancelled  # a second time, at once
        return "stopped"

    handle = job.push()
    assert app.work(name, drain=True) == WorkerReport(done=1)
    info = handle.info()
    assert (info.outcome, info.result) == ("cancelled", "stopped")
    assert logged(caplog) == ["cancelled"]
