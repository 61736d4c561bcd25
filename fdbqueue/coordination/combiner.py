"""Combine the calls of several threads: one thread performs the requests of all waiting threads."""

from __future__ import annotations

import copy
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

from fdbqueue.errors import FDBError, error_classes
from fdbqueue.types import Database

_NEXT = -1  # the combining thread is the one that was just woken

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


class Batch(list[_Request]):
    """The requests that one transaction performs."""

    __slots__ = ()

    is_open = False
    """True if other requests may join it."""

    def join(self) -> None:
        """Add the requests that have arrived, within the budget; call this before any write."""


Perform: TypeAlias = Callable[[Database, Batch[_Request]], Sequence[_Result]]
"""A function that performs a batch of requests on a database.

It performs all requests or the first ones, and returns their results; or it raises an error, and
has performed none. The requests without a result go back to the head of the line.
"""


class Combiner(Generic[_Request, _Result]):
    """The calls of the threads of one process, combined into batches by one of them.

    The first thread combines: it performs its own request at once. A thread that arrives
    meanwhile may still join the batch, if the performer lets it; otherwise it waits. After the
    batch, the first waiting thread combines: it performs the requests of all waiting
    threads, in order of arrival. So a request waits for one batch at most, and these threads do not
    conflict with each other.

    The main thread performs its requests alone, and may conflict with the other threads. A signal
    handler can interrupt it anywhere. So it performs no requests of other threads, and leaves no
    request to another thread, which would then perform it for nothing.

    An error of the database ends all calls of the batch. After any other error nothing took effect,
    and each thread performs its request alone, so that it gets only errors of this request.

    Args:
        perform_on: `perform_on(db)` returns the function that performs batches on a database: one
            per database, and new ones in a forked child.
        cost: `cost(request)` returns the cost of a request.
        budget: The maximum cost of a batch. A single request may exceed it.

    Source: Hendler, Incze, Shavit and Tzafrir, Flat Combining (2010).

    Example:
        >>> def double(db, batch):
        ...     return [2 * number for number in batch]
        >>> import fdbqueue
        >>> combiner = Combiner(lambda db: double, lambda number: 1, budget=10)
        >>> combiner(fdbqueue.open("memory:"), 21)
        42
    """

    def __init__(
        self,
        perform_on: Callable[[Database], Perform[_Request, _Result]],
        cost: Callable[[_Request], int],
        budget: int,
    ) -> None:
        self._perform_on = perform_on
        self.cost = cost
        self.budget = budget
        self._begin()

    def _begin(self) -> None:
        self.guard = threading.RLock()  # a finalizer may run, and call, while its thread has it
        self._lines: dict[ref[Database], _Line[_Request, _Result]] = {}
        self._process = os.getpid()
        self._main_thread = threading.main_thread().ident

    def __call__(self, db: Database, request: _Request) -> _Result:
        """Perform a request on a database, alone or in a batch, and return its result."""
        line = self._lines.get(ref(db))
        if line is None or self._process != os.getpid():
            line = self._new_line(db)
        thread = threading.get_ident()
        # A nested call cannot wait for the call that it is part of.
        if thread == self._main_thread or thread == line.combining:
            return line.perform(db, Batch((request,)))[0]
        woken = threading.Lock()
        woken.acquire()
        call: _Call[_Request, _Result] = _Call(request, lambda _: woken.release())
        if not self._enter(line, call, thread):
            woken.acquire()  # until the request is done, or this thread is to perform it
        self._work(db, line, call)
        return call.outcome()

    def submit(
        self,
        db: Database,
        request: _Request,
        start: Callable[[Callable[[], None]], object],
        done: Callable[[Callable[[], _Result]], None],
    ) -> None:
        """Submit a request without waiting for its result, for an event loop.

        Args:
            db: The database.
            request: The request.
            start: `start(job)` runs a job in a thread.
            done: `done(outcome)` is called at the end, by any thread; `outcome()` returns the
                result or raises.
        """
        line = self._lines.get(ref(db))
        if line is None or self._process != os.getpid():
            line = self._new_line(db)

        def work(call: _Call[_Request, _Result]) -> None:
            self._work(db, line, call)
            done(call.outcome)

        def wake(call: _Call[_Request, _Result]) -> None:
            if call.combines or call.is_alone:
                start(partial(work, call))
            else:
                done(call.outcome)

        call: _Call[_Request, _Result] = _Call(request, wake)
        if self._enter(line, call, _NEXT):  # by now, another thread may have woken it
            call.wake(call)

    def _new_line(self, db: Database) -> _Line[_Request, _Result]:
        if self._process != os.getpid():
            self._begin()  # a forked child has none of the waiting threads
        with self.guard:
            # The line ends with its database.
            return self._lines.setdefault(ref(db, self._lines.pop), _Line(self._perform_on(db)))

    def _enter(
        self, line: _Line[_Request, _Result], call: _Call[_Request, _Result], thread: int
    ) -> bool:
        """Append a call to a line; return whether it is the first, and is to combine at once."""
        with self.guard:
            is_first = line.combining is None
            if is_first:
                call.combines, line.combining = True, thread
            line.waiting.append(call)
            return is_first

    def _work(
        self, db: Database, line: _Line[_Request, _Result], call: _Call[_Request, _Result]
    ) -> None:
        """Do what a woken call has to do itself."""
        if call.combines:
            self._combine(db, line, call)
        if call.is_alone:
            call.error = None
            try:
                (call.result,) = line.perform(db, Batch((call.request,)))
            except BaseException as error:
                call.error = error

    def _combine(
        self, db: Database, line: _Line[_Request, _Result], own: _Call[_Request, _Result]
    ) -> None:
        """Perform the requests at the head of the line; the first is this thread's own."""
        batch = _OpenBatch(self, line)
        calls = batch.calls
        try:
            line.combining = threading.get_ident()
            batch.join()
            results = line.perform(db, batch)
            for call, result in zip(calls, results):
                call.result = result
            with self.guard:
                line.waiting.extendleft(reversed(calls[len(results) :]))
                del calls[len(results) :]
        except BaseException as error:
            for call in calls:
                call.fail(error, is_own=call is own, is_shared=len(calls) > 1)
        finally:
            self._let_next_combine(line)
            if len(calls) > 1:
                for call in calls:
                    if call is not own:
                        call.wake(call)

    def _let_next_combine(self, line: _Line[_Request, _Result]) -> None:
        with self.guard:
            line.combining = None
            if line.waiting:
                line.combining = _NEXT
                line.waiting[0].combines = True
                line.waiting[0].wake(line.waiting[0])


class _OpenBatch(Batch[_Request], Generic[_Request, _Result]):
    """A batch that waiting requests can join."""

    is_open = True

    def __init__(
        self, combiner: Combiner[_Request, _Result], line: _Line[_Request, _Result]
    ) -> None:
        super().__init__()
        self.calls: list[_Call[_Request, _Result]] = []
        self._combiner = combiner
        self._waiting = line.waiting
        self._left = combiner.budget

    def join(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        with self._combiner.guard:
            while waiting:
                cost = self._combiner.cost(waiting[0].request)
                if self.calls and cost > self._left:
                    break
                self._left -= cost
                call = waiting.popleft()
                self.calls.append(call)
                self.append(call.request)


@dataclass(slots=True, eq=False)
class _Call(Generic[_Request, _Result]):
    """The request of one thread, and its outcome.

    Attributes:
        request: The request.
        wake: `wake(call)` is called when the call has its outcome, is to combine, or is alone.
        result: The result, once the request is done.
        error: The error that the call raises.
        combines: Whether the call performs the next batch.
        is_alone: Whether the call performs its request alone.
    """

    request: _Request
    wake: Callable[[_Call[_Request, _Result]], object]
    result: Any = None  # of the type `_Result` once the request is done
    error: BaseException | None = None
    combines: bool = False
    is_alone: bool = False

    def fail(self, error: BaseException, is_own: bool, is_shared: bool) -> None:
        """Store the error of a batch; `is_own` for the call of the combining thread."""
        if isinstance(error, error_classes()):
            self.error = error if is_own else copy.copy(error)
        elif isinstance(error, Exception):
            self.error, self.is_alone = error, is_shared
        else:  # the combining thread was interrupted: for other threads, the result is unknown
            self.error = error if is_own else FDBError(1021)

    def outcome(self) -> _Result:
        if self.error is not None:
            raise self.error
        result: _Result = self.result
        return result


class _Line(Generic[_Request, _Result]):
    """The waiting calls of one database, and the thread that combines them."""

    def __init__(self, perform: Perform[_Request, _Result]) -> None:
        self.perform = perform
        self.waiting: deque[_Call[_Request, _Result]] = deque()
        self.combining: int | None = None
