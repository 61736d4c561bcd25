"""The jobs that a worker holds, and its threads.

Executors of `concurrent.futures` would fail once the main thread has ended.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fdbqueue.errors import HandlerTooSlow, TimedOut
from fdbqueue.layout.values import NO_REPORT, Report
from fdbqueue.types import Claim, Database
from fdbqueue.worker.functions.guards import TRANSACTION, Tries
from fdbqueue.worker.invocation import Handler, Invocation

if TYPE_CHECKING:
    from fdbqueue.queue.steps import HeldLease
    from fdbqueue.worker.claiming import Pace, Source
    from fdbqueue.worker.context import Context
    from fdbqueue.worker.shutdown import Shutdown

_LOOK = 0.1  # seconds from one look at whether jobs or threads have ended to the next
_HANDOVER = 0.005  # seconds that the caller of `put` waits at most until its jobs begin


@dataclass(slots=True, eq=False)
class HeldJob(Tries):
    """A claimed item, and the tries of the transaction that ends it.

    Attributes:
        unknown: Why it is left to other workers, or `None`.
        began: When it began, by the performance counter; infinite until an event loop begins it.
        reported: The last stored report.
        returned: Its result as JSON, to be stored.
        late: The error of its attempt, if its time is over.
        is_ending: Whether no code of the program runs for it now.
        is_given_up: Whether the worker has ended the attempt without it.
        unconfirmed: The commit that acknowledged it, unless it is on disk.
    """

    source: Source
    claim: Claim
    item: Any
    lease: HeldLease
    unknown: str | None = None
    is_lone: bool = False
    began: float = 0.0
    call: Invocation | None = None
    context: Context | None = None
    thread: int = 0
    reported: Report = NO_REPORT
    returned: bytes | None = None
    seconds: float = 0.0
    loop_thread: int = 0
    future: futures.Future[Any] | None = None
    variables: contextvars.Context = field(default_factory=contextvars.Context)
    late: TimedOut | HandlerTooSlow | None = None
    told_at: float = 0.0
    is_ending: bool = False
    is_given_up: bool = False
    unconfirmed: list[Any] = field(default_factory=list[Any])

    def note(self, future: futures.Future[Any]) -> None:
        """Record its coroutine; cancel it if its time is over."""
        self.future = future
        if self.late is not None:
            future.cancel()

    def lateness(self, timeout: float | None) -> tuple[float, TimedOut | HandlerTooSlow]:
        """Return for how many seconds its time is over, perhaps below 0, and the error."""
        now = time.perf_counter()
        if timeout is None or (self.call and self.call.in_transaction):
            timeout = math.inf
        over, body = now - self.began - timeout, now - self.tried
        if body - TRANSACTION > over:
            return body - TRANSACTION, HandlerTooSlow(body)
        return over, TimedOut(timeout)

    def tell(self, late: TimedOut | HandlerTooSlow) -> float:
        """Tell the job that its time is over; return the seconds since the first time."""
        if self.late is None and self.context is not None:
            self.late, self.told_at = late, time.perf_counter()
            self.context.cancelled.set("timeout")
            if self.future is not None:
                self.future.cancel()
        return self.seconds_told

    def tell_shutdown(self) -> bool:
        """Tell the job that its worker shuts down; return false if it has not begun."""
        if self.context is None:
            return False
        self.context.cancelled.set("shutdown")
        return True

    @property
    def seconds_told(self) -> float:
        """Seconds since it was told that its time is over."""
        return time.perf_counter() - self.told_at

    @property
    def was_cancelled(self) -> bool:
        """True if a client has cancelled it, and it has no steps."""
        of = self.context
        return of is not None and of.cancelled.reason == "cancelled" and not of.has_steps

    @property
    def job_name(self) -> str:
        """The name of its function, or an empty text."""
        return self.call.name if self.call else ""

    @property
    def name(self) -> str:
        """Its id and the name of its function."""
        return " ".join(filter(None, [self.item.id, self.job_name]))


def by_source(jobs: list[HeldJob]) -> dict[Source, list[HeldJob]]:
    """Group jobs by queue."""
    found: defaultdict[Source, list[HeldJob]] = defaultdict(list)
    for job in jobs:
        found[job.source].append(job)
    return found


class Pool:
    """The jobs that a worker holds, in the order of their claims."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.held: dict[HeldJob, None] = {}
        self._waiting: deque[HeldJob] = deque()
        self._free = 0  # threads that wait for a job
        self.n_ended = 0
        # Python leaves the `with` statement of this lock in one step, unlike that of a condition.
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self._wanted = threading.Condition(self._lock)
        self._begun = threading.Condition(self._lock)

    def all(self) -> list[HeldJob]:
        """Return the held jobs."""
        with self._lock:
            return [*self.held]

    def await_room(self, seconds: float) -> None:
        """Wait for room, or for some seconds."""
        with self._lock:
            if not self.pace.room(len(self.held)):
                self.changed.wait(seconds)

    def hold(self, jobs: Sequence[HeldJob]) -> None:
        """Hold claimed jobs."""
        with self._lock:
            for job in jobs:
                self.held[job] = None
                job.source.held += 1

    def let_go(self, job: HeldJob) -> None:
        """Hold a job no longer, and record its duration."""
        with self._lock:
            if job in self.held:
                del self.held[job]
                job.source.held -= 1
                self.n_ended += 1
                if job.seconds:
                    self.pace.note(job.seconds)
            if not self.held or self.pace.room(len(self.held)):
                self.changed.notify_all()

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until no job is held, or for some seconds; return whether none is."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while self.held and (left := deadline - time.monotonic()) > 0:
                self.changed.wait(min(left, _LOOK))
            return not self.held

    @contextmanager
    def working(self, run: Callable[[HeldJob], object]) -> Generator[None]:
        """Run the jobs that are put, in threads; at the end, wait for all of them.

        `run(job)` must not raise.
        """
        self._run, self._variables = run, contextvars.copy_context()
        self._is_closed = False
        self._threads: dict[int, threading.Thread] = {}
        try:
            yield
        finally:
            self._close()

    def _start(self) -> None:
        # Neither the end of a `with` block nor Python waits for one that was replaced.
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        assert thread.ident is not None
        self._threads[thread.ident] = thread

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._wanted.notify_all()
        while alive := [*filter(threading.Thread.is_alive, [*self._threads.values()])]:
            for thread in alive:
                thread.join(_LOOK)  # it may be replaced meanwhile

    def replace(self, ident: int) -> None:
        """Replace the thread of a job that hangs."""
        with self._lock:
            if self._threads.pop(ident, None) is not None:  # or else all were abandoned
                self._start()

    def abandon(self) -> None:
        """Wait for no thread any more."""
        with self._lock:
            self._threads = {}

    @property
    def first_waiting(self) -> HeldJob | None:
        """The first job that has not begun."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def withdraw(self) -> list[HeldJob]:
        """Take back the jobs that have not begun."""
        with self._lock:
            jobs, self._waiting = [*self._waiting], deque()
            return jobs

    def put(self, jobs: Sequence[HeldJob]) -> None:
        """Add jobs, which begin in this order; return when every free thread has a job."""
        with self._lock:
            self._waiting.extend(jobs)
            wanted = len(self._waiting) - self._free
            for _ in range(min(wanted, self.pace.concurrency - len(self._threads))):
                self._start()
            self._wanted.notify(len(self._waiting))
            # Python would let this thread run on, for milliseconds, before the woken ones.
            if self._waiting and self._free:
                self._begun.wait(_HANDOVER)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._variables.copy().run(self._run, job)

    def _next(self) -> HeldJob | None:
        with self._lock:
            if threading.get_ident() not in self._threads:
                return None  # another thread has replaced this one
            self._free += 1
            while not (self._waiting or self._is_closed):
                self._wanted.wait()
            self._free -= 1
            job = self._waiting.popleft() if self._waiting else None
            if not (self._waiting and self._free):
                self._begun.notify()
            return job


@dataclass(eq=False)
class Part:
    """A part of a worker, with the state that all parts share."""

    db: Database
    handler: Handler
    pool: Pool
    shutdown: Shutdown
