"""How a worker gets its jobs: what it claims, begins, claims ahead and gives back."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fdbqueue.database.clock import Since, milliseconds
from fdbqueue.layout.values import Header, runs_alone
from fdbqueue.queue.base import BaseQueue, Stop, claim_until, store_of
from fdbqueue.types import Claim, Database, Transaction
from fdbqueue.worker.handler import Handler
from fdbqueue.worker.held import HeldJob, HeldLease
from fdbqueue.worker.outcomes import Snooze
from fdbqueue.worker.threads import Pausing, Threads

if TYPE_CHECKING:
    from fdbqueue.worker.endings import Ends

_LOOK = 0.2  # seconds between checks whether a worker was stopped
_FULL = 0.2  # seconds that a worker without room waits before the handlers of signals run
_LAST_JOBS = 0.02  # seconds between checks for new jobs while the last ones of a drain run
_PATIENCE = 1.0  # seconds for which a job that is to run alone waits for running ones, at first

_AHEAD = 0.05  # seconds of work for which jobs are claimed ahead
_MAX_AMONG = 100  # jobs to claim at a time in search of jobs that the handler knows
_LATE = 0.1  # seconds after which a job that waits for running ones goes back


Release: TypeAlias = Callable[[Transaction, Claim], object]
"""Gives back the items of a claim in a transaction."""


def leave(
    queue: BaseQueue[Any],
    longest: float | None,
    whys: Mapping[tuple[bytes, ...], str | None],
    tr: Transaction,
    claim: Claim,
) -> None:
    """Leave an item to workers that know its job, as if it had never been claimed.

    Args:
        queue: The queue.
        longest: The seconds after which it becomes a dead letter; `None` for never.
        whys: The errors of items that become dead letters, by the keys of their claims.
        tr: A transaction.
        claim: The claim.
    """
    since, why = Header(*claim.item.metadata).unknown, whys[claim.keys] or ""
    leases = store_of(queue).leases
    leases.leave(tr, milliseconds(), claim, why, since, longest, random.uniform)


class Member:
    """A worker of this process, as the others see it.

    Args:
        held: Returns the number of jobs that it holds.
    """

    def __init__(self, held: Callable[[], int]) -> None:
        self.held = held
        self.claim: Stop | None = None
        """Ends its current claim."""


class Process:
    """The workers of this process. Many may run jobs at a time, or a single one a job alone.

    Attributes:
        alone: The worker that keeps the others from claiming jobs, or `None`.

    Example:
        >>> process, stop = Process(), Stop()
        >>> with process.member(lambda: 0) as one, process.member(lambda: 1) as other:
        ...     with process.exclusive(other, stop, 60, own=1) as is_alone:
        ...         print(is_alone)
        ...     with process.exclusive(one, stop, 0.01, own=0) as is_alone:
        ...         print(is_alone)
        True
        False
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._members: dict[Member, None] = {}
        self.alone: Member | None = None

    @contextmanager
    def member(self, held: Callable[[], int]) -> Generator[Member]:
        """Add a worker that runs."""
        member = Member(held)
        with self._changed:
            self._members[member] = None
        try:
            yield member
        finally:
            with self._changed:
                del self._members[member]

    @property
    def held(self) -> int:
        """The number of jobs that the workers hold."""
        return sum(member.held() for member in list(self._members))

    def note(self) -> None:
        """Note that a job or a claim has ended."""
        if self.alone is not None:
            with self._changed:
                self._changed.notify_all()

    @contextmanager
    def claiming(self, member: Member, stop: Stop) -> Generator[Stop]:
        """Wait until no other worker runs a job alone, and let this one claim jobs.

        Yields:
            A request to stop, which is also set when another worker is to run a job alone.
        """
        claim = Stop()
        stop.add(claim)
        with self._changed:
            while self.alone is not None and not stop.is_set:
                self._changed.wait(_LOOK)
            member.claim = claim
        try:
            yield claim
        finally:
            stop.discard(claim)
            member.claim = None
            self.note()

    @contextmanager
    def exclusive(self, member: Member, stop: Stop, seconds: float, own: int) -> Generator[bool]:
        """Let no other worker claim jobs, and wait until all jobs of the process have ended.

        Args:
            member: The worker, which is claiming.
            stop: Ends the wait.
            seconds: How long to wait at most.
            own: The number of its own jobs that need not end.

        Yields:
            Whether all others have ended.
        """
        with self._changed:
            is_first = self.alone is None
            if is_first:
                self.alone = member
            is_alone = is_first and self._others_end(member, stop, seconds, own)
        try:
            yield is_alone
        finally:
            if is_first:
                with self._changed:
                    self.alone = None
                    self._changed.notify_all()

    def _others_end(self, member: Member, stop: Stop, seconds: float, own: int) -> bool:
        """Wait until the others have ended; return whether they have. The caller has the lock."""
        deadline = time.monotonic() + seconds
        while True:
            claims = [each.claim for each in self._members if each is not member and each.claim]
            for claim in claims:
                claim.set()
            if not claims and self.held <= own:
                return True
            left = deadline - time.monotonic()
            if left <= 0 or stop.is_set:
                return False
            self._changed.wait(min(left, _LOOK))


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
        self._may_claim_ahead = True
        self._among = 1  # jobs to look through, behind jobs that the handler does not know
        self._patience = self._first_patience = _PATIENCE
        self._alone_at = -math.inf  # the time from which a job may run alone
        self._met_lone = False  # whether the last claim had a job that is to run alone

    @abstractmethod
    def _run_job(self, job: HeldJob) -> Pausing:
        """Run one job and report its end, whatever happens."""

    @abstractmethod
    def _fail_attempt(self, job: HeldJob, failure: BaseException) -> None:
        """End an attempt whose handler has raised an error or an outcome."""

    @abstractmethod
    def _release(self, jobs: list[HeldJob], release: Release | None = None) -> None:
        """Release jobs whose attempt does not count."""

    @contextmanager
    def _in_process(self, drain: bool) -> Generator[None]:
        """Run as one of the workers of this process."""
        # The running jobs of a drain have to end in any case.
        self._patience = self._first_patience = math.inf if drain else _PATIENCE
        with process.member(partial(len, self._held)) as self._member:
            yield

    def _feed_alone(self, drain: bool) -> bool:
        """Claim jobs once there is room; return false if nothing is left to do."""
        self._give_back(self._threads.withdraw(self._is_late))
        has_waiting = self._threads.has_waiting  # they may be late before others can be claimed
        n = self._room()
        if n == 0:
            with self._ended:
                self._ended.wait_for(self._room, _LAST_JOBS if has_waiting else _FULL)
            return True
        was_idle = not self._held  # otherwise a running job may push others
        looks_once = drain or has_waiting
        if not self._claim(0 if looks_once else math.inf, n) and looks_once:
            if was_idle and drain:
                return False
            with self._ended:
                self._ended.wait_for(lambda: not self._held, _LAST_JOBS)
        return True

    def _claim(self, wait: float, n: int) -> int:
        """Claim jobs, begin up to `n` that may run now, and return how many were claimed."""
        with process.claiming(self._member, self._stop) as stop:
            if self._stop.is_set:
                return 0
            may_be_alone = time.monotonic() >= self._alone_at
            n = 1 if self._met_lone and may_be_alone else n
            claimed = self._claimed(stop, wait, n)
            jobs = self._known(claimed, n)
            lone = [job for job in jobs if job.is_lone]
            self._met_lone = bool(lone)
            if lone and lone[0] is jobs[0] and may_be_alone:
                self._begin_alone(lone[0], jobs[1:])
            else:
                self._begin([job for job in jobs if job not in lone])
                self._put_off(lone)
        return len(claimed)

    def _put_off(self, lone: list[HeldJob]) -> None:
        """Give back jobs that are to run alone, until this process may do so."""
        left = self._alone_at - time.monotonic()
        if left <= 0:
            self._release(lone)
            return
        for job in lone:
            self._fail_attempt(job, Snooze(left))

    def _claimed(self, stop: Stop, wait: float, n: int) -> list[HeldJob]:
        """Claim up to `n` jobs, or more behind jobs that the handler does not know; hold them."""
        options = {"lease": self._lease, "wait": wait, **self._options}
        claim = claim_until(stop, self._queue, self._db, n=max(n, self._among), **options)
        if claim is None:
            return []
        since = Since()
        jobs = [
            HeldJob(each, HeldLease(each, self._lease, since), self._is_lone(each))
            for each in claim
        ]
        with self._guard:
            self._held.update(dict.fromkeys(jobs))
        return jobs

    def _is_lone(self, claim: Claim) -> bool:
        item = claim.item
        return runs_alone(item) and not self._handler.is_spent(item, claim.attempt)

    def _known(self, jobs: list[HeldJob], n: int) -> list[HeldJob]:
        """Return up to `n` of these jobs that the handler knows, and give back all others."""
        whys = {job.claim.keys: self._handler.unknown(job.claim.item) for job in jobs}
        known = [job for job in jobs if whys[job.claim.keys] is None]
        # Many more may follow. They must not hold up the other jobs.
        are_many = jobs and not known and not self._store.options.has_any_rate
        self._among = min(2 * len(jobs), _MAX_AMONG) if are_many else 1
        unknown = [job for job in jobs if job not in known]
        self._release(unknown, partial(leave, self._queue, self._handler.keep_unknown, whys))
        self._release(known[n:])
        return known[:n]

    def _begin(self, jobs: list[HeldJob]) -> None:
        """Begin jobs, or let them wait for those that run."""
        if not jobs:
            return
        keeps_no_results = self._stores_results and not self._store.options.keeps_done
        self._stores_results = self._stores_results and not keeps_no_results
        kept, back = self._divided(jobs)
        self._threads.put(kept)
        # These calls take time, so the threads get their jobs first.
        self._release(back)
        if keeps_no_results:
            self._ends.warn_about_results()

    def _begin_alone(self, job: HeldJob, others: list[HeldJob]) -> None:
        """Run a job alone in this process, unless running jobs hold it up for too long.

        The rest of its claim goes back, and so does the job while others run: an idle worker may
        take it. Jobs that have used up a start of a rate stay.
        """
        staying = [each for each in others if self._uses_start(each) and not each.is_lone]
        self._begin(staying)
        back = [each for each in others if each not in staying]
        back += self._threads.withdraw(lambda waiting: not self._uses_start(waiting))
        if process.held > 1 + len(back) and not self._uses_start(job):
            back.insert(0, job)
        self._release(back)
        jobs = [] if job in back else [job]
        began = time.monotonic()
        with process.exclusive(self._member, self._stop, self._patience, len(jobs)) as is_alone:
            if is_alone:
                jobs = jobs or self._known(self._claimed(self._stop, 0, 1), 1)
                self._threads.put(jobs)
                self._patience = self._first_patience
                while any(job.is_lone for job in jobs) and self._held:
                    with self._ended:
                        self._ended.wait(_FULL)
                return
        self._release(jobs)
        if time.monotonic() - began >= self._patience:
            # Other jobs run for twice as long now; then the next wait may take as long.
            self._patience *= 2
            self._alone_at = time.monotonic() + self._patience

    def _room(self) -> int:
        """Return how many jobs to claim now; none while more than half are left ahead."""
        held = len(self._held) - self._concurrency
        free, waiting = max(0, -held), max(0, held)
        may_claim_ahead = self._may_claim_ahead and self._seconds <= _AHEAD
        if not may_claim_ahead or self._store.options.has_any_rate:
            return free
        in_time = int(self._concurrency * _AHEAD / self._seconds)
        # At first, no more than were timed: one quick job says little about the next hundred.
        ahead = min(self._prefetch, in_time, self._n_timed)
        return free + ahead - waiting if 2 * waiting <= ahead else 0

    def _is_late(self, job: HeldJob) -> bool:
        """Return whether a job has waited for longer than it takes to claim it again."""
        return time.monotonic() - job.claimed_at > _LATE and not self._uses_start(job)

    def _give_back(self, late: list[HeldJob]) -> None:
        """Give back jobs that wait for long ones, and claim none ahead until one has ended."""
        if late:
            self._may_claim_ahead = False
            self._release(late)

    def _divided(self, jobs: list[HeldJob]) -> tuple[list[HeldJob], list[HeldJob]]:
        """Return the jobs of a claim to keep, and the jobs to release instead of claiming ahead.

        A job that was tried before would lose another attempt if one of the others killed the
        worker. A job that has used up a start of a rate stays: it might not be claimed again for a
        long time.
        """
        free = max(0, self._concurrency - (len(self._held) - len(jobs)))
        are_last = self._store.options.max_attempts == 1 or self._handler.may_be_last
        back = [job for job in jobs[free:] if are_last or self._goes_back(job)]
        self._may_claim_ahead = not are_last and {job.claim.attempts for job in jobs} == {(1,)}
        return [job for job in jobs if job not in back], back

    def _goes_back(self, job: HeldJob) -> bool:
        """Return whether a job was tried before, and its claim has used up no start of a rate."""
        return job.claim.attempt > 1 and not self._uses_start(job)

    def _uses_start(self, job: HeldJob) -> bool:
        """Return whether the claim of a job has used up a start of a rate."""
        store, options = self._store, self._store.options
        if options.has_rate or not options.has_rate_of_group:
            return options.has_rate
        is_task = store.given_options.kind == "task"  # of any agent
        return is_task or store.levels.level_of(job.claim.keys[0]).group is not None
