"""How a worker gets its jobs: what it claims, begins, claims ahead and gives back."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fdbqueue.database.clock import Since, milliseconds
from fdbqueue.layout.values import Header, runs_alone
from fdbqueue.queue.base import BaseQueue, Stop, claim_until, store_of
from fdbqueue.types import Claim, Database, Transaction
from fdbqueue.worker.handler import Handler
from fdbqueue.worker.held import HeldJob, HeldLease
from fdbqueue.worker.threads import Pausing, Threads

if TYPE_CHECKING:
    from fdbqueue.worker.endings import Ends

_LOOK = 0.2  # seconds that a worker waits before the handlers of signals run
_SOON = 0.02  # seconds between looks while jobs wait, or while the last ones of a drain run
_PATIENCE = 1.0  # seconds for which a job that is to run alone waits for running ones, at first

_STUCK = 3  # looks in a row at running jobs of which none has ended
_AHEAD = 0.05  # seconds of work for which jobs are claimed ahead, and wait at most
_WEIGHT = 0.1  # weight of the latest job in the moving average of durations, or that of a mean
_MAX_AMONG = 100  # jobs to claim at a time in search of jobs that the handler knows


Release: TypeAlias = Callable[[Transaction, Claim], object]
"""Gives back the items of a claim in a transaction."""


Member: TypeAlias = Callable[[], int]
"""A worker of this process, as the others see it: it returns how many jobs it holds."""


class Process:
    """The workers of this process. Many may run jobs at a time, or a single one a job alone.

    A worker that has claimed jobs holds them before it asks `admits`, and one that is to be alone
    says so before it counts what the others hold. So they do not miss each other.

    Attributes:
        alone: The worker that keeps the others from running jobs, or `None`.

    Example:
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


class Claiming(ABC):
    """The side of a worker that claims jobs; the other side runs and ends them.

    Args:
        db: The database.
        queue: The queue.
        handler: The handler.
        concurrency: The number of jobs that run at a time.
        lease: The length of a lease in seconds.
        prefetch: The maximum number of jobs to claim ahead.
        stores_results: Whether what the handler returns is to be stored.
    """

    _ends: Ends

    def __init__(
        self,
        db: Database,
        queue: BaseQueue[Any],
        handler: Handler,
        concurrency: int,
        lease: float,
        prefetch: int,
        stores_results: bool,
    ) -> None:
        self._db = db
        self._queue = queue
        self._store = store_of(queue)
        self._handler = handler
        self._concurrency = concurrency
        self._lease = lease
        self._prefetch = prefetch
        self._stores_results = stores_results
        self._options: dict[str, Any] = {}
        self._stop = Stop()  # not an event, whose lock a signal handler must not take
        self._guard = threading.Lock()
        self._ended = threading.Condition(self._guard)
        self._held: dict[HeldJob, None] = {}  # in the order of their claims
        self._threads = Threads(concurrency, self._run_job, handler.can_overlap)
        self._seconds = 1.0  # moving average of the duration of a job
        self._n_timed = 0  # jobs in it
        self._looks = 0  # for other jobs, since the last of them ended
        self._may_claim_ahead = True
        self._among = 1  # jobs to look through, behind jobs that the handler does not know
        self._member = partial(len, self._held)
        self._drains = False
        self._patience = _PATIENCE
        self._alone_at = -math.inf  # the time from which a job may run alone

    @abstractmethod
    def _run_job(self, job: HeldJob) -> Pausing:
        """Run one job and report its end, whatever happens."""

    @abstractmethod
    def _release(self, jobs: list[HeldJob], release: Release | None = None) -> None:
        """Release jobs whose attempt does not count; by default jobs that have not begun."""

    # How many jobs to claim

    def _feed_alone(self) -> bool:
        """Claim jobs once there is room; return false if nothing is left to do."""
        self._looks += 1
        self._release(self._late())
        was_idle = not self._held  # otherwise a running job may push others
        some_wait = self._threads.first_waiting is not None  # perhaps too long, before others come
        n = self._room()
        if n == 0:
            with self._ended:
                self._ended.wait_for(self._room, _SOON if some_wait else _LOOK)
            return True
        looks_once = self._drains or some_wait
        if not self._claim(0 if looks_once else math.inf, n) and looks_once:
            if was_idle and self._drains:
                return False
            with self._ended:
                self._ended.wait_for(lambda: not self._held, _SOON)
        return True

    def _room(self) -> int:
        """Return how many jobs to claim now; none while more than half are left ahead."""
        held = len(self._held) - self._concurrency
        free, waiting, ahead = max(0, -held), max(0, held), 0
        if self._may_claim_ahead and self._seconds <= _AHEAD:
            # At first, no more than were timed: one quick job says little about the next hundred.
            ahead = min(self._prefetch, self._soon, self._n_timed)
        return free + ahead - waiting if 2 * waiting <= ahead else 0

    @property
    def _soon(self) -> int:
        """The number of waiting jobs that begin soon, to judge by the last ones."""
        if self._held and self._looks > _STUCK:
            return 0
        return int(self._concurrency * _AHEAD / self._seconds)

    def _note_seconds(self, seconds: float) -> None:
        """Note how long a job has taken that was done."""
        self._n_timed += 1
        weight = max(_WEIGHT, 1 / self._n_timed)
        self._seconds += weight * (max(seconds, 1e-6) - self._seconds)
        self._looks = 0

    def _late(self) -> list[HeldJob]:
        """Take back jobs that have waited for longer than it takes to claim them again.

        Another worker may be idle. The first ones stay if they begin soon.
        """
        soon = self._soon
        if len(self._held) - self._concurrency <= soon:
            return []
        first = self._threads.first_waiting
        if first is None or first.lease.since.seconds() <= _AHEAD:
            return []
        return self._threads.withdraw(keep=soon)

    # What becomes of a claim

    def _claim(self, wait: float, n: int) -> int:
        """Claim jobs, begin up to `n` that may run now, and return how many were claimed."""
        process.wait(self._member, self._stop)
        claimed = self._claimed(wait, n)
        if not process.admits(self._member):
            self._release(claimed)
            return len(claimed)
        jobs = self._known(claimed, n)
        lone = [job for job in jobs if job.is_lone]
        left = self._alone_at - time.monotonic()
        if lone and lone[0] is jobs[0] and left <= 0:
            self._begin_alone(jobs)
        else:
            self._begin([job for job in jobs if job not in lone])
            self._release(lone, partial(self._unclaim, milliseconds(), delay=max(0.0, left)))
        return len(claimed)

    def _claimed(self, wait: float, n: int) -> list[HeldJob]:
        """Claim up to `n` jobs, or more behind jobs that the handler does not know; hold them."""
        options = {"lease": self._lease, "wait": wait, **self._options}
        n = max(n, self._among)
        claims = claim_until(self._stop, self._queue, self._db, n=n, **options) or ()
        since = Since()
        is_spent = self._handler.is_spent
        jobs = [
            HeldJob(
                each,
                item := each.item,
                HeldLease(each, self._lease, since),
                is_lone=runs_alone(item) and not is_spent(item, each.attempt),
            )
            for each in claims
        ]
        with self._guard:
            self._held.update(dict.fromkeys(jobs))
        return jobs

    def _known(self, jobs: list[HeldJob], n: int) -> list[HeldJob]:
        """Return up to `n` of these jobs that the handler knows, and give back all others."""
        unknown = self._handler.unknown
        whys = {job.claim.keys: why for job in jobs if (why := unknown(job.item)) is not None}
        known = [job for job in jobs if job.claim.keys not in whys] if whys else jobs
        # Many more may follow. They must not hold up the other jobs.
        self._among = min(2 * len(jobs), _MAX_AMONG) if jobs and not known else 1
        if len(known) < len(jobs):
            leave = partial(self._leave, whys, milliseconds())
            self._release([job for job in jobs if job not in known], leave)
        self._release(known[n:])
        return known[:n]

    def _leave(
        self, whys: dict[tuple[bytes, ...], str], now: int, tr: Transaction, claim: Claim
    ) -> None:
        """Leave a job to workers that know it, as if it had never been claimed."""
        since, longest = Header(*claim.item.metadata).unknown, self._handler.keep_unknown
        self._store.leases.leave(tr, now, claim, whys[claim.keys], since, longest, random.uniform)

    def _unclaim(self, now: int, tr: Transaction, claim: Claim, delay: float = 0.0) -> None:
        """Give back a job that has not begun, as if it had never been claimed."""
        due = now + math.ceil(1000 * delay) if delay else None
        self._store.leases.release(tr, now, claim, due, has_begun=False)

    def _begin(self, jobs: list[HeldJob]) -> None:
        """Begin jobs, or let them wait for those that run.

        A job that was tried before does not wait: it would lose another attempt if one of the
        others killed the worker.
        """
        if not jobs:
            return
        options = self._store.options
        if self._stores_results and not options.keeps_done:
            self._stores_results = False
            self._ends.warn_about_results()
        are_last = options.max_attempts == 1 or self._handler.may_be_last
        free = max(0, self._concurrency - (len(self._held) - len(jobs)))
        back = [job for job in jobs[free:] if are_last or job.claim.attempt > 1]
        are_first = {job.claim.attempts for job in jobs} == {(1,)}
        self._may_claim_ahead = are_first and not (are_last or options.has_any_rate)
        self._threads.put([job for job in jobs if job not in back])
        self._release(back)  # the threads get their jobs before, because this takes time

    def _begin_alone(self, jobs: list[HeldJob]) -> None:
        """Run the first of these jobs alone in this process, unless others run for too long.

        All that wait go back; so does the job while others run, because an idle worker may take it.
        """
        lone, back = jobs[:1], [*jobs[1:], *self._threads.withdraw()]
        if process.held > 1 + len(back):
            lone, back = [], [*lone, *back]
        self._release(back)
        patience = math.inf if self._drains else self._patience
        with process.exclusive(self._member, self._stop, patience, len(lone)) as is_alone:
            if is_alone:
                self._patience = _PATIENCE
                lone = lone or self._known(self._claimed(0, 1), 1)
                self._threads.put(lone)
                while self._held and any(job.is_lone for job in lone):
                    with self._ended:
                        self._ended.wait(_LOOK)
                return
        self._release(lone)
        # Other jobs run for twice as long now; then the next wait may take as long.
        self._patience *= 2
        self._alone_at = time.monotonic() + self._patience
