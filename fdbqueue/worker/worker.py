"""Workers: claim jobs, run a handler on each, acknowledge them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fdbqueue.database.binding import error_classes, is_database
from fdbqueue.database.receipts import run_once
from fdbqueue.errors import FdbqueueError, HandlerTooSlow, LeaseLost
from fdbqueue.operations.claim import told_error
from fdbqueue.queue.arguments import checked_agent, checked_lease, checked_number
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.types import Claim
from fdbqueue.worker.handler import Handler
from fdbqueue.worker.telemetry import Telemetry

if TYPE_CHECKING:
    from queue import SimpleQueue

__all__ = ["Worker", "WorkerReport"]

_log = logging.getLogger("fdbqueue.worker")

_LONGEST_SLEEP = 1.0  # seconds, of one that waits for jobs, from one look at `stop` to the next
_LAST_JOBS = 0.02  # seconds, of one that waits for its last jobs, between looks for more
_PAUSE = 1.0  # seconds, after an error of the database
_TRANSACTION = 5.0  # seconds, for which one lives

# How many jobs are claimed ahead: as many as take so long, but so many at most.
_AHEAD = 0.05  # seconds
_MOST_AHEAD = 100
_WEIGHT = 0.1  # of a job that ended, in how long jobs take


@dataclass(slots=True)
class WorkerReport:
    """What a worker did: jobs that ended well, that failed, and whose lease it lost."""

    done: int = 0
    failed: int = 0
    lost: int = 0


def no_progress(report: WorkerReport) -> None:
    """Do nothing after a job."""


class _Stopped(Exception):
    """The worker was stopped, and tries no transaction again."""


@dataclass(slots=True, eq=False)
class _Job:
    """A claimed item; its lease ends then at the latest, by this process's clock."""

    claim: Claim
    lease_end: float


class Worker:
    """Runs a handler on the jobs of a queue, some at a time, until it is stopped.

    Jobs are claimed ahead, as many as run at a time, or in a twentieth of a second, so that none
    waits for the database, and their leases are extended as long as this process lives. A handler
    that returns has done its job: it is acknowledged, together with others. One that raises has
    failed: the job is tried again later, or is a dead letter (`nack`). One bad job never stops a
    worker, nor does a database that cannot be reached for a while.

    A handler is a function or a coroutine function of one argument, the item (of a task queue, the
    task). If its first parameter is called `tr`, it is the body of a transaction: what it writes
    and the end of the job are one, and take effect exactly once, however often the job is begun;
    the body may run several times, and must be done within five seconds: one that was too slow has
    failed. The job is acknowledged before the body runs, so that this can push what is to be unique
    under the same key. Of any other handler the job may be done again after a crash: at least once.

    `stop`, SIGTERM or SIGINT let the jobs that run end, and give back those that were not begun; a
    second signal ends the process at once. Of the jobs of a worker that died, all count as claimed
    that it held, also those that it had not begun: so what came back once, or has one attempt in
    all, is not claimed ahead.

    Parameters: `db`, a database; `queue`, a `PriorityQueue`, `TaskQueue` or `Queue`; `handler`;
    `concurrency`, how many jobs run at a time, each in a thread, from 1; `lease`, in seconds: how
    long it takes until others do the jobs of a worker that died; `agent`, of a task queue, only the
    tasks of this one.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> _ = jobs.push_many(db, [1, 2, 3])
    >>> def count(tr, item):
    ...     tr.add(b"sum", item.value.to_bytes(8, "little"))
    >>> Worker(db, jobs, count).run(drain=True)
    WorkerReport(done=3, failed=0, lost=0)
    >>> db[b"sum"][0]
    6
    """

    def __init__(
        self,
        db: Any,
        queue: BaseQueue[Any],
        handler: Callable[..., Any],
        *,
        concurrency: int = 1,
        lease: float = 30,
        agent: str | None = None,
    ) -> None:
        if not isinstance(queue, BaseQueue):
            raise TypeError(f"a worker works on a queue, not on {queue!r}")
        if not is_database(db):
            raise TypeError(f"a worker needs a database, not {db!r}")
        self._db = db
        self._queue: Any = queue
        store = self._store = store_of(queue)
        self._handler = handler if isinstance(handler, Handler) else Handler(handler)
        self._concurrency = checked_number(concurrency, "concurrency", 1)
        self._lease = checked_lease(lease)
        self._options: dict[str, Any] = {}
        if agent is not None:
            if store.given_options.kind != "task":
                raise TypeError("only a task queue has agents")
            self._options["agent"] = checked_agent(agent)
        self._name = store.layout.name or repr(queue.subspace.key())
        self._telemetry = Telemetry(self._name)
        self._may_claim_ahead = True
        self._stopping = False  # a flag: an event has a lock, which a signal handler must not take
        self._guard = threading.Lock()
        self._ended = threading.Condition(self._guard)
        self._held: set[_Job] = set()
        self._seconds = 1.0  # that a job takes, as far as one knows
        self.report = WorkerReport()

    def stop(self) -> None:
        """Let the jobs that run end, and begin no other one.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> worker = Worker(db, fdbqueue.PriorityQueue.named(db, "jobs"), print)
        >>> worker.stop()
        >>> worker.run()
        WorkerReport(done=0, failed=0, lost=0)
        """
        self._stopping = True

    def run(
        self, *, drain: bool = False, progress: Callable[[WorkerReport], object] = no_progress
    ) -> WorkerReport:
        """Do jobs until `stop` is called; with `drain`, until there is none.

        In the main thread, SIGTERM and SIGINT stop it. `progress` is called after each job.
        """
        # Not before it is needed: the name may be taken, as in `recipes/`.
        from queue import SimpleQueue

        ready: SimpleQueue[_Job | None] = SimpleQueue()

        def work() -> None:
            while (job := ready.get()) is not None:
                if self._stopping:
                    self._release([job])
                else:
                    self._do(job, acks.submit, progress)

        with (
            closing(self._handler),
            self._signals(),
            self._extending(),
            futures.ThreadPoolExecutor(1) as acks,
            futures.ThreadPoolExecutor(self._concurrency) as threads,
        ):
            workers = [threads.submit(work) for _ in range(self._concurrency)]
            try:
                self._feed(ready, drain)
            except BaseException:
                self.stop()
                raise
            finally:
                for _ in workers:
                    ready.put(None)
                for each in workers:
                    each.result()
                with self._ended:
                    self._ended.wait_for(lambda: not self._held)
        return self.report

    def _feed(self, ready: SimpleQueue[_Job | None], drain: bool) -> None:
        """Claim jobs as long as few enough are held."""
        errors: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
        while not self._stopping:
            if self._handler.is_orphan:
                self.stop()
                break
            n = self._room()
            if n == 0:
                with self._ended:
                    self._ended.wait_for(self._room, _LONGEST_SLEEP)
                continue
            was_idle = not self._held  # else a job may push others before it ends
            wait = 0 if drain else _LONGEST_SLEEP
            try:
                claim = self._queue.claim(
                    self._db, n=n, lease=self._lease, wait=wait, **self._options
                )
            except errors as error:
                _log.error("%s: no job can be claimed: %s", self._name, error)
                time.sleep(_PAUSE)
                continue
            if claim is not None:
                for job in self._kept(claim):
                    ready.put(job)
            elif drain and was_idle:
                return
            elif drain:
                with self._ended:
                    self._ended.wait_for(lambda: not self._held, _LAST_JOBS)

    def _room(self) -> int:
        """How many jobs to claim now; none while more than half as many are held ahead."""
        held = len(self._held) - self._concurrency
        if not self._may_claim_ahead:
            return max(0, -held)
        in_time = int(self._concurrency * _AHEAD / self._seconds)
        ahead = max(self._concurrency, min(_MOST_AHEAD, in_time))
        held = max(0, held)
        return ahead - held if 2 * held <= ahead else 0

    def _kept(self, claim: Claim) -> list[_Job]:
        """The jobs of a claim that are held; those that should not be claimed ahead go back.

        The worker might die of one of the others, and each would lose another attempt.
        """
        lease_end = time.monotonic() + self._lease
        jobs = [_Job(each, lease_end) for each in claim]
        free = max(0, self._concurrency - len(self._held))
        are_last = self._store.schedule.max_attempts == 1
        back = [job for job in jobs[free:] if are_last or job.claim.attempt > 1]
        self._may_claim_ahead = not are_last and claim.attempts == (1,) * len(claim)
        with self._guard:
            self._held.update(jobs)
        if back:
            self._release(back)
        return [job for job in jobs if job not in back]

    def _do(
        self,
        job: _Job,
        start: Callable[[Callable[[], None]], object],
        progress: Callable[[WorkerReport], object],
    ) -> None:
        """Do one job, and see to its end, whatever that is."""
        claim = job.claim
        began = time.perf_counter()

        def end(outcome: str, error: BaseException | None = None) -> None:
            self._end(job, outcome, time.perf_counter() - began, error)
            try:
                progress(self.report)
            except Exception:
                _log.exception("%s: progress cannot be told", self._name)

        def acknowledged(outcome: Callable[[], LeaseLost | None]) -> None:
            try:
                lost = outcome()
            except Exception as error:  # of the database: others may do the job again
                end("failed", error)
            else:
                end("done" if lost is None else "lost")

        try:
            if time.monotonic() > job.lease_end:
                # This process was stopped for a while: is the job still its own?
                self._queue.extend(self._db, claim, self._lease)
            with self._telemetry.span(claim.item.id, claim.attempt):
                self._handle(claim)
        except LeaseLost:
            end("lost")
        except _Stopped:
            self._release([job])
        except BaseException as failure:
            self._nack(claim, failure)
            end("failed", failure)
        else:
            seconds = time.perf_counter() - began
            self._seconds += _WEIGHT * (max(seconds, 1e-6) - self._seconds)
            if self._handler.in_transaction:
                end("done")
            else:
                self._store.acks.submit(self._db, claim, start, acknowledged)

    def _handle(self, claim: Claim) -> None:
        """Run the handler; if it is part of a transaction, with the acknowledgement."""
        if not self._handler.in_transaction:
            self._handler(claim.item)
            return
        tries = 0
        seconds = 0.0

        def body(tr: Any) -> bool:
            nonlocal tries, seconds
            if tries and self._stopping:
                raise _Stopped
            if seconds > _TRANSACTION:
                raise HandlerTooSlow(seconds)
            tries += 1
            self._queue.ack(tr, claim)
            began = time.monotonic()
            try:
                self._handler(tr, claim.item)
            finally:
                seconds = time.monotonic() - began
            return True

        run_once(self._db, body, self._store.layout.receipts)

    def _end(self, job: _Job, outcome: str, seconds: float, error: BaseException | None) -> None:
        """Count a job that ended, and tell of it."""
        with self._ended:
            self._held.remove(job)
            setattr(self.report, outcome, getattr(self.report, outcome) + 1)
            self._ended.notify()
        self._telemetry.count(outcome, seconds)
        _log.log(
            logging.INFO if outcome == "done" else logging.WARNING,
            "%s %s %s, attempt %d, %.1f ms%s",
            self._name,
            job.claim.item.id,
            outcome,
            job.claim.attempt,
            1000 * seconds,
            "" if error is None else f": {told_error(error)}",
        )

    def _nack(self, claim: Claim, failure: BaseException) -> None:
        try:
            self._queue.nack(self._db, claim, error=failure)
        except Exception as error:
            # The lease will run out, and the job be tried again all the same.
            _log.error("%s %s: not given back: %s", self._name, claim.item.id, error)

    def _release(self, jobs: list[_Job]) -> None:
        """Give back what was claimed ahead."""
        for job in jobs:
            try:
                self._queue.release(self._db, job.claim)
            except Exception as error:
                _log.error("%s %s: not given back: %s", self._name, job.claim.item.id, error)
            with self._ended:
                self._held.remove(job)
                self._ended.notify()

    @contextmanager
    def _extending(self) -> Iterator[None]:
        """Extend the leases of all jobs that are held, three times in each."""
        over = threading.Event()

        def extend() -> None:
            while not over.wait(self._lease / 3):
                with self._guard:
                    held = list(self._held)
                lease_end = time.monotonic() + self._lease
                claims = [job.claim for job in held]
                try:
                    errors = self._store.extend_each(self._db, claims, self._lease)
                except Exception as error:
                    _log.error("%s: %d jobs are not extended: %s", self._name, len(held), error)
                    continue
                for job, lost in zip(held, errors):
                    if lost is None:  # else it just ended; or its end will tell that it is lost
                        job.lease_end = lease_end

        thread = threading.Thread(target=extend, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the worker, where that can be said."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _: Any) -> None:
            if self._stopping:  # it was said before
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self.stop()
            _log.warning(
                "%s: stops when the jobs that run have ended; %d are held",
                self._name,
                len(self._held),
            )

        before = {
            number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
