"""How a worker gets its jobs: how many it claims, from which queue, ahead or not."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fdbqueue.database.clock import Since, milliseconds
from fdbqueue.errors import FdbqueueError, error_classes
from fdbqueue.layout.values import Header, runs_alone
from fdbqueue.queue.base import Stop, claim_until, wait_to_claim
from fdbqueue.types import Claim, Database, Transaction
from fdbqueue.worker.held import Held, HeldJob, HeldLease, process
from fdbqueue.worker.telemetry import Log
from fdbqueue.worker.turns import Pace, Source, Turns

if TYPE_CHECKING:
    from fdbqueue.worker.endings import Endings
    from fdbqueue.worker.handler import Handler
    from fdbqueue.worker.pool import Pool
    from fdbqueue.worker.shutdown import Shutdown

_log = Log("fdbqueue.worker")

_LOOK = 0.2  # seconds that a worker waits before the handlers of signals run
_SOON = 0.02  # seconds between looks while jobs wait, or while the last ones of a drain run
_PAUSE = 1.0  # seconds after an error of the database
_PATIENCE = 1.0  # seconds for which a job that is to run alone waits for running ones, at first
_MAX_AMONG = 100  # jobs to claim at a time in search of jobs that the handler knows

_NO_RESULTS = (
    "%s keeps no done items, so the results of jobs cannot be stored; use configure(db, keep=...), "
    "or `fdbq limit --keep-last`, and start the worker again"
)


def _errors() -> tuple[type[Exception], ...]:
    return FdbqueueError, *error_classes()


@dataclass(eq=False)
class Claiming:
    """Claims jobs for a worker, from one of its queues after the other, and lets them begin.

    Args:
        db: The database.
        turns: The queues.
        handler: The handler.
        held: The jobs that the worker holds.
        pace: Says how many jobs to claim.
        pool: The threads that run the jobs.
        endings: Gives back jobs that do not begin.
        shutdown: Says when to stop.
        lease: The length of a lease in seconds.
        options: The other options of a claim.
    """

    db: Database
    turns: Turns
    handler: Handler
    held: Held
    pace: Pace
    pool: Pool[HeldJob]
    endings: Endings
    shutdown: Shutdown
    lease: float
    options: dict[str, Any]
    _waiting: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _alone_at: float = -math.inf  # the time from which a job may run alone
    _drains: bool = False
    _is_claiming: bool = False
    _n_ended: int = 0  # jobs, when a look at all queues began

    def __post_init__(self) -> None:
        self._patience = _PATIENCE
        self._stop = self.shutdown.stop
        self.member = partial(len, self.held)
        """The worker, as the others of its process see it."""

    def trouble(self) -> str | None:
        """Return why no jobs can be claimed; `None` if they can."""
        for source in self.turns.sources:
            if not self._is_claiming or source.is_away:
                return f"the worker cannot claim jobs from {source.name}, or does not yet"
        return None

    def feed(self, *, drain: bool) -> None:
        """Claim jobs until the worker is stopped or, with `drain`, until none are left."""
        self._drains = drain
        self.turns.rouse()
        self._is_claiming = True
        try:
            while not self._stop.is_set and self._look():
                pass
        finally:
            self._is_claiming = False
            self.turns.rouse()
            for thread in self._waiting:
                thread.join()

    def _look(self) -> bool:
        """Claim jobs from a queue once there is room; return false if nothing is left to do."""
        held, turns, pace = self.held, self.turns, self.pace
        pace.look()
        self.endings.release(self._late())
        some_wait = self.pool.first_waiting is not None  # perhaps too long, before others come
        free = pace.room(len(held))
        if free == 0:
            with held.changed:
                held.changed.wait_for(lambda: pace.room(len(held)), _SOON if some_wait else _LOOK)
            return True
        if self._drains and held.n_ended != self._n_ended:  # a job that ended may have pushed some
            self._n_ended = held.n_ended
            turns.rouse()
        turn = turns.next(free)
        if turn is None:
            return self._rest()
        source, n = turn
        waits = len(turns.sources) == 1 and not (self._drains or some_wait)
        try:
            turns.note(source, self._claim(source, math.inf if waits else 0, n), free)
        except _errors() as error:
            self._note_error(source, error)
        if self._sleeps and not turns.in_order:
            self._await_jobs()
        return True

    @property
    def _sleeps(self) -> bool:
        """True if threads wait for jobs; a single queue is claimed from by waiting for jobs."""
        return len(self.turns.sources) > 1 and not self._drains

    def _rest(self) -> bool:
        """Wait until a queue may have jobs; return false if none will have any."""
        held, turns = self.held, self.turns
        if self._sleeps:
            self._await_jobs()
        with held.changed:
            n_ended = held.n_ended
            may_push = len(held) or n_ended != self._n_ended
            if self._drains and not may_push and not any(each.is_away for each in turns.sources):
                return False
            held.changed.wait_for(
                lambda: self._stop.is_set or turns.ready or (not held and held.n_ended != n_ended),
                _LOOK if self._sleeps else _SOON * len(turns.sources),
            )
        if not self._sleeps:
            turns.rouse()
        return True

    def _await_jobs(self) -> None:
        """Let a thread wait for jobs of each queue that has none at present."""
        with self.held.changed:
            empty = [each for each in self.turns.sources if not each.may_have_jobs]
            idle = [(each, Stop()) for each in empty if each.sleep is None]
            for source, sleep in idle:
                source.sleep = sleep
        self._waiting = [thread for thread in self._waiting if thread.is_alive()]
        for each in idle:
            thread = threading.Thread(target=self._await_job, args=each)
            thread.start()
            self._waiting.append(thread)

    def _await_job(self, source: Source, sleep: Stop) -> None:
        self._stop.add(sleep)
        try:
            wait_to_claim(source.queue, self.db, sleep)
        except _errors() as error:
            self._note_error(source, error)
        except BaseException as error:
            self.shutdown.fail(error)
        finally:
            self._stop.discard(sleep)
            with self.held.changed:
                source.sleep = None
                self.turns.want(source)
                self.held.changed.notify_all()

    def _note_error(self, source: Source, error: Exception) -> None:
        source.away_until = time.monotonic() + _PAUSE
        _log.error("%s: cannot claim jobs: %s", source.name, error)

    def _late(self) -> list[HeldJob]:
        """Take back jobs that have waited for longer than it takes to claim them again.

        Another worker may be idle. The first ones stay if they begin soon.
        """
        keep = self.pace.soon(len(self.held))
        if len(self.held) - self.pace.concurrency <= keep:
            return []
        first = self.pool.first_waiting
        is_late = first is not None and self.pace.is_late(first.lease.since.seconds())
        return self.pool.withdraw(keep) if is_late else []

    # What becomes of a claim

    def _claim(self, source: Source, wait: float, n: int) -> int:
        """Claim jobs, begin up to `n` that may run now, and return how many were claimed."""
        process.wait(self.member, self._stop)
        claimed = self._claimed(source, wait, n)
        if not process.admits(self.member):
            self.endings.release(claimed)
            return len(claimed)
        jobs = self._known(source, claimed, n)
        lone = [job for job in jobs if job.is_lone]
        left = self._alone_at - time.monotonic()
        if lone and lone[0] is jobs[0] and left <= 0:
            self._begin_alone(source, jobs)
        else:
            self._begin(source, [job for job in jobs if job not in lone])
            self.endings.release(
                lone, partial(Source.unclaim, now=milliseconds(), delay=max(0.0, left))
            )
        return len(claimed)

    def _claimed(self, source: Source, wait: float, n: int) -> list[HeldJob]:
        """Claim up to `n` jobs, or more behind jobs that the handler does not know; hold them."""
        options = {"lease": self.lease, "wait": wait, **self.options}
        n = max(n, source.among)
        claims = claim_until(self._stop, source.queue, self.db, n=n, **options) or ()
        since = Since()
        is_spent = self.handler.is_spent
        jobs = [
            HeldJob(
                source,
                each,
                item := each.item,
                HeldLease(each, self.lease, since),
                is_lone=runs_alone(item) and not is_spent(item, each.attempt),
            )
            for each in claims
        ]
        self.held.add(jobs)
        return jobs

    def _known(self, source: Source, jobs: list[HeldJob], n: int) -> list[HeldJob]:
        """Return up to `n` of these jobs that the handler knows, and give back all others."""
        unknown = self.handler.unknown
        whys = {job.claim.keys: why for job in jobs if (why := unknown(job.item)) is not None}
        known = [job for job in jobs if job.claim.keys not in whys] if whys else jobs
        # Many more may follow. They must not hold up the other jobs.
        source.among = min(2 * len(jobs), _MAX_AMONG) if jobs and not known else 1
        if len(known) < len(jobs):
            leave = partial(self._leave, whys, milliseconds())
            self.endings.release([job for job in jobs if job not in known], leave)
        self.endings.release(known[n:])
        return known[:n]

    def _leave(
        self,
        whys: dict[tuple[bytes, ...], str],
        now: int,
        source: Source,
        tr: Transaction,
        claim: Claim,
    ) -> None:
        """Leave a job to workers that know it, as if it had never been claimed."""
        since, longest = Header(*claim.item.metadata).unknown, self.handler.keep_unknown
        leave = source.store.claimed.leave
        leave(tr, now, claim, whys[claim.keys], since, longest, random.uniform)

    def _begin(self, source: Source, jobs: list[HeldJob]) -> None:
        """Begin jobs, or let them wait for those that run.

        A job that was tried before does not wait: it would lose another attempt if one of the
        others killed the worker.
        """
        if not jobs:
            return
        options = source.store.options
        if source.stores_results and not options.keeps_done:
            source.stores_results = False
            _log.warning(_NO_RESULTS, source.name)
        are_last = options.max_attempts == 1 or self.handler.may_be_last
        free = max(0, self.pace.concurrency - (len(self.held) - len(jobs)))
        back = [job for job in jobs[free:] if are_last or job.claim.attempt > 1]
        are_first = {job.claim.attempts for job in jobs} == {(1,)}
        self.pace.may_claim_ahead = (
            are_first and not (are_last or options.has_any_rate) and len(self.turns.sources) == 1
        )
        self.pool.put([job for job in jobs if job not in back])
        self.endings.release(back)  # the threads get their jobs before, because this takes time

    def _begin_alone(self, source: Source, jobs: list[HeldJob]) -> None:
        """Run the first of these jobs alone in this process, unless others run for too long.

        All that wait go back; so does the job while others run, because an idle worker may take it.
        """
        lone, back = jobs[:1], [*jobs[1:], *self.pool.withdraw()]
        if process.held > 1 + len(back):
            lone, back = [], [*lone, *back]
        self.endings.release(back)
        patience = math.inf if self._drains else self._patience
        with process.exclusive(self.member, self._stop, patience, len(lone)) as is_alone:
            if is_alone:
                self._patience = _PATIENCE
                lone = lone or self._known(source, self._claimed(source, 0, 1), 1)
                self.pool.put(lone)
                with self.held.changed:
                    while len(self.held) and any(job.is_lone for job in lone):
                        self.held.changed.wait(_LOOK)
                return
        self.endings.release(lone)
        # Other jobs run for twice as long now; then the next wait may take as long.
        self._patience *= 2
        self._alone_at = time.monotonic() + self._patience
