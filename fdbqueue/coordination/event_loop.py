"""Operations in an event loop: threads make the calls."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import finalize

from fdbqueue import types
from fdbqueue.coordination.sans_io import Call, SansIO, Sleep, Submit, check_first, sans_io_of
from fdbqueue.errors import FDBError, StorageError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_THREADS = 40

_log = logging.getLogger("fdbqueue")

pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fdbqueue.aio")


def _begin_pool() -> None:
    global pool
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fdbqueue.aio")


os.register_at_fork(after_in_child=_begin_pool)


def start(job: Callable[[], object]) -> None:
    """Run a job in the pool, or in this thread while the interpreter exits."""
    try:
        pool.submit(job)
    except RuntimeError:  # the interpreter exits, and the pool accepts no more work
        job()


async def drive(operation: SansIO[_T], ends: Sequence[asyncio.Future[Any]] = ()) -> _T:
    """Perform an operation, without a thread for its sleeps.

    Once one of `ends` is done, it does not sleep or look again.
    """
    result: Any = None
    try:
        while True:
            try:
                yielded = operation.send(result)
            except StopIteration as end:
                done: _T = end.value
                return done
            if isinstance(yielded, Submit):
                work = yielded.combiner.submit(yielded.db, yielded.request, start)
                result = await handed_over(work, yielded.undo)
            elif isinstance(yielded, Call):
                result = await call(yielded.run, yielded.undo)
            else:
                result = await _sleep(yielded, ends)
    finally:
        operation.close()  # an operation that waits leaves its line


async def _sleep(sleep: Sleep, ends: Sequence[asyncio.Future[Any]]) -> bool:
    loop = asyncio.get_running_loop()
    fired: asyncio.Future[Any] = loop.create_future()

    def settle(watch: types.Future) -> None:
        if not fired.done():
            fired.set_result(watch)

    def wake(watch: types.Future, moment: float = 0.0) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(loop.call_later, moment, settle, watch)

    try:
        for watch in sleep.watches:
            watch.on_ready(wake)
        for alarm in sleep.alarms:
            alarm.on_ready(partial(wake, moment=sleep.moment))
        # Before Python 3.12, `wait_for` loses a cancellation after the watch has fired.
        await asyncio.wait(
            [fired, *ends], timeout=sleep.seconds, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        sleep.cancel()
    if fired.done():
        sleep.ended_by = fired.result()
        sleep.raise_error()
    return not any(end.done() for end in ends)


async def perform(method: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a method of a queue in the event loop, or in a thread if it is no operation."""
    operation = sans_io_of(method)
    if operation is None:
        return await run(method, *args, **kwargs)
    try:
        return await drive(operation(*args, **kwargs))
    except Exception:
        check_first(args[1:])
        raise


async def run(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function in a thread of the pool, for example one that takes a database.

    It sees the caller's context variables, such as the current span of OpenTelemetry.

    >>> import asyncio, fdbqueue
    >>> asyncio.run(run(fdbqueue.admin.queue_names, fdbqueue.open("memory:")))
    []
    """
    context = copy_context()
    return await call(lambda: context.run(function, *args, **kwargs))


async def call(function: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> _T:
    """Call a function in a thread of the pool; `undo` is as for `handed_over`."""
    return await handed_over(pool.submit(function), undo)


async def handed_over(work: Future[_T], undo: Callable[[_T], object] | None) -> _T:
    """Return the result of a thread's work, or have it undone.

    A cancelled task waits until a thread has called `undo(result)`. If its loop was closed, `undo`
    runs once Python collects the task or the interpreter exits. Errors and false results are not
    undone.
    """
    arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # The work keeps the task alive, of which asyncio itself has only a weak reference, until it is
    # done, and not longer: a task that never runs again has to be collected.
    waiting = [arrived]
    work.add_done_callback(lambda _: _wake(waiting.pop()))
    give_back = finalize(arrived, _give_back, work, undo or bool)
    try:
        await arrived
    except asyncio.CancelledError:
        undone = give_back()
        if undone is not None and undo is not None:
            await finished(undone)
        raise
    give_back.detach()
    return work.result()


def _give_back(work: Future[_T], undo: Callable[[_T], object]) -> Future[None]:
    undone: Future[None] = Future()
    work.add_done_callback(lambda _: start(partial(_undo, work, undo, undone)))
    return undone


def _undo(work: Future[_T], undo: Callable[[_T], object], undone: Future[None]) -> None:
    result = None if work.exception() else work.result()
    try:
        if result:
            undo(result)
    except BaseException as error:
        _log.exception("a call was cancelled, and its result could not be undone: %r", result)
        # A `StorageError` says that nothing was stored, but the call did store something.
        undone.set_exception(FDBError(1021) if isinstance(error, StorageError) else error)
    else:
        undone.set_result(None)


def _wake(arrived: asyncio.Future[None]) -> None:
    """Wake the coroutine that waits for a future, from any thread.

    Only the loop references the callback, so a closed loop drops it.
    """

    def arrive() -> None:
        if not arrived.done():
            arrived.set_result(None)

    with suppress(RuntimeError):  # the loop is closed
        arrived.get_loop().call_soon_threadsafe(arrive)


async def finished(work: Future[_T]) -> _T:
    """Wait for the end of a thread's work, even if this task is cancelled."""
    cancelled = None
    end = asyncio.wrap_future(work)
    while not end.done():
        try:
            await asyncio.wait([end])  # a cancellation of `wait` does not cancel `end`
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and end.exception() is None:
        raise cancelled
    return end.result()
