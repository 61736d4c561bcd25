"""Where the coroutines of jobs run: in one event loop, until one of them blocks it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Generator
from concurrent import futures
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol

from fdbqueue.worker.functions.guards import InThisProcess
from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")

IN_THREAD = "asyncio_"
"""The prefix of asyncio's names of the threads in which coroutines call functions."""

_CANCEL = 0.5  # seconds that coroutines have for their end after they were cancelled
_LOOK = 1.0  # seconds from one look at whether the loop still runs to the next
_BLOCKED = 1.0  # seconds after which a loop that does not answer is blocked


class _Job(Protocol):
    began: float
    loop_thread: int

    @property
    def job_name(self) -> str: ...

    def note(self, future: futures.Future[Any]) -> None: ...


class Coroutines:
    """Runs all coroutines of a worker in one event loop; if one blocks it, in another loop.

    Attributes:
        loop: The event loop of the program, if it awaits the worker.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._own: _EventLoop | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def result(self, job: _Job, awaitable: Awaitable[Any]) -> Any:
        """Return the result of a job's coroutine."""
        is_claimed = threading.Lock()  # by the loop in which it begins

        async def settled() -> tuple[Any, BaseException | None]:
            if not is_claimed.acquire(blocking=False):
                return None, None  # another loop has begun it
            job.loop_thread, job.began = threading.get_ident(), time.perf_counter()
            # An exit or interrupt would end the loop, and with it all other running coroutines.
            try:
                with InThisProcess(job.job_name):
                    return await awaitable, None
            except BaseException as error:
                return None, error

        own = None
        if (loop := self.loop) is None:
            own = self._begin_loop()
            loop = own.loop
            job.began = math.inf  # its time is stopped until the loop begins it
        future = asyncio.run_coroutine_threadsafe(settled(), loop)
        job.note(future)
        while not futures.wait([future], _LOOK).done:
            if self.is_orphan:
                raise RuntimeError("the event loop was closed while a handler was awaited in it")
            if own is None:
                continue
            if future.cancelled():
                own.ask()  # the coroutine has not ended
            elif own.is_blocked:
                if is_claimed.acquire(blocking=False):
                    return self.result(job, awaitable)
                raise RuntimeError("another job blocks the event loop in which this one ran")
        result, error = future.result()
        if error is not None:
            raise error
        return result

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[Any]) -> Generator[Any]:
        """Enter an async context manager in the event loop, in one task."""
        state: futures.Future[Any] = futures.Future()
        over = asyncio.Event()

        async def live() -> None:
            async with manager as value:
                state.set_result(value)
                await over.wait()

        own = self._begin_loop()
        life = asyncio.run_coroutine_threadsafe(live(), own.loop)
        futures.wait([state, life], return_when=futures.FIRST_COMPLETED)
        if life.done():
            life.result()  # raises why it did not begin
        try:
            yield state.result()
        finally:
            own.loop.call_soon_threadsafe(over.set)
            while not futures.wait([life], _LOOK).done:
                own.ask()
                if own.is_blocked:
                    raise RuntimeError("a job blocks the event loop in which the lifespan ends")
            life.result()

    @property
    def is_orphan(self) -> bool:
        """True if the event loop of the program is closed."""
        return self.loop is not None and self.loop.is_closed()

    def _begin_loop(self) -> _EventLoop:
        with self._guard:
            if self._own is None or self._own.is_blocked:
                self._own = _EventLoop()
            return self._own

    def close(self) -> None:
        """Stop the event loop; the next coroutine may start another one."""
        with self._guard:
            if self._own is not None:
                self._own.close()
                self._own = None


class _EventLoop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._is_closed = threading.Event()
        self._asked_at = math.inf
        self._thread = threading.Thread(target=self._run, name="fdbqueue-handlers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed.is_set():  # a handler may have stopped the loop
            try:
                self.loop.run_forever()
            except BaseException:  # raised by what a handler has left behind
                _log.exception("a task or callback of the event loop of jobs has failed")
        if tasks := asyncio.all_tasks(self.loop):  # of jobs that the worker has given up
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL))

    def ask(self) -> None:
        """Find out whether the loop is blocked, which `is_blocked` tells a second later."""
        if self._asked_at == math.inf:
            self._asked_at = time.monotonic()
            self.loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._asked_at = math.inf

    @property
    def is_blocked(self) -> bool:
        return time.monotonic() - self._asked_at > _BLOCKED

    def close(self) -> None:
        self._is_closed.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * _CANCEL)
        if not self._thread.is_alive():
            self.loop.close()
