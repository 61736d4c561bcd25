"""Callers of the functions of a step: the thread of its job, or an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from functools import partial
from typing import Any, Protocol, TypeVar

from fdbqueue.errors import TimedOut

_T = TypeVar("_T")


class Caller(Protocol):
    """Calls functions for the coroutine that is a step."""

    async def wait_for(self, function: Callable[[], _T], /) -> _T:
        """Call a function that waits for the database."""
        ...

    async def call(self, function: Callable[[], Any], timeout: float | None, /) -> Any:
        """Call a function of the job; raise `TimedOut` if it takes longer."""
        ...


class InThread:
    """Calls functions in this thread, so that a step waits for nothing else; see `finish`."""

    async def wait_for(self, function: Callable[[], _T]) -> _T:
        """Call a function that waits for the database."""
        return function()

    async def call(self, function: Callable[[], Any], timeout: float | None) -> Any:
        """Call a function of the job; if it takes longer, leave it to a thread of its own."""
        returned = function() if timeout is None else _within(function, timeout)
        if inspect.iscoroutine(returned):
            returned.close()
            raise TypeError(
                "the function of a step is a coroutine function: await context.aio.step"
            )
        return returned


class InLoop:
    """Calls functions in the running event loop, and those that wait in other threads."""

    async def wait_for(self, function: Callable[[], _T]) -> _T:
        """Call a function that waits for the database."""
        return await asyncio.to_thread(function)

    async def call(self, function: Callable[[], Any], timeout: float | None) -> Any:
        """Call a function or coroutine function of the job; cancel it if it takes longer."""
        returned = function()
        if not inspect.isawaitable(returned):
            return returned
        task = asyncio.ensure_future(returned)
        done, _ = await asyncio.wait([task], timeout=timeout)
        if not done:
            task.cancel()
            raise TimedOut(timeout or 0)
        return task.result()


def finish(step: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine that waits for nothing, because its caller is `InThread`.

    >>> finish(InThread().wait_for(lambda: 7))
    7
    """
    try:
        step.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("a step waits for an event loop")


def _within(function: Callable[[], Any], timeout: float) -> Any:
    future: futures.Future[Any] = futures.Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    run_here = partial(contextvars.copy_context().run, run)
    threading.Thread(target=run_here, name="fdbqueue-step", daemon=True).start()
    if not futures.wait([future], timeout).done:
        raise TimedOut(timeout)
    return future.result()
