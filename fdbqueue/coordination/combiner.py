"""Calls of several threads, done together: one transaction for all that came while one was busy."""

from __future__ import annotations

import copy
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from fdbqueue.database.binding import error_classes
from fdbqueue.errors import FDBError
from fdbqueue.types import Database

__all__ = ["Batch", "Combiner", "Performer"]

_NEXT = -1  # the leader is the thread that was just woken

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")
_R = TypeVar("_R")
_S = TypeVar("_S", covariant=True)


class Performer(Protocol[_R, _S]):
    """Does the requests of one database's callers."""

    def perform(self, db: Database, batch: Batch[_R]) -> Sequence[_S]:
        """Do them all, or the first ones if that is enough at once, or raise and do none."""
        ...


class Combiner(Generic[_Request, _Result]):
    """Has one thread of the process do what others, who come meanwhile, want as well.

    A thread that comes alone does its own request at once. Those that come while it is at it may
    still join, if the one that performs lets them; else they wait, and when it is done, the first
    of them does the requests of all, in the order in which they came. So nobody waits for longer
    than the batch under way, and these threads do not conflict with each other.

    The main thread does its own requests alone, and may conflict with the others: a signal handler
    can interrupt it anywhere, so it leads no other thread, and leaves no request with a leader,
    which would do it for nothing.

    If the batch fails in a way that says nothing took effect, each does its own request by itself
    and has its own error; an error of the database is everybody's.

    Parameters: `performer()`, which makes a `Performer` for each database, and in a forked child
    anew; `cost`, of a request, and `budget`, for those of one batch together.

    Source: Hendler, Incze, Shavit and Tzafrir, Flat Combining (2010).

    >>> class Doubler:
    ...     def perform(self, db, batch):
    ...         return [2 * number for number in batch.requests]
    >>> import fdbqueue
    >>> Combiner(Doubler, lambda number: 1, budget=10)(fdbqueue.open("memory:"), 21)
    42
    """

    def __init__(
        self,
        performer: Callable[[], Performer[_Request, _Result]],
        cost: Callable[[_Request], int],
        budget: int,
    ) -> None:
        self._performer = performer
        self._cost = cost
        self._budget = budget
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.RLock()  # a finalizer may call while its thread is in here
        self._lines: WeakKeyDictionary[Any, _Line[_Request, _Result]] = WeakKeyDictionary()
        self._process = os.getpid()
        self._main_thread = threading.main_thread().ident

    def __call__(self, db: Database, request: _Request) -> _Result:
        """Do a request on a database, alone or with others."""
        if self._process != os.getpid():
            self._begin()  # a forked child has none of the threads that wait
        line = self._lines.get(db) or self._new_line(db)
        thread = threading.get_ident()
        # A call from within a call cannot wait for itself.
        if thread == self._main_thread or thread == line.leader:
            return self._alone(db, line, request)
        call: _Call[_Request, _Result] = _Call(request)
        with self._guard:
            if line.leader is None:
                call.leads, line.leader = True, thread
            else:
                call.will_wait()
            line.waiting.append(call)
        if not call.leads:
            call.wait()
        if call.leads:
            self._lead(db, line, call)
        return self._alone(db, line, request) if call.is_alone else call.outcome()

    def submit(
        self,
        db: Database,
        request: _Request,
        start: Callable[[Callable[[], None]], object],
        done: Callable[[Callable[[], _Result]], None],
    ) -> None:
        """Do a request together with others without waiting for it here: for an event loop.

        `start(job)` has a thread do a job; `done(outcome)` is called by some thread in the end,
        where `outcome()` is the result, or raises.
        """
        if self._process != os.getpid():
            self._begin()
        line = self._lines.get(db) or self._new_line(db)
        call = _Submitted(request, start, done, self, db, line)
        with self._guard:
            if line.leader is None:
                call.leads, line.leader = True, _NEXT
            line.waiting.append(call)
        if call.leads:
            call.wake()

    def _new_line(self, db: Database) -> _Line[_Request, _Result]:
        with self._guard:
            return self._lines.setdefault(db, _Line(self._performer()))

    @staticmethod
    def _alone(db: Database, line: _Line[_Request, _Result], request: _Request) -> _Result:
        (result,) = line.performer.perform(db, Batch([request]))
        return result

    def _lead(
        self, db: Database, line: _Line[_Request, _Result], own: _Call[_Request, _Result]
    ) -> None:
        """Do the requests at the head of the line; the first is this thread's own."""
        calls: list[_Call[_Request, _Result]] = []
        try:
            line.leader = threading.get_ident()
            batch = _OpenBatch(self._guard, line, calls, self._cost, self._budget)
            batch.join()
            results = line.performer.perform(db, batch)
            for call, result in zip(calls, results):
                call.result = result
            with self._guard:
                line.waiting.extendleft(reversed(calls[len(results) :]))
                del calls[len(results) :]
        except BaseException as error:
            for call in calls:
                call.fail(error, is_own=call is own, is_shared=len(calls) > 1)
        finally:
            self._let_next_lead(line)
            if len(calls) > 1:
                for call in calls:
                    if call is not own:
                        call.wake()

    def _let_next_lead(self, line: _Line[_Request, _Result]) -> None:
        with self._guard:
            line.leader = None
            if line.waiting:
                line.leader = _NEXT
                line.waiting[0].leads = True
                line.waiting[0].wake()


class Batch(Generic[_Request]):
    """Requests that are done together."""

    def __init__(self, requests: list[_Request]) -> None:
        self.requests = requests

    def join(self) -> list[_Request]:
        """Take in what came meanwhile, as far as the budget goes; all requests of the batch."""
        return self.requests


class _OpenBatch(Batch[_Request], Generic[_Request, _Result]):
    """A batch that those who wait can join."""

    def __init__(
        self,
        guard: threading.RLock,
        line: _Line[_Request, _Result],
        calls: list[_Call[_Request, _Result]],
        cost: Callable[[_Request], int],
        budget: int,
    ) -> None:
        super().__init__([])
        self._guard = guard
        self._line = line
        self._calls = calls
        self._cost = cost
        self._left = budget

    def join(self) -> list[_Request]:
        waiting = self._line.waiting
        if not waiting:
            return self.requests
        with self._guard:
            while waiting:
                cost = self._cost(waiting[0].request)
                if self._calls and cost > self._left:
                    break
                self._left -= cost
                call = waiting.popleft()
                self._calls.append(call)
                self.requests.append(call.request)
        return self.requests


class _Call(Generic[_Request, _Result]):
    """One thread's request, and what became of it."""

    __slots__ = ("_woken", "error", "is_alone", "leads", "request", "result")

    _woken: threading.Lock

    def __init__(self, request: _Request) -> None:
        self.request = request
        self.result: Any = None  # of the type `_Result` once the request is done
        self.error: BaseException | None = None
        self.leads = False
        self.is_alone = False

    def will_wait(self) -> None:
        """Make ready to wait: from now on others may wake it."""
        self._woken = threading.Lock()
        self._woken.acquire()

    def wait(self) -> None:
        """Sleep until the request is done, or it is this thread's turn to lead."""
        self._woken.acquire()

    def wake(self) -> None:
        self._woken.release()

    def fail(self, error: BaseException, is_own: bool, is_shared: bool) -> None:
        """Take in the error of a batch: the leader's own, or somebody else's."""
        if isinstance(error, error_classes()):
            self.error = error if is_own else copy.copy(error)
        elif isinstance(error, Exception):
            self.error, self.is_alone = error, is_shared
        else:  # an interrupt in the middle: only the thread that it was for knows of it
            self.error = error if is_own else FDBError(1021)

    def outcome(self) -> _Result:
        if self.error is not None:
            raise self.error
        result: _Result = self.result
        return result


class _Submitted(_Call[_Request, _Result]):
    """A request for which no thread waits."""

    __slots__ = ("_combiner", "_db", "_done", "_line", "_start")

    def __init__(
        self,
        request: _Request,
        start: Callable[[Callable[[], None]], object],
        done: Callable[[Callable[[], _Result]], None],
        combiner: Combiner[_Request, _Result],
        db: Database,
        line: _Line[_Request, _Result],
    ) -> None:
        super().__init__(request)
        self._start = start
        self._done = done
        self._combiner = combiner
        self._db = db
        self._line = line

    def wake(self) -> None:
        """It is done; or it leads, or has to be done by itself: that takes a thread."""
        if self.leads or self.is_alone:
            self._start(self._work)
        else:
            self._done(self.outcome)

    def _work(self) -> None:
        if self.leads:
            self._combiner._lead(self._db, self._line, self)
        if self.is_alone:
            try:
                self.result = self._combiner._alone(self._db, self._line, self.request)
            except BaseException as error:
                self.error = error
            else:
                self.error = None
        self._done(self.outcome)


class _Line(Generic[_Request, _Result]):
    """The calls that wait for one database, and the thread that leads them."""

    def __init__(self, performer: Performer[_Request, _Result]) -> None:
        self.performer = performer
        self.waiting: deque[_Call[_Request, _Result]] = deque()
        self.leader: int | None = None
