"""A job that runs is told that it was cancelled, and does not run again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fdbqueue.jobs import App, Context
from tests.support.waiting import MAX_WAIT


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_running_job_is_told_and_does_not_run_again(
    app: App, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def function(context: Context) -> None:
        handle.cancel()
        assert context.cancelled.wait(MAX_WAIT)
        raise OSError("it stops with an error")

    async def coroutine(context: Context) -> str:
        handle.cancel()
        work = asyncio.create_task(asyncio.sleep(MAX_WAIT))
        await context.cancelled
        work.cancel()
        await context.cancelled  # a second time, at once
        return "stopped"

    job: Any = function if kind == "function" else coroutine
    handle = app.job(queue=name, name="job")(job).push()
    app.work(name, drain=True)
    info = handle.info()
    result = None if kind == "function" else "stopped"
    assert (info.outcome, info.attempts, info.result) == ("cancelled", 1, result)
    # The outcomes in the log of workers are those in the metrics.
    logged = [record.__dict__["outcome"] for record in caplog.records if hasattr(record, "outcome")]
    assert logged == ["cancelled"]
    assert not handle.cancel()
