"""Batches of calls: one thread performs the requests of several."""

from __future__ import annotations

import copy
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import engine_of
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import run
from fdbqueue.errors import FDBError, error_classes
from fdbqueue.types import Database, Transaction

MAX_ITEMS = 200
"""Maximum number of items that a shared transaction takes or acknowledges."""

_NEXT = -1  # the combining thread is the one that was just woken

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


Perform: TypeAlias = "Callable[[Database, Batch[_Request]], Sequence[_Result]]"
"""Performs all or the first requests of a batch; after an error, none took effect."""


class Combiner(Generic[_Request, _Result]):
    """Combine the calls of one process's threads into batches.

    The first thread performs its own request at once. A request that arrives meanwhile joins the
    batch, if the performer lets it, or waits. Then the first waiting thread performs the waiting
    requests, in order of arrival, up to a `budget`. The main thread performs its requests alone: a
    signal handler can interrupt it anywhere.

    A database error ends all calls of the batch. After any other error, each thread performs its
    request alone.

    Source: Hendler, Incze, Shavit and Tzafrir, Flat Combining (2010).
    """

    def __init__(
        self,
        perform_on: Callable[[Database], Perform[_Request, _Result]],
        cost: Callable[[_Request], int],
        budget: int,
    ) -> None:
        self._perform_on = perform_on
        self._cost = cost
        self._budget = budget
        self._begin()

    def _begin(self) -> None:
        self._lines: dict[ref[Database], _Line[_Request, _Result]] = {}
        self._process = os.getpid()
        self._main_thread = threading.main_thread().ident

    def __call__(self, db: Database, request: _Request) -> _Result:
        """Perform a request, alone or in a batch."""
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
        if not line.enter(call, thread):
            woken.acquire()  # until the request is done, or this thread is to perform it
        return line.outcome(db, call)

    def submit(
        self,
        db: Database,
        request: _Request,
        start: Callable[[Callable[[], None]], object],
    ) -> Future[_Result]:
        """Submit a request of an event loop; `start(job)` runs a job in a thread."""
        line = self._lines.get(ref(db))
        if line is None or self._process != os.getpid():
            line = self._new_line(db)
        future: Future[_Result] = Future()
        future.set_running_or_notify_cancel()

        def work(call: _Call[_Request, _Result]) -> None:
            try:
                result = line.outcome(db, call)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        def wake(call: _Call[_Request, _Result]) -> None:
            if call.combines or call.is_alone:
                start(partial(work, call))
            else:
                work(call)

        call: _Call[_Request, _Result] = _Call(request, wake)
        if line.enter(call, _NEXT):  # by now, another thread may have woken it
            wake(call)
        return future

    def _new_line(self, db: Database) -> _Line[_Request, _Result]:
        if self._process != os.getpid():
            self._begin()  # a forked child has none of the waiting threads
        perform, is_remote = self._perform_on(db), engine_of(db).is_remote
        line: _Line[_Request, _Result] = _Line(perform, self._cost, self._budget, is_remote)
        return self._lines.setdefault(ref(db, self._lines.pop), line)  # it ends with its database


class Batch(list[_Request]):
    """The requests of one transaction."""

    line: _Line[_Request, Any] | None = None
    """The line whose requests may join the batch."""

    def join(self, tr: Transaction) -> bool:
        """Add arrived requests, within the budget; return whether any came.

        Call this before any write. The read version may be too old for them.
        """
        if self.line is None:
            return False
        n = len(self)
        if self.line.is_remote and self.line.expected > 1:
            tr.get_read_version().wait()  # meanwhile other requests can arrive
        if self.line.waiting:
            self.line.join(self)
        return len(self) > n


@dataclass(slots=True, eq=False)
class _Call(Generic[_Request, _Result]):
    """One thread's request and outcome.

    `wake(call)` follows its end, or tells it to perform the next batch or its request alone.
    """

    request: _Request
    wake: Callable[[_Call[_Request, _Result]], object]
    result: Any = None  # of the type `_Result` once the request is done
    error: BaseException | None = None
    combines: bool = False
    is_alone: bool = False

    def fail(self, error: BaseException, is_own: bool, is_shared: bool) -> None:
        """Store a batch's error; `is_own` for the combining thread's call."""
        if isinstance(error, Exception) and not isinstance(error, error_classes()):
            self.error, self.is_alone = error, is_shared
        elif is_own:
            self.error = error
        elif isinstance(error, Exception):
            self.error = copy.copy(error)
        else:  # the combining thread was interrupted: for other threads, the result is unknown
            self.error = FDBError(1021)


class _Line(Generic[_Request, _Result]):
    """One database's waiting calls, and the thread that combines them."""

    def __init__(
        self,
        perform: Perform[_Request, _Result],
        cost: Callable[[_Request], int],
        budget: int,
        is_remote: bool,
    ) -> None:
        self.guard = threading.RLock()  # a finalizer may run, and call, while its thread has it
        self.perform = perform
        self._cost = cost
        self._budget = budget
        self.is_remote = is_remote
        self.expected = 1  # the number of requests in the last batch
        self.waiting: deque[_Call[_Request, _Result]] = deque()
        self.combining: int | None = None
        self._joined: list[_Call[_Request, _Result]] = []  # the calls of the open batch
        self._room = budget  # the cost that the open batch can still have

    def enter(self, call: _Call[_Request, _Result], thread: int) -> bool:
        with self.guard:
            is_first = self.combining is None
            if is_first:
                call.combines, self.combining = True, thread
            self.waiting.append(call)
            return is_first

    def join(self, batch: Batch[_Request]) -> None:
        """Add waiting requests to the open batch, while there is room."""
        with self.guard:
            while self.waiting:
                self._room -= self._cost(self.waiting[0].request)
                if self._joined and self._room < 0:
                    break
                self._joined.append(self.waiting.popleft())
                batch.append(self._joined[-1].request)

    def outcome(self, db: Database, call: _Call[_Request, _Result]) -> _Result:
        if call.combines:
            self._combine(db, call)
        if call.is_alone:
            return self.perform(db, Batch((call.request,)))[0]
        if call.error is not None:
            raise call.error
        result: _Result = call.result
        return result

    def _combine(self, db: Database, own: _Call[_Request, _Result]) -> None:
        batch: Batch[_Request] = Batch()
        batch.line = self
        calls = self._joined = []
        self._room = self._budget
        try:
            self.combining = threading.get_ident()
            self.join(batch)
            results = self.perform(db, batch)
            self.expected = len(results)
            for call, result in zip(calls, results):
                call.result = result
            with self.guard:
                self.waiting.extendleft(reversed(calls[len(results) :]))
                del calls[len(results) :]
        except BaseException as error:
            for call in calls:
                call.fail(error, is_own=call is own, is_shared=len(calls) > 1)
        finally:
            self._let_next_combine()
            for call in calls:
                if call is not own:
                    call.wake(call)

    def _let_next_combine(self) -> None:
        with self.guard:
            self.combining = None
            if self.waiting:
                self.combining = _NEXT
                self.waiting[0].combines = True
                self.waiting[0].wake(self.waiting[0])


def sharing(
    receipts: Subspace,
    do: Callable[..., list[_Result]],
    db: Database,
    wrote: Callable[[list[_Result]], bool] = lambda _: True,
) -> Perform[_Request, _Result]:
    """Return a function that performs a batch in one transaction, exactly once.

    `do(tr, now=now, requests=requests)` returns the results of all or the first requests,
    `wrote(results)` whether they wrote anything.
    """
    commit: Callable[[Database, Callable[[Transaction], list[_Result]]], list[_Result]] = run
    if not engine_of(db).commits_are_certain:  # otherwise `run_once` does no more than `run`
        commit = partial(run_once, receipts=receipts, wrote=wrote)

    def perform(db: Database, batch: Batch[_Request]) -> list[_Result]:
        perform_in = partial(do, now=milliseconds(), requests=batch)
        if batch.line is None:
            return commit(db, perform_in)

        def join_and_perform(tr: Transaction) -> list[_Result]:
            batch.join(tr)
            return perform_in(tr)

        return commit(db, join_and_perform)

    return perform
