"""Operations in an event loop: threads make the calls, and coroutines take or undo the results."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, finalize, ref

from fdbqueue import types
from fdbqueue.coordination.sans_io import Call, SansIO, Sleep, Submit
from fdbqueue.errors import FDBError, StorageError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_THREADS = 40

_log = logging.getLogger("fdbqueue")

pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fdbqueue.aio")


def _begin_pool() -> None:
    """Begin with no threads in a forked child, where the parent's threads do not run."""
    global pool
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fdbqueue.aio")


os.register_at_fork(after_in_child=_begin_pool)


def start(job: Callable[[], object]) -> None:
    """Run a job in a thread of the pool; while the interpreter exits, in this thread."""
    try:
        pool.submit(job)
    except RuntimeError:  # the interpreter exits, and the pool accepts no more work
        job()


async def drive(operation: SansIO[_T], ends: Sequence[asyncio.Future[Any]] = ()) -> _T:
    """Perform an operation: its calls in threads of the pool, its sleeps without a thread.

    Once one of `ends` is done, the operation stops sleeping and does not look again.
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
                handover: HandOver[Any] = HandOver(yielded.undo)
                yielded.combiner.submit(yielded.db, yielded.request, start, handover.arrive)
                result = await handover.result()
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

    def wake(watch: types.Future) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, watch)

    def wake_later(alarm: types.Future) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(loop.call_later, sleep.moment, settle, alarm)

    try:
        for watch in sleep.watches:
            watch.on_ready(wake)
        for alarm in sleep.alarms:
            alarm.on_ready(wake_later)
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


async def run(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function in a thread of the pool, for example one that takes a database.

    It sees the context variables of the caller, such as the current span of OpenTelemetry.

    >>> import asyncio, fdbqueue
    >>> asyncio.run(run(fdbqueue.admin.queue_names, fdbqueue.open("memory:")))
    []
    """
    context = copy_context()
    return await call(lambda: context.run(function, *args, **kwargs))


async def call(function: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> _T:
    """Call a function in a thread of the pool; undo its result if this coroutine is cancelled.

    >>> asyncio.run(call(lambda: 7, print))
    7
    """
    handover = HandOver(undo)
    pool.submit(function).add_done_callback(lambda done: handover.arrive(done.result))
    return await handover.result()


async def finished(work: Future[_T]) -> _T:
    """Wait for the end of a thread's work, even if this task is cancelled.

    Raises:
        CancelledError: The task was cancelled, any number of times, and the work has ended.

    Example:
        >>> asyncio.run(finished(pool.submit(lambda: 7)))
        7
    """
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


class HandOver(Generic[_T]):
    """The hand-over of one result from a thread to the coroutine that waits for it.

    A deque holds the outcome. Normally the coroutine pops it and has the result. If the coroutine
    was cancelled or its loop is closed, a thread pops it and calls `undo(result)`. Only one of them
    gets it. Errors and false results are not undone, because the call took nothing. Without `undo`
    the result of a cancelled coroutine is dropped.
    """

    def __init__(self, undo: Callable[[_T], object] | None) -> None:
        loop = asyncio.get_running_loop()
        self._mailbox = _mailboxes.get(loop) or _mailboxes.setdefault(loop, _Mailbox(loop))
        self._undo = undo
        self._outcome: deque[Callable[[], _T]] = deque()
        self._is_left = False
        self._has_arrived = loop.create_future()
        self._undone: Future[None] = Future()

    def arrive(self, outcome: Callable[[], _T]) -> None:
        """Deliver the outcome, from any thread: `outcome()` returns the result or raises."""
        self._outcome.append(outcome)
        if self._is_left:
            self._give_back()
        else:
            self._mailbox.post(self)

    async def result(self) -> _T:
        """Return the result, or raise its error.

        If the task is cancelled, once or several times, wait until the result is undone.
        """
        try:
            await self._has_arrived
            outcome = self._outcome.pop()
        except BaseException as error:
            self.leave()
            if isinstance(error, asyncio.CancelledError) and self._undo is not None:
                await finished(self._undone)
            raise
        return outcome()

    def wake(self) -> None:
        """Wake the coroutine, which takes the outcome. Called by its loop."""
        if not self._has_arrived.done():
            self._has_arrived.set_result(None)

    def leave(self) -> None:
        """Undo the result, now or when it arrives, unless the coroutine has taken it."""
        # `arrive` stores the outcome and then reads the flag; this sets the flag and then reads the
        # outcome. So at least one of them sees both.
        self._is_left = True
        self._give_back()

    def _give_back(self) -> None:
        with suppress(IndexError):  # it has not arrived, or has been taken
            start(partial(self._end, self._outcome.pop()))

    def _end(self, outcome: Callable[[], _T]) -> None:
        try:
            if self._undo is not None and (result := outcome()):
                _undo(self._undo, result)
        except BaseException as error:
            self._undone.set_exception(error)
        else:
            self._undone.set_result(None)


def _undo(undo: Callable[[_T], object], result: _T) -> None:
    try:
        undo(result)
    except BaseException as error:
        _log.exception("a call was cancelled, and its result could not be undone: %r", result)
        if isinstance(error, StorageError):  # it says that nothing was stored, but the call did
            raise FDBError(1021) from error
        raise


class _Mailbox:
    """The results that have arrived for an event loop, which is woken once for all of them.

    Waking a loop is expensive: the thread releases the interpreter lock and waits to get it again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._arrived: deque[HandOver[Any]] = deque()
        self._is_woken = False

    def post(self, handover: HandOver[Any]) -> None:
        self._arrived.append(handover)
        if self._is_woken:
            return
        self._is_woken = True
        loop = self._loop()
        if loop is None:
            self.give_back([])
            return
        wake = _Wake(self, loop)
        with suppress(RuntimeError):  # the loop is closed and drops `wake`, whose finalizer runs
            loop.call_soon_threadsafe(wake)

    def take_all(self) -> list[HandOver[Any]]:
        """Empty the mailbox; the next result wakes the loop again."""
        self._is_woken = False
        handovers: list[HandOver[Any]] = []
        with suppress(IndexError):
            while True:
                handovers.append(self._arrived.popleft())
        return handovers

    def give_back(self, handovers: list[HandOver[Any]]) -> None:
        """Undo these results and those in the mailbox, because the loop no longer runs."""
        for handover in [*handovers, *self.take_all()]:
            handover.leave()


class _Wake:
    """The callback that wakes an event loop and its coroutines.

    Only the loop references it, until the coroutines have taken their results. If the loop is
    closed first, or the interpreter exits, the callback is dropped, and its finalizer undoes the
    results.
    """

    def __init__(self, mailbox: _Mailbox, loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._loop = loop
        self._handovers: list[HandOver[Any]] = []
        self._finalizer = finalize(self, mailbox.give_back, self._handovers)

    def __call__(self) -> None:
        self._handovers += self._mailbox.take_all()
        for handover in self._handovers:
            handover.wake()
        # A loop runs callbacks in order: first the coroutines that were woken, then this one.
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._finalizer.detach()


_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()
