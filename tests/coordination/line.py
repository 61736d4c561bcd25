"""Processes that pop from one queue, within one test, each failing where the test says.

To the others a process is what it does to the database. So here one is a queue object, a database
object and a thread, and it is dead when its database does nothing any more.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import pytest

import fdbqueue
from fdbqueue import Item, PriorityQueue, Queue
from fdbqueue.coordination import staged_pops
from fdbqueue.coordination.steps import sleep_on
from fdbqueue.coordination.waiting import begin_watches
from fdbqueue.queue.base import store_of
from fdbqueue.testing import FaultyDatabase, FaultyTransaction

AnyQueue: TypeAlias = PriorityQueue | Queue
_Q = TypeVar("_Q", bound=AnyQueue)
_T = TypeVar("_T")

LONG = 60.0  # seconds after which a test fails rather than waits on
DEAD = 1025


@dataclass(frozen=True)
class Fault:
    """What becomes of a commit: when it takes place, and what the client is told.

    `when` is `"before"` (it does not take place), `"after"` (the client is told afterwards),
    `"late"` (just ahead of the client's next commit) or `"last"` (when all is over).
    """

    when: str
    code: int


CONFLICT = Fault("before", 1020)
DIES_BEFORE = Fault("before", DEAD)
DIES_AFTER = Fault("after", DEAD)
LOST_ANSWERS = [
    *(Fault(when, code) for when in ("before", "after") for code in (1021, 1031, 1039)),
    Fault("late", 1031),
    Fault("last", 1021),
]

Script: TypeAlias = Mapping[int, Fault]
"""The faults of a process, by the numbers of its commits, from 1."""

# A process looks for what dead ones left behind before anything else, which is a commit too. Then
# it takes the first items. If that meets a conflict, it looks who has the turn.
SWEEP, FAST, STAGED = 1, 2, 3
MEETS_OTHERS: Script = {FAST: CONFLICT}
DIES_WAITING: Script = {FAST: CONFLICT, STAGED: DIES_AFTER}
"""It dies as soon as its request is there, if another one has the turn."""


class ScriptedDatabase(FaultyDatabase):
    """Has the faults of a script, and calls what the test hangs before a commit."""

    def __init__(self, db: Any, script: Script) -> None:
        super().__init__(db)
        self.script = dict(script)
        self.before_commit: dict[int, Callable[[], object]] = {}
        self.commits = 0
        """How many commits were tried."""
        self.is_dead = False
        self._guard = threading.Condition()
        self._late: list[tuple[str, Any]] = []

    def create_transaction(self) -> FaultyTransaction:
        self.before_call("create_transaction")
        return super().create_transaction()

    def before_call(self, name: str) -> None:
        if self.is_dead:
            raise fdbqueue.FDBError(DEAD)

    def commit(self, transaction: FaultyTransaction) -> None:
        with self._guard:
            self.commits += 1
            number = self.commits
            self._guard.notify_all()
        self.deliver("late")
        self.before_commit.get(number, lambda: None)()
        fault = self.script.get(number)
        if fault is None:
            transaction.wrapped.commit().wait()
            return
        if fault.when == "after":
            transaction.wrapped.commit().wait()
        elif fault.when in ("late", "last"):
            transaction.wrapped.get_read_version().wait()  # as a commit on its way has one
            self._late.append((fault.when, transaction.wrapped))
            transaction.wrapped = self.db.create_transaction()
        self.is_dead = fault.code == DEAD
        raise fdbqueue.FDBError(fault.code)

    def until_tried(self, commits: int) -> None:
        """Wait until it has tried so many commits; it may do so by a thread of its own."""
        with self._guard:
            assert self._guard.wait_for(lambda: self.commits >= commits, LONG)

    def deliver(self, *when: str) -> None:
        """Have commits arrive of which the client knows nothing more; who conflicts, fails."""
        with self._guard:
            arriving = [transaction for kind, transaction in self._late if kind in when]
            self._late = [entry for entry in self._late if entry[0] not in when]
        for transaction in arriving:
            try:
                transaction.commit().wait()
            except fdbqueue.error_classes() as error:
                if error.code != 1020:
                    raise


class Call(threading.Thread, Generic[_T]):
    """A call in a thread of its own; tells when it sleeps for the first time, or is over."""

    def __init__(self, call: Callable[[], _T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._future: Future[_T] = Future()
        self.rests = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)
        self.rests.set()

    def is_over(self) -> bool:
        return self._future.done()

    def result(self) -> _T:
        return self._future.result(LONG)

    def error(self) -> BaseException | None:
        return self._future.exception(LONG)


def only_the_test_ends_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request, leadership or contention end by itself, however slow the machine is."""
    monkeypatch.setattr(staged_pops, "REQUEST_TIMEOUT", 1e6)
    monkeypatch.setattr(staged_pops, "_REQUEST_TIMEOUT_VERSIONS", 10**12)
    monkeypatch.setattr(staged_pops, "_MAX_LEADERSHIP", LONG)
    monkeypatch.setattr(staged_pops, "_CONTENDED", LONG)


class Sleeps:
    """In the place of `sleep_on`: a sleep ends when the watch fires, or when the test says so."""

    def __init__(self) -> None:
        self.woken: list[bool] = []
        """Of each sleep that ended, whether the watch has ended it."""
        self.may_wake = threading.Event()
        """Clear it, and whoever's sleep ends notices only when it is set again."""
        self.may_wake.set()
        self.error: BaseException | None = None
        """What a sleep ends with, if it is to be interrupted as it ends."""
        self._guard = threading.Condition()
        self._begun = 0
        self._under_way: list[Any] = []
        self._are_over = False

    def __call__(self, watches: list[Any], seconds: float) -> Any:
        (watch,) = watches
        with self._guard:
            self._begun += 1
            self._under_way.append(watch)
            self._guard.notify_all()
        thread = threading.current_thread()
        if isinstance(thread, Call):
            thread.rests.set()
        fired = sleep_on(watches, 0.01 if self._are_over else LONG)
        woken = fired is not None and watch in self._under_way
        self.woken.append(woken)
        assert self.may_wake.wait(LONG)
        if self.error is not None:
            raise self.error
        return watch if woken else None

    def until_begun(self, number: int) -> None:
        """Wait until so many sleeps have begun."""
        with self._guard:
            assert self._guard.wait_for(lambda: self._begun >= number, LONG)

    def end(self) -> None:
        """Let the time of all who sleep run out, and that of later sleeps at once."""
        with self._guard:
            self._are_over = True
            under_way, self._under_way = self._under_way, []
        for watch in under_way:
            watch.cancel()


class Process(Generic[_Q]):
    """One that pops."""

    def __init__(self, db: Any, queue: _Q, script: Script) -> None:
        self.db = ScriptedDatabase(db, script)
        self.queue = queue

    def start(self, call: Callable[[_Q, Any], _T]) -> Call[_T]:
        """Begin a call on the queue and the database; on return it sleeps, or is over."""
        started = Call(lambda: call(self.queue, self.db))
        assert started.rests.wait(LONG)
        return started

    def pop(self, n: int = 1, at_max: bool = False) -> Call[list[Item]]:
        """Begin to pop."""
        if isinstance(self.queue, Queue):
            return self.start(lambda queue, db: queue.dequeue_many(db, n))
        return self.start(lambda queue, db: queue.pop_many(db, n, at_max))


class Line(Generic[_Q]):
    """Those who pop from one queue, and what they leave in the database."""

    def __init__(self, db: Any, queue: _Q, sleeps: Sleeps) -> None:
        self.db = db
        self.queue = queue
        self.layout = store_of(queue).layout
        self.sleeps = sleeps

    def process(self, script: Script = MEETS_OTHERS) -> Process[_Q]:
        """One that has not popped yet; as a rule, it will meet a conflict."""
        queue = type(self.queue)(self.queue.subspace)
        store_of(queue).sweeper._next_look = math.inf  # a look at the schedule is no step of a pop
        return Process(self.db, queue, script)

    def hold(self) -> None:
        """Give the turn to a process that does nothing, so that who meets others waits."""
        self.db[self.layout.leader] = b"another process"

    def release(self) -> None:
        del self.db[self.layout.leader]

    def requests(self) -> list[bytes]:
        begin, end = self.layout.range_of(self.layout.requests)
        return [row.key for row in self.db.get_range(begin, end)]

    def results(self) -> list[bytes]:
        begin, end = self.layout.range_of(self.layout.results)
        return [row.key for row in self.db.get_range(begin, end)]

    def left(self) -> list[Item]:
        return list(self.queue.items(self.db))

    def drop_the_dead(self, lease_is_over: bool = True) -> None:
        """Have a process do what each does before its first pop, when all leases are over."""
        with pytest.MonkeyPatch.context() as patch:
            if lease_is_over:
                patch.setattr(staged_pops, "_REQUEST_TIMEOUT_VERSIONS", 0)
            assert self.process({FAST: DIES_BEFORE}).pop().error().code == DEAD

    def until_there_is_no_leader(self) -> None:
        leader = self.layout.leader
        while self.db[leader] is not None:
            watches = begin_watches(self.db, lambda tr: [leader] if tr[leader].present() else [])
            assert not watches or sleep_on(watches, LONG)

    def assert_sound(self) -> None:
        """No key is left of pops that waited, and the counts are right."""
        self.until_there_is_no_leader()
        assert (self.requests(), self.results()) == ([], [])
        report = fdbqueue.check(self.db, self.queue)
        assert report.ok, report.problems
