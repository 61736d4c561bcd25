"""Calls of several threads, done together: one transaction for all that came while one was busy."""

from __future__ import annotations

import copy
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from fdbqueue.database import error_classes
from fdbqueue.errors import FDBError

__all__ = ["Combiner"]

_NEXT = -1  # the leader is the thread that was just woken

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


class Combiner(Generic[_Request, _Result]):
    """Has one thread of the process do what others, who come meanwhile, want as well.

    A thread that comes alone does its own request at once. Those that come while it is at it wait;
    when it is done, the first of them does the requests of all, in the order in which they came. So
    nobody waits for longer than the batch under way, and threads of one process do not conflict
    with each other.

    If the batch fails in a way that says nothing took effect, each does its own request by itself
    and has its own error; an error of the database is everybody's. After an interrupt of the one
    that does a batch, the others do not know what became of it (1021).

    Parameters: `perform(db, requests)`, which does them all, or the first ones if that is enough at
    once, and gives their results, or raises and does none; `cost`, of a request, and `budget`, for
    those of one batch together.

    Source: Hendler, Incze, Shavit and Tzafrir, Flat Combining (2010).

    >>> double = Combiner(lambda db, numbers: [2 * n for n in numbers], lambda n: 1, budget=10)
    >>> import fdbqueue
    >>> double(fdbqueue.open("memory:"), 21)
    42
    """

    def __init__(
        self,
        perform: Callable[[Any, list[_Request]], list[_Result]],
        cost: Callable[[_Request], int],
        budget: int,
    ) -> None:
        self._perform = perform
        self._cost = cost
        self._budget = budget
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.RLock()  # a finalizer may call while its thread is in here
        self._lines: WeakKeyDictionary[Any, _Line[_Request, _Result]] = WeakKeyDictionary()
        self._process = os.getpid()

    def __call__(self, db: Any, request: _Request) -> _Result:
        """Do a request on a database, alone or with others."""
        if self._process != os.getpid():
            self._begin()  # a forked child has none of the threads that wait
        line = self._lines.get(db) or self._new_line(db)
        thread = threading.get_ident()
        call: _Call[_Request, _Result] | None = None
        leads = False
        # Nobody is to wait for a thread that was interrupted. (Within the `finally` itself, some
        # microseconds, Python has no way to hold an interrupt back.)
        try:
            with self._guard:
                if line.leader is None:
                    leads, line.leader = True, thread
                elif line.leader != thread:  # who calls from within a call cannot wait for itself
                    call = _Call(request)
                    line.waiting.append(call)
            if call is None:
                return self._alone(db, request)
            call.wait()
        except BaseException:
            if call is not None:
                self._withdraw(call, line)
            raise
        finally:
            if leads:
                self._let_next_lead(line)
        if call.leads:
            self._lead(db, line)
        return self._alone(db, request) if call.is_alone else call.outcome()

    def _new_line(self, db: Any) -> _Line[_Request, _Result]:
        with self._guard:
            return self._lines.setdefault(db, _Line())

    def _alone(self, db: Any, request: _Request) -> _Result:
        (result,) = self._perform(db, [request])
        return result

    def _withdraw(self, call: _Call[_Request, _Result], line: _Line[_Request, _Result]) -> None:
        """Have nobody do a request whose thread was interrupted, unless somebody is at it."""
        with self._guard:
            if call in line.waiting:
                line.waiting.remove(call)
            if call.leads:
                self._let_next_lead(line)

    def _lead(self, db: Any, line: _Line[_Request, _Result]) -> None:
        """Do the requests at the head of the line; the first is this thread's own."""
        batch: list[_Call[_Request, _Result]] = []
        try:
            with self._guard:
                line.leader = threading.get_ident()
                batch = self._batch(line)
            results = self._perform(db, [call.request for call in batch])
            for call, result in zip(batch, results):
                call.result = result
            with self._guard:
                line.waiting.extendleft(reversed(batch[len(results) :]))
            del batch[len(results) :]
        except BaseException as error:
            for call in batch:
                call.fail(error, is_own=call is batch[0], is_shared=len(batch) > 1)
        finally:
            self._let_next_lead(line)
            for call in batch[1:]:
                call.wake()

    def _batch(self, line: _Line[_Request, _Result]) -> list[_Call[_Request, _Result]]:
        batch = [line.waiting.popleft()]
        spent = self._cost(batch[0].request)
        while line.waiting:
            spent += self._cost(line.waiting[0].request)
            if spent > self._budget:
                break
            batch.append(line.waiting.popleft())
        return batch

    def _let_next_lead(self, line: _Line[_Request, _Result]) -> None:
        with self._guard:
            line.leader = None
            if line.waiting:
                line.leader = _NEXT
                line.waiting[0].leads = True
                line.waiting[0].wake()


class _Call(Generic[_Request, _Result]):
    """One thread's request, and what became of it."""

    def __init__(self, request: _Request) -> None:
        self.request = request
        self.result: _Result | None = None
        self.error: BaseException | None = None
        self.leads = False
        self.is_alone = False
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
        return self.result  # type: ignore[return-value]


class _Line(Generic[_Request, _Result]):
    """Who waits on one database."""

    def __init__(self) -> None:
        self.waiting: deque[_Call[_Request, _Result]] = deque()
        self.leader: int | None = None
