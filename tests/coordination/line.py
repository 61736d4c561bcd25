"""Processes that pop from one queue within one test, each failing where the test says.

Processes see each other only through the database. Here a process is therefore a queue object, a
database object and a thread. It is dead when its database rejects every call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import pytest

import fdbqueue
from fdbqueue import Item, PriorityQueue
from fdbqueue.coordination import pops, sweeper
from fdbqueue.coordination.sans_io import sleep_on
from fdbqueue.queue.base import store_of
from tests.support.keys import layout_of
from tests.support.scripted import DEAD, Fault, Script, ScriptedDatabase

_T = TypeVar("_T")

TIMEOUT = 60.0  # seconds after which a test fails instead of waiting


CONFLICT = Fault("before", 1020)
DIES_BEFORE = Fault("before", DEAD)
DIES_AFTER = Fault("after", DEAD)

# The first commit of a process sweeps requests that dead processes left behind. The second one pops
# items directly. If that conflicts, the process becomes the leader or stages a request.
SWEEP, FAST, STAGED = 1, 2, 3
MEETS_CONFLICT: Script = {FAST: CONFLICT}
DIES_WAITING: Script = {FAST: CONFLICT, STAGED: DIES_AFTER}
"""The process dies as soon as its request is stored, if there is another leader."""


class Call(threading.Thread, Generic[_T]):
    """A call in its own thread; `settled` is set when it first sleeps or is done."""

    def __init__(self, call: Callable[[], _T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._future: Future[_T] = Future()
        self.settled = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)
        self.settled.set()

    def is_done(self) -> bool:
        return self._future.done()

    def result(self) -> _T:
        return self._future.result(TIMEOUT)

    def error(self) -> BaseException | None:
        return self._future.exception(TIMEOUT)


def disable_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request, leadership or contention time out, however slow the machine is."""
    for module in (pops, sweeper):
        monkeypatch.setattr(module, "REQUEST_TIMEOUT", 1e6)
    monkeypatch.setattr(pops, "_MAX_LEADERSHIP", TIMEOUT)
    monkeypatch.setattr(pops, "_CONTENDED", TIMEOUT)


class Sleeps:
    """A replacement of `sleep_on`: a sleep ends when its watch fires or the test ends it."""

    def __init__(self) -> None:
        self.woken: list[bool] = []
        """For each ended sleep, whether its watch fired."""
        self.may_wake = threading.Event()
        """While this is clear, processes do not notice that their sleep has ended."""
        self.may_wake.set()
        self.error: BaseException | None = None
        """If set, the exception that interrupts each sleep as it ends."""
        self._guard = threading.Condition()
        self._started = 0
        self._sleeping: list[Any] = []
        self._has_ended = False

    def __call__(self, watches: list[Any], seconds: float) -> Any:
        (watch,) = watches
        with self._guard:
            self._started += 1
            self._sleeping.append(watch)
            self._guard.notify_all()
        thread = threading.current_thread()
        if isinstance(thread, Call):
            thread.settled.set()
        fired = sleep_on(watches, 0.01 if self._has_ended else TIMEOUT)
        woken = fired is not None and watch in self._sleeping
        self.woken.append(woken)
        assert self.may_wake.wait(TIMEOUT)
        if self.error is not None:
            raise self.error
        return watch if woken else None

    def wait_for_sleeps(self, number: int) -> None:
        """Wait until this number of sleeps have begun."""
        with self._guard:
            assert self._guard.wait_for(lambda: self._started >= number, TIMEOUT)

    def end(self) -> None:
        """Time out all current sleeps now, and later sleeps almost at once."""
        with self._guard:
            self._has_ended = True
            sleeping, self._sleeping = self._sleeping, []
        for watch in sleeping:
            watch.cancel()


class Process:
    """A process that pops."""

    def __init__(self, db: Any, queue: PriorityQueue, script: Script) -> None:
        self.db = ScriptedDatabase(db, script)
        self.queue = queue

    def start(self, call: Callable[[PriorityQueue, Any], _T]) -> Call[_T]:
        """Begin a call on the queue and the database; return once it sleeps or is done."""
        begun_call = Call(lambda: call(self.queue, self.db))
        assert begun_call.settled.wait(TIMEOUT)
        return begun_call

    def pop(self, n: int = 1, at_max: bool = False) -> Call[list[Item]]:
        """Begin to pop."""
        end = {"max": True} if at_max else {}
        return self.start(lambda queue, db: queue.pop_many(db, n, **end))


class Line:
    """The processes that pop from one queue, and what they leave in the database."""

    def __init__(self, db: Any, queue: PriorityQueue, sleeps: Sleeps) -> None:
        self.db = db
        self.queue = queue
        self.layout = layout_of(queue)
        self.sleeps = sleeps

    def process(self, script: Script = MEETS_CONFLICT) -> Process:
        """Return a process that has not popped yet; by default its first pop conflicts."""
        queue = PriorityQueue(self.queue.subspace)
        store_of(queue).sweeper._next_look = math.inf  # a look at the schedule is no step of a pop
        return Process(self.db, queue, script)

    def set_idle_leader(self) -> None:
        """Make an idle process the leader, so that a pop that conflicts waits for it."""
        self.db[self.layout.leader] = b"another process"

    def clear_leader(self) -> None:
        del self.db[self.layout.leader]

    def requests(self) -> list[bytes]:
        begin, end = self.layout.range_of(self.layout.requests)
        return [row.key for row in self.db.get_range(begin, end)]

    def results(self) -> list[bytes]:
        begin, end = self.layout.range_of(self.layout.results)
        return [row.key for row in self.db.get_range(begin, end)]

    def remaining(self) -> list[Item]:
        return list(self.queue.items(self.db))

    def sweep_requests(self, are_expired: bool = True) -> None:
        """Sweep requests as a process does before its first pop, by default all as expired."""
        with pytest.MonkeyPatch.context() as patch:
            if are_expired:
                patch.setattr(pops, "REQUEST_TIMEOUT", 0)
            assert self.process({FAST: DIES_BEFORE}).pop().error().code == DEAD

    def wait_until_leaderless(self) -> None:
        leader = self.layout.leader
        while True:
            name, watch = self.db.get_and_watch(leader)
            if not name.present():
                watch.cancel()
                return
            assert sleep_on([watch], TIMEOUT)

    def assert_sound(self) -> None:
        """Assert that waiting pops left no keys and that the counts are right."""
        self.wait_until_leaderless()
        assert (self.requests(), self.results()) == ([], [])
        report = fdbqueue.admin.check(self.db, self.queue)
        assert report.ok, report.problems
