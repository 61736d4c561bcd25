"""A thread's result is either delivered to its coroutine or undone, exactly once."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import Future

import pytest

from fdbqueue.coordination import event_loop
from fdbqueue.errors import FDBError, SyncFailed
from tests.support.programs import python
from tests.support.waiting import run_what_is_ready


class Work:
    """Work whose result arrives when the test says so; `undone` lists its undone results."""

    def __init__(self) -> None:
        self._future: Future[str] = Future()
        self._future.set_running_or_notify_cancel()
        self.undone: list[str] = []

    async def call(self) -> str:
        return await event_loop.handed_over(self._future, self.undone.append)

    def arrive(self) -> None:
        """Have the result arrive while this thread, and so its event loop, is blocked."""
        self._future.set_result("result")


def test_a_task_to_which_the_program_keeps_no_reference_ends_like_others() -> None:
    """An event loop itself has only weak references to its tasks."""
    work, ended = Work(), list[str]()

    async def main() -> None:
        async def forgotten() -> None:
            ended.append(await work.call())

        asyncio.ensure_future(forgotten())  # noqa: RUF006
        await run_what_is_ready()
        gc.collect()
        work.arrive()
        await run_what_is_ready()

    asyncio.run(main())
    assert (ended, work.undone) == (["result"], [])


@pytest.mark.parametrize(
    ("error", "raised"), [(OSError("full"), "full"), (SyncFailed("db"), "1021")]
)
def test_a_result_that_cannot_be_undone_is_logged_and_the_error_says_so(
    caplog: pytest.LogCaptureFixture, error: Exception, raised: str
) -> None:
    """If the disk fails, it is unknown whether the call took effect."""
    begun, may_finish = threading.Event(), threading.Event()

    def take() -> str:
        begun.set()
        assert may_finish.wait(60)
        return "item"

    def undo(_: str) -> None:
        raise error

    async def main() -> None:
        task = asyncio.ensure_future(event_loop.call(take, undo))
        await run_what_is_ready()
        assert begun.wait(60)
        task.cancel()
        may_finish.set()
        with pytest.raises((OSError, FDBError), match=raised):
            await task

    asyncio.run(main())
    assert "could not be undone: 'item'" in caplog.text


@pytest.mark.parametrize("iterations", range(4))
def test_a_result_is_delivered_or_undone_at_whichever_iteration_the_cancel_arrives(
    iterations: int,
) -> None:
    work = Work()

    async def main() -> None:
        task = asyncio.ensure_future(work.call())
        await run_what_is_ready()
        work.arrive()
        for _ in range(iterations):
            await asyncio.sleep(0)
        was_cancelled = task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError) == was_cancelled
        assert (results, work.undone) == (["result"], []) or work.undone == ["result"]

    asyncio.run(main())


HELD = """
import asyncio, threading
from fdbqueue.coordination import event_loop

async def call(event):
    await event_loop.call(lambda: event.wait(60) and "result", print)

loop = asyncio.new_event_loop()
events = [threading.Event(), threading.Event()]
tasks = [loop.create_task(call(event)) for event in events]
loop.run_until_complete(asyncio.sleep(0))  # the loop is never closed
events[0].set()
threading.Timer(0.2, events[1].set).start()
"""


def test_a_result_held_by_a_stopped_loop_is_undone_at_interpreter_exit() -> None:
    done = python(HELD)
    assert done.stdout.split() == ["result", "result"], done.stderr
