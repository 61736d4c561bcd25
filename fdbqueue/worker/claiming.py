"""How a worker gets its jobs: how many, from which queue, ahead or not."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue.database.clock import Since, client_name
from fdbqueue.database.retrying import run
from fdbqueue.errors import FdbqueueError, QueueRenamed, error_classes
from fdbqueue.layout.values import Header, runs_alone
from fdbqueue.queue.base import WITHIN, BaseQueue, Stop, drive, store_of
from fdbqueue.queue.steps import HeldLease
from fdbqueue.types import ReadTransaction, Transaction
from fdbqueue.worker.endings import Endings, unclaim
from fdbqueue.worker.pool import HeldJob, Part
from fdbqueue.worker.presence import ask_database
from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")

_LOOK = 0.2  # seconds that a worker waits before the handlers of signals run
_SOON = 0.02  # seconds between looks while jobs wait, or while the last ones of a drain run
_PAUSE = 1.0  # seconds after an error of the database
_PATIENCE = 1.0  # seconds for which a job that is to run alone waits for running ones, at first
_MAX_AMONG = 100  # jobs to claim at a time in search of jobs that the handler knows
_WEIGHT = 0.1  # weight of the latest job in the moving average of durations, or that of a mean
_AHEAD = 0.05  # seconds of work for which jobs are claimed ahead
_LATE = 2.0  # times these seconds, after which a job that waits is late


_may_have_jobs = attrgetter("may_have_jobs")


def _lone_first(jobs: list[HeldJob]) -> list[HeldJob]:
    """Put the first job of the first priority that is to run alone before the others.

    Else a job of a group with a long list could be ahead of it each time that the worker is idle.
    """
    for job in jobs:
        if job.is_lone and job.item.priority == jobs[0].item.priority:
            return [job, *(other for other in jobs if other is not job)]
    return jobs


def _errors() -> tuple[type[Exception], ...]:
    return FdbqueueError, *error_classes()


@dataclass(eq=False)
class Source:
    """A queue of a worker.

    Attributes:
        passed: The number of claimed jobs, divided by the weight.
        away_until: When to try again after an error, by the monotonic clock; `-inf` after a claim.
        among: The number of jobs to claim, to find one behind unknown jobs.
        sleep: Ends the wait of a thread for its jobs.
    """

    queue: BaseQueue[Any]
    at_most: int | None = None
    weight: float = 1.0
    stores_results: bool = False
    held: int = field(default=0, init=False)
    passed: float = field(default=0.0, init=False)
    may_have_jobs: bool = field(default=True, init=False)
    away_until: float = field(default=-math.inf, init=False)
    among: int = field(default=1, init=False)
    sleep: Stop | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.store = store_of(self.queue)
        self.name = self.store.layout.name or repr(self.queue.subspace.key())

    @property
    def has_failed(self) -> bool:
        """Return whether there was an error, and no claim since."""
        return self.away_until > -math.inf


class Turns:
    """The queues of a worker, which claims from one after the other.

    In order, the next turn goes to the first queue that may have jobs. By weight, the turn goes to
    the queue with the fewest claimed jobs for its weight, but a queue that had none does not catch
    up.
    """

    def __init__(self, sources: Sequence[Source], *, in_order: bool = True) -> None:
        self.sources = sources
        self.in_order = in_order
        self._latest = 0.0  # the `passed` of the latest turn's queue, before that turn

    def check_names(self, tr: ReadTransaction) -> None:
        """Raise `QueueRenamed` if another queue has the name of one of these now."""
        for source in self.sources:
            source.store.check_name(tr)

    def ready(self) -> list[Source]:
        """Return the queues that may have jobs, and have room."""
        now, found = time.monotonic(), list[Source]()
        for each in self.sources:
            has_room = each.at_most is None or each.held < each.at_most
            if each.may_have_jobs and each.away_until <= now and has_room:
                found.append(each)
        return found

    def next(self, free: int) -> tuple[Source, int] | None:
        """Return the queue to claim from, and how many of `free` jobs, or `None`."""
        ready = self.ready()
        if not ready:
            return None
        if self.in_order:
            source, n = ready[0], free
        else:
            source = min(ready, key=lambda each: each.passed)
            n = int(free * source.weight / sum(each.weight for each in ready))
        if source.at_most is not None:
            n = min(n, source.at_most - source.held)
        return source, max(1, n)

    def note(self, source: Source, n: int, free: int) -> None:
        """Record a claim of `n` jobs, of up to `free`."""
        source.may_have_jobs = n > 0
        if not self.in_order and n > 0:
            self._latest = source.passed
            source.passed += n / source.weight
        elif self.in_order and n >= free:
            self.rouse()

    def want(self, source: Source) -> None:
        """Record that a queue may have jobs."""
        if not source.may_have_jobs:
            source.may_have_jobs = True
            source.passed = max(source.passed, self._latest)

    def rouse(self) -> None:
        """Record that any queue may have jobs, and wake waiting threads."""
        for each in self.sources:
            if not each.may_have_jobs:
                self.want(each)
            sleep = each.sleep  # which its thread may end meanwhile
            if sleep is not None:
                sleep.set()


class Pace:
    """How many jobs to claim, by the duration of the last ones.

    Attributes:
        may_claim_ahead: False if a job that goes back would lose an attempt or a start.

    Example:
        >>> pace = Pace(concurrency=2, prefetch=100)
        >>> for _ in range(10):
        ...     pace.note(0.001)
        >>> pace.room(0)
        12
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self.concurrency = concurrency
        self._prefetch = prefetch
        self.seconds = 1.0
        self.n_timed = 0
        self.may_claim_ahead = True

    def note(self, seconds: float) -> None:
        """Record the duration of a done job."""
        self.n_timed += 1
        weight = max(_WEIGHT, 1 / self.n_timed)
        self.seconds += weight * (max(seconds, 1e-6) - self.seconds)

    def room(self, held: int) -> int:
        """Return how many jobs to claim beside the held ones, if at most half are left ahead."""
        free = max(0, self.concurrency - held)
        waiting = max(0, held - self.concurrency)
        ahead = 0
        if self.may_claim_ahead and self.seconds <= _AHEAD:
            # At first, no more than were timed: one quick job says little about the next hundred.
            soon = int(self.concurrency * _AHEAD / self.seconds)
            ahead = min(self._prefetch, soon, self.n_timed)
        return free + ahead - waiting if 2 * waiting <= ahead else 0

    def is_late(self, seconds: float) -> bool:
        """Return whether a job has waited too long; then claim none ahead."""
        is_late = seconds > _LATE * _AHEAD
        if is_late:  # so none are claimed ahead until jobs are quick again
            self.seconds = max(self.seconds, seconds)
        return is_late


@dataclass(eq=False)
class Claiming(Part):
    """Claims jobs for a worker, and lets them begin."""

    endings: Endings
    turns: Turns
    lease: float
    client: str | None
    _waiting: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _alone_at: float = -math.inf  # the time from which a job may run alone
    _drains: bool = False
    _is_claiming: bool = False
    _n_ended: int = 0  # jobs, when a look at all queues began
    _patience: float = 0.0  # seconds for which a job that is to run alone waits for running ones
    _client: str = ""

    def trouble(self) -> str | None:
        """Return why no jobs can be claimed, or `None`."""
        if self.shutdown.stop.is_set:
            return "the worker is about to stop"
        is_busy = self.pool.pace.room(len(self.pool.held)) == 0  # then it claims as soon as it can
        for source in self.turns.sources:
            if not self._is_claiming or (source.has_failed and not is_busy):
                return f"the worker cannot claim jobs from {source.name}, or does not yet"
        try:
            run(self.db, partial(ask_database, self.turns.check_names))
        except QueueRenamed as error:
            return str(error)
        except _errors() as error:
            return f"the database does not answer: {error}"
        return None

    def run(self, *, drain: bool) -> None:
        """Claim jobs until the worker is stopped or, with `drain`, none are left."""
        pool, turns = self.pool, self.turns
        self._drains, self._client = drain, self.client or client_name()
        self._patience = _PATIENCE
        self._is_claiming = True
        try:
            while not self.shutdown.stop.is_set:
                if drain and pool.n_ended != self._n_ended:
                    self._n_ended = pool.n_ended  # the jobs that ended may have pushed some
                    turns.rouse()
                free = pool.pace.room(len(pool.held))
                if not free:
                    pool.await_room(_SOON if self._has_waiting() else _LOOK)
                elif turn := turns.next(free):
                    self._claim(*turn, free)
                elif not self._await_jobs():
                    return
        finally:
            self._is_claiming = False
            turns.rouse()
            for thread in self._waiting:
                thread.join()

    def _has_waiting(self) -> bool:
        """Return whether jobs wait to begin; give them back if the first is late."""
        first = self.pool.first_waiting
        if first is not None and self.pool.pace.is_late(first.lease.since.seconds()):
            self.endings.release(self.pool.withdraw())
        return first is not None

    def _claim(self, source: Source, n: int, free: int) -> None:
        """Claim up to `n` jobs, and begin each that may run."""
        is_only = len(self.turns.sources) == 1
        waits = is_only and not self._drains and not self._has_waiting()
        waits = waits and not source.has_failed  # first show that a claim is possible again
        try:
            n_claimed, jobs = self._claimed(source, n, wait=math.inf if waits else 0)
            source.away_until = -math.inf
            if jobs:
                self._begin_or_return(source, jobs)
            self.turns.note(source, n_claimed, free)
            if self._drains and n_claimed < n:  # no more were ready
                source.may_have_jobs = False
        except _errors() as error:
            self._note_error(source, error)
        if not (is_only or self._drains or self.turns.in_order):
            self._await_each()

    def _await_jobs(self) -> bool:
        """Wait until a queue may have jobs; return false if none will."""
        pool, turns, stop = self.pool, self.turns, self.shutdown.stop
        sleeps = not self._drains and len(turns.sources) > 1
        if sleeps:
            self._await_each()
        else:
            self._has_waiting()
        with pool.changed:
            n_ended = pool.n_ended
            may_push = len(pool.held) or n_ended != self._n_ended
            if self._drains and not may_push and not any(map(_may_have_jobs, turns.sources)):
                return False
            pool.changed.wait_for(
                lambda: stop.is_set or turns.ready() or (not pool.held and pool.n_ended != n_ended),
                _LOOK if sleeps else _SOON * len(turns.sources),
            )
        if not sleeps:
            turns.rouse()
        return True

    def _await_each(self) -> None:
        self._waiting = [thread for thread in self._waiting if thread.is_alive()]
        for source in self.turns.sources:
            with self.pool.changed:
                if source.may_have_jobs or source.sleep is not None:
                    continue
                sleep = source.sleep = Stop()
            thread = threading.Thread(target=self._await_job, args=(source, sleep))
            thread.start()
            self._waiting.append(thread)

    def _await_job(self, source: Source, sleep: Stop) -> None:
        self.shutdown.stop.on_ready(sleep.set)
        try:
            drive(source.store.wait_to_claim(self.db), sleep)
        except _errors() as error:
            self._note_error(source, error)
        except BaseException as error:
            self.shutdown.fail(error)
        finally:
            self.shutdown.stop.discard(sleep.set)
            with self.pool.changed:
                source.sleep = None
                self.turns.want(source)
                self.pool.changed.notify_all()

    def _note_error(self, source: Source, error: Exception) -> None:
        source.away_until = time.monotonic() + _PAUSE
        _log.error("%s: cannot claim jobs: %s", source.name, error)

    # What becomes of a claim

    def _claimed(self, source: Source, n: int, *, wait: float) -> tuple[int, list[HeldJob]]:
        """Claim jobs; return their number, and up to `n` that the handler knows."""
        n_claimed, source.among = max(n, source.among), 1
        stop, store = self.shutdown.stop, source.store
        claiming = store.claim(self.db, self.lease, n_claimed, WITHIN, wait, self._client)
        claims = drive(claiming, stop)
        if claims is None:
            return 0, []
        since = Since()
        known, unknown = list[HeldJob](), list[HeldJob]()
        for claim in claims:
            item = claim.items[0]
            lease = HeldLease(store, self.db, claim, self.lease, since)
            why = self.handler.unknown(item)
            job = HeldJob(source, claim, item, lease, unknown=why, is_lone=runs_alone(item))
            (known if why is None else unknown).append(job)
        self.pool.hold([*known, *unknown])
        if unknown:
            if not known:  # many more may follow, which must not hold up the other jobs
                source.among = min(2 * len(unknown), _MAX_AMONG)
            self.endings.release(unknown, self._leave)
        if len(known) > n:
            self.endings.release(known[n:])
        return len(known) + len(unknown), known[:n]

    def _leave(self, tr: Transaction, now: int, job: HeldJob) -> None:
        since, longest = Header(*job.item.metadata).unknown, self.handler.keep_unknown
        leave = job.source.store.claimed.leave
        leave(tr, now, job.claim, job.unknown or "", since, longest, random.uniform)

    def _begin_or_return(self, source: Source, jobs: list[HeldJob]) -> None:
        jobs = _lone_first(jobs)
        lone = [job for job in jobs if job.is_lone]
        left = self._alone_at - time.monotonic()
        if not lone:
            self._begin(source, jobs)
        elif jobs[0].is_lone and left <= 0:
            self._begin_alone(source, jobs)
        else:
            self._begin(source, [job for job in jobs if not job.is_lone])
            delay = math.ceil(1000 * max(0.0, left))
            self.endings.release(lone, partial(unclaim, delay=delay))

    def _begin(self, source: Source, jobs: list[HeldJob]) -> None:
        """Begin jobs; others wait for running ones on their first attempt."""
        if not jobs:
            return
        options, pace = source.store.options, self.pool.pace
        are_last = options.max_attempts == 1 or self.handler.may_be_last
        free = max(0, pace.concurrency - (len(self.pool.held) - len(jobs)))
        begun, back, are_first = list[HeldJob](), list[HeldJob](), True
        for number, job in enumerate(jobs):
            is_first = job.claim.attempts == (1,)
            are_first = are_first and is_first
            may_begin = number < free or (is_first and not are_last)
            (begun if may_begin else back).append(job)
        pace.may_claim_ahead = (
            are_first and not (are_last or options.has_any_rate) and len(self.turns.sources) == 1
        )
        self.pool.put(begun)
        if back:
            self.endings.release(back)  # the threads get their jobs before: this takes time

    def _begin_alone(self, source: Source, jobs: list[HeldJob]) -> None:
        """Run the first job alone. While others run, give it back for an idle worker."""
        waiting = self.pool.withdraw()
        if len(self.pool.held) > len(jobs) + len(waiting):
            self.endings.release([*jobs, *waiting])
            if not self.pool.wait(math.inf if self._drains else self._patience):
                # Other jobs run for twice as long now; then the next wait may take as long.
                self._patience *= 2
                self._alone_at = time.monotonic() + self._patience
                return
            # As many as can begin: other groups may have their turns before its own now.
            _, jobs = self._claimed(source, self.pool.pace.concurrency, wait=0)
            jobs, waiting = _lone_first(jobs), []
        self.endings.release([*jobs[1:], *waiting])
        self._patience = _PATIENCE
        self.pool.put(jobs[:1])
        if jobs and jobs[0].is_lone:
            self.pool.wait()
