"""The jobs that a worker holds, and which worker of a process may run jobs."""

from __future__ import annotations

import contextvars
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fdbqueue.database.clock import Since
from fdbqueue.errors import HandlerTooSlow, TimedOut
from fdbqueue.layout.values import NO_REPORT, Report
from fdbqueue.types import Claim, Database
from fdbqueue.worker.handler import Invocation, Observer
from fdbqueue.worker.outcomes import TRANSACTION, Tries

if TYPE_CHECKING:
    from fdbqueue.queue.base import Stop
    from fdbqueue.worker.context import Context
    from fdbqueue.worker.turns import Source

_LOOK = 0.2  # seconds that a worker waits before the handlers of signals run

Member: TypeAlias = Callable[[], int]
"""A worker of this process, as the others see it: it returns how many jobs it holds."""


class Process:
    """The workers of this process. Many may run jobs at a time, or a single one a job alone.

    A worker that has claimed jobs holds them before it asks `admits`, and one that is to be alone
    says so before it counts what the others hold. So they do not miss each other.

    Attributes:
        alone: The worker that keeps the others from running jobs, or `None`.

    Example:
        >>> from fdbqueue.queue.base import Stop
        >>> process, one, other = Process(), lambda: 0, lambda: 1
        >>> with process.joined(one), process.joined(other):
        ...     with process.exclusive(other, Stop(), 60, own=1) as is_alone:
        ...         print(is_alone, process.admits(one))
        ...     with process.exclusive(one, Stop(), 0.01, own=0) as is_alone:
        ...         print(is_alone)
        True False
        False
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._members: list[Member] = []
        self.alone: Member | None = None

    @contextmanager
    def joined(self, member: Member) -> Generator[None]:
        """Add a worker while it runs."""
        self._members.append(member)
        try:
            yield
        finally:
            self._members.remove(member)

    @property
    def held(self) -> int:
        """The number of jobs that the workers hold."""
        return sum(member() for member in [*self._members])

    def admits(self, member: Member) -> bool:
        """Return whether a worker may run jobs."""
        return self.alone is None or self.alone is member

    def note(self) -> None:
        """Note that a job has ended."""
        if self.alone is not None:
            with self._changed:
                self._changed.notify_all()

    def wait(self, member: Member, stop: Stop) -> None:
        """Wait until a worker may run jobs."""
        with self._changed:
            while not (self.admits(member) or stop.is_set):
                self._changed.wait(_LOOK)

    @contextmanager
    def exclusive(self, member: Member, stop: Stop, seconds: float, own: int) -> Generator[bool]:
        """Let no other worker run jobs, and wait until all jobs of the process have ended.

        Args:
            member: The worker.
            stop: Ends the wait.
            seconds: How long to wait at most.
            own: The number of its own jobs that need not end.

        Yields:
            Whether all others have ended.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            if not self.admits(member):
                deadline = 0.0
            else:
                self.alone = member
            while self.held > own and not stop.is_set and time.monotonic() < deadline:
                self._changed.wait(min(deadline - time.monotonic(), _LOOK))
            is_alone = self.alone is member and self.held <= own
        try:
            yield is_alone
        finally:
            with self._changed:
                if self.alone is member:
                    self.alone = None
                    self._changed.notify_all()


process = Process()
os.register_at_fork(after_in_child=process.__init__)  # type: ignore[misc]


@dataclass(slots=True)
class HeldLease:
    """The lease of a claim, to which the context of its job refers.

    It does not refer to the job, which refers to the context: all three would wait for the garbage
    collector.

    Attributes:
        claim: The claim.
        seconds: Its length.
        since: When it started, at the latest.
    """

    claim: Claim
    seconds: float
    since: Since

    def seconds_left(self) -> float:
        """Return the seconds until the end; less than 0 if it is over."""
        return self.seconds - self.since.seconds()

    def extend(self, store: Any, db: Database, report: Report) -> None:
        """Restart it, and store a report; raise `LeaseLost` if another may have the job."""
        since = Since()
        store.extend(db, (self.claim, report), self.seconds)
        self.since = since


@dataclass(slots=True, eq=False)
class HeldJob(Observer, Tries):
    """A claimed item, and the tries of the transaction that ends it.

    Attributes:
        source: Its queue.
        claim: Its claim.
        item: Its item.
        lease: Its lease.
        is_lone: Whether it is to run alone in its process.
        began: When it began to run, by the performance counter; infinite for a coroutine that has
            not begun.
        call: The call of its handler; `None` before it is known.
        context: What the handler knows; `None` before the job begins.
        thread: The identifier of the thread that runs it.
        reported: What its handler had said of its work when that was last stored.
        loop_thread: That of the event loop which runs it, if it is a coroutine that has begun.
        future: Its coroutine, if it is one.
        variables: The context variables of its handler.
        late: The error of its attempt, if it was told that its time is over.
        told_at: When it was told, by the performance counter.
        is_ending: Whether no code of the program runs for it at the moment, or ever again.
        is_given_up: Whether the worker has ended the attempt without it.
    """

    source: Source
    claim: Claim
    item: Any
    lease: HeldLease
    is_lone: bool = False
    began: float = 0.0
    call: Invocation | None = None
    context: Context | None = None
    thread: int = 0
    reported: Report = NO_REPORT
    loop_thread: int = 0
    future: futures.Future[Any] | None = None
    variables: contextvars.Context = field(default_factory=contextvars.Context)
    late: TimedOut | HandlerTooSlow | None = None
    told_at: float = 0.0
    is_ending: bool = False
    is_given_up: bool = False

    def wait_for_loop(self) -> None:
        """Note that an event loop will begin it; its time does not run until then."""
        self.began = math.inf

    def begin(self) -> None:
        """Note that it begins, in this thread."""
        self.loop_thread = threading.get_ident()
        self.began = time.perf_counter()

    def note(self, future: futures.Future[Any]) -> None:
        """Note its coroutine; cancel it if its time is over."""
        self.future = future
        if self.late is not None:
            future.cancel()

    def lateness(self, timeout: float | None) -> tuple[float, TimedOut | HandlerTooSlow]:
        """Return for how many seconds its time is over, and with which error; less than 0 before.

        Args:
            timeout: Its time limit. The body of a transaction has that of transactions instead.
        """
        now = time.perf_counter()
        if timeout is None or (self.call and self.call.in_transaction):
            timeout = math.inf
        over, body = now - self.began - timeout, now - self.tried
        if body - TRANSACTION > over:
            return body - TRANSACTION, HandlerTooSlow(body)
        return over, TimedOut(timeout)

    def tell(self, late: TimedOut | HandlerTooSlow) -> float:
        """Tell the job that its time is over; cancel its coroutine.

        Returns:
            The seconds since it was told.
        """
        if self.late is None and self.context is not None:
            self.late, self.told_at = late, time.perf_counter()
            self.context.cancelled.set("timeout")
            if self.future is not None:
                self.future.cancel()
        return self.seconds_told

    def give_up(self) -> bool:
        """Go on without its handler; return false if that has just returned."""
        self.is_given_up = not self.is_ending
        if self.is_given_up and self.future is not None:
            self.future.cancel()
        return self.is_given_up

    def tell_shutdown(self) -> bool:
        """Tell the job that its worker shuts down; return false if it has not begun."""
        if self.context is None:
            return False
        self.context.cancelled.set("shutdown")
        return True

    @property
    def seconds_told(self) -> float:
        """The seconds since it was told that its time is over."""
        return time.perf_counter() - self.told_at

    @property
    def was_cancelled(self) -> bool:
        """True if a client has cancelled it: it ends as cancelled, whatever its handler does."""
        return self.context is not None and self.context.cancelled.reason == "cancelled"

    @property
    def report(self) -> Report:
        """The last report of its handler."""
        return NO_REPORT if self.context is None else self.context.report

    @property
    def job_name(self) -> str:
        """The name of its function; an empty text if it has none, or is not known yet."""
        return self.call.name if self.call else ""

    @property
    def name(self) -> str:
        """Its id, and the name of its function if a handler has several."""
        return " ".join(filter(None, [self.item.id, self.job_name]))


class Held:
    """The jobs that a worker holds, in the order of their claims.

    Args:
        has_room: Whether a worker that holds this many jobs would claim others.

    Attributes:
        changed: Notified when the worker has room for others, or holds none.
        n_ended: The number of jobs that it has let go.
    """

    def __init__(self, has_room: Callable[[int], object]) -> None:
        self._has_room = has_room
        self._jobs: dict[HeldJob, None] = {}
        self.changed = threading.Condition(threading.Lock())
        self.n_ended = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[HeldJob]:
        """Return the jobs."""
        with self.changed:
            return [*self._jobs]

    def add(self, jobs: list[HeldJob]) -> None:
        """Hold jobs that were claimed."""
        with self.changed:
            for job in jobs:
                self._jobs[job] = None
                job.source.held += 1

    def let_go(self, job: HeldJob) -> None:
        """Hold a job no longer."""
        with self.changed:
            if job in self._jobs:
                del self._jobs[job]
                job.source.held -= 1
                self.n_ended += 1
            if not self._jobs or self._has_room(len(self._jobs)):
                self.changed.notify_all()
        process.note()

    def wait(self) -> None:
        """Wait until the worker holds no job."""
        with self.changed:
            self.changed.wait_for(lambda: not self._jobs)


def by_source(jobs: list[HeldJob]) -> dict[Source, list[HeldJob]]:
    """Return jobs by their queues."""
    found: defaultdict[Source, list[HeldJob]] = defaultdict(list)
    for job in jobs:
        found[job.source].append(job)
    return found
