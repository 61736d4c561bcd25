"""The ends of jobs: how they are counted and logged, and how what was not done goes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import LeaseLost, error_text
from fdbqueue.queue.base import change_once, end_cancelled
from fdbqueue.types import Claim, Database, Transaction
from fdbqueue.worker.handler import Handler, in_this_process, outcome_of
from fdbqueue.worker.held import Held, HeldJob, by_source
from fdbqueue.worker.outcomes import (
    BatchCancelled,
    Dead,
    Discard,
    Outcome,
    RetryIn,
    Snooze,
    Spent,
)
from fdbqueue.worker.pool import Background
from fdbqueue.worker.steps.errors import HandlerExited
from fdbqueue.worker.telemetry import Log

if TYPE_CHECKING:
    from fdbqueue.worker.shutdown import Shutdown
    from fdbqueue.worker.turns import Source

Release: TypeAlias = "Callable[[Source, Transaction, Claim], object]"
"""Gives back the items of a claim in a transaction."""

_log = Log("fdbqueue.worker")

_LEVELS = {"lost": logging.WARNING, "failed": logging.ERROR}  # INFO for all others

_LAST = (
    "this was the last attempt, and makes it a dead letter: `fdbq show` has the errors, "
    "`fdbq retry` makes it ready again"
)
_LOST = (
    "its lease of {lease:g} seconds ran out, or was taken away, before the job ended; it runs "
    "again elsewhere, so use a longer lease if the process was stopped or the database did not "
    "answer for that long"
)


@dataclass(slots=True)
class WorkerReport:
    """The work of a worker: number of jobs that succeeded, failed, or lost their lease."""

    done: int = 0
    failed: int = 0
    lost: int = 0


def sum_of(reports: Iterable[WorkerReport]) -> WorkerReport:
    """Return the work of several workers.

    >>> sum_of([WorkerReport(done=1), WorkerReport(done=2, lost=1)])
    WorkerReport(done=3, failed=0, lost=1)
    """
    total = WorkerReport()
    for each in reports:
        total.done += each.done
        total.failed += each.failed
        total.lost += each.lost
    return total


def no_progress(report: WorkerReport) -> None:
    """Do nothing after a job."""


@dataclass(eq=False)
class Endings:
    """Ends the jobs of a worker, in the database, in its report and in the log.

    Args:
        db: The database.
        handler: The handler.
        held: The jobs that the worker holds.
        shutdown: The shutdown of the worker.
        lease: The length of a lease in seconds.

    Attributes:
        report: The numbers of jobs that have ended.
        progress: Called with the report after each job.
    """

    db: Database
    handler: Handler
    held: Held
    shutdown: Shutdown
    lease: float
    report: WorkerReport = field(default_factory=WorkerReport)
    progress: Callable[[WorkerReport], object] = no_progress

    def __post_init__(self) -> None:
        self.background = Background(self.shutdown.fail)
        """The thread that acknowledges jobs together."""

    def acknowledge(self, job: HeldJob, returned: bytes | None) -> None:
        """Acknowledge a job in one transaction with others, without waiting for it."""
        store = job.source.store
        request = store.ack_request(job.claim, returned, log=job.report.log)
        store.acks.submit(self.db, request, self.background.call, partial(self._acknowledged, job))

    def _acknowledged(self, job: HeldJob, outcome: Callable[[], LeaseLost | None]) -> None:
        try:
            end = partial(self.done if outcome() is None else self.lost, job)
        except Exception as error:  # of the database: another worker may repeat the job
            end = partial(self._end, job, "failed", "failed", error)
        try:
            end()
        except BaseException as failure:  # others share the acknowledgement
            self.shutdown.fail(failure)

    def done(self, job: HeldJob, text: str = "done") -> None:
        """Note that a job is done; `text` says how."""
        self._end(job, "done", text)

    def lost(self, job: HeldJob) -> None:
        """Note that the lease of a job ran out, or was taken away."""
        self._end(job, "lost", "lost")
        advice = _LOST.format(lease=self.lease)
        _log.warning("%s %s: %s", job.source.name, job.name, advice)

    def suspended(self, job: HeldJob, why: BaseException, text: str = "suspended") -> None:
        """Log a job that goes on later, and whose attempt does not count."""
        fields = self._fields(job, *self._count(job, text))
        _log.info("%s %s: %s", job.source.name, job.name, why, extra=fields)
        self.held.let_go(job)

    def failed(self, job: HeldJob, failure: BaseException) -> None:
        """End an attempt whose handler has raised an error or an outcome."""
        if self.handler.is_orphan:  # which another thread may notice only later
            self.shutdown.begin()
        is_late = job.late is not None
        if self.shutdown.has_begun and not is_late and not isinstance(failure, Outcome):
            self.interrupted([job], error_text(failure))
            return
        outcome, kept = _decided(job, failure)
        try:
            _give_back(self.db, job, outcome, kept)
        except Exception as error:
            # The lease will expire, so the job is retried anyway.
            _log.error("%s %s: cannot be returned: %s", job.source.name, job.name, error)
        if isinstance(outcome, Snooze):
            self.suspended(job, outcome, "snoozed")
        elif isinstance(outcome, Discard):
            self.done(job, "cancelled" if isinstance(outcome, BatchCancelled) else "discarded")
        else:
            most = job.source.store.options.max_attempts
            is_dead = isinstance(outcome, Dead) or (most is not None and job.claim.attempt >= most)
            self._end(job, "failed", "dead" if is_dead else "failed", kept)
            if is_dead and not job.was_cancelled:
                _log.warning("%s %s: %s", job.source.name, job.name, _LAST)

    def interrupted(self, jobs: list[HeldJob], why: str | None = "") -> None:
        """Give back jobs that have begun, because of a shutdown."""
        for job in jobs if why else ():
            _log.warning("%s %s goes back: %s", job.source.name, job.name, why)
        self.release(jobs, lambda source, tr, claim: source.queue.release(tr, claim))

    def release(self, jobs: list[HeldJob], release: Release | None = None) -> None:
        """Give back jobs whose attempt does not count; by default jobs that have not begun."""
        if not jobs:
            return
        now = milliseconds()
        release = release or (lambda source, tr, claim: source.unclaim(tr, claim, now=now))
        for source, some in by_source(jobs).items():
            claims = [job.claim for job in some]
            errors = _release_all(source, self.db, claims, partial(release, source))
            for job, error in zip(some, errors):
                self.held.let_go(job)
                if error is not None:
                    _log.error("%s %s: cannot be returned: %s", source.name, job.name, error)

    def _end(
        self, job: HeldJob, outcome: str, text: str, error: BaseException | None = None
    ) -> None:
        """Count and log a job that has ended, and tell the caller of `run`.

        Args:
            job: The job.
            outcome: `"done"`, `"failed"` or `"lost"`.
            text: The outcome in the log and the metrics.
            error: Why it failed, if it did.
        """
        with self.held.changed:
            setattr(self.report, outcome, getattr(self.report, outcome) + 1)
        self.held.let_go(job)
        text, seconds = self._count(job, text)
        level = logging.INFO if text == "cancelled" else _LEVELS.get(outcome, logging.INFO)
        if _log.logger.isEnabledFor(level):  # few programs log the jobs that are done
            _log.log(
                level,
                "%s %s %s, attempt %d, %.1f ms%s",
                job.source.name,
                job.name,
                text,
                job.claim.attempt,
                1000 * seconds,
                "" if error is None else f": {error_text(error)}",
                exc_info=error is not None and (type(error), error, error.__traceback__),
                extra=self._fields(job, text, seconds),
            )
        try:
            self.progress(self.report)
        except BaseException:
            _log.exception("%s: the progress callback failed", job.source.name)

    def _count(self, job: HeldJob, outcome: str) -> tuple[str, float]:
        """Count an attempt that has ended; return its outcome and its duration in seconds."""
        seconds = time.perf_counter() - job.began
        if job.was_cancelled and outcome != "lost":
            outcome = "cancelled"
        job.source.telemetry.count(job.job_name, outcome, seconds)
        return outcome, seconds

    def _fields(self, job: HeldJob, outcome: str, seconds: float) -> dict[str, Any]:
        """Return the fields of the log record of an attempt that has ended."""
        return {
            "queue": job.source.name,
            "job": job.call and job.call.name,
            "id": job.item.id,
            "attempt": job.claim.attempt,
            "outcome": outcome,
            "seconds": seconds,
        }


def _decided(job: HeldJob, failure: BaseException) -> tuple[Outcome | None, BaseException]:
    """Return what follows a failure, and the error that the attempt keeps."""
    decide: Callable[[Any], Outcome | None] = outcome_of if job.call is None else job.call.outcome
    outcome = None
    try:
        run: Any = partial(job.variables.copy().run, decide, failure)
        outcome = in_this_process(job.job_name, run)
    except BaseException as error:  # raised by a class of outcomes
        failure = error
    for each in (outcome, failure):
        if isinstance(each, (Outcome, HandlerExited)) and each.__cause__ is not None:
            return outcome, each.__cause__
    return outcome, failure


def _give_back(db: Database, job: HeldJob, outcome: Outcome | None, error: BaseException) -> None:
    """Give back a job whose attempt failed, in the way that its outcome says."""
    queue, store, claim, log = job.source.queue, job.source.store, job.claim, job.report.log
    reason = "" if outcome is None or outcome is error else outcome.reason
    if isinstance(outcome, Snooze):
        queue.release(db, claim, delay=outcome.after)
    elif isinstance(outcome, BatchCancelled):
        end_cancelled(queue, db, claim, log)
    elif isinstance(outcome, Discard):
        text = str(outcome) if outcome is error else error_text(error, str(outcome))
        queue.ack(db, claim, discarded=text, log=log)
    elif isinstance(outcome, Spent):
        store.change(db, partial(store.claimed.bury, claim=claim))
    else:
        delay = outcome.after if isinstance(outcome, RetryIn) else None
        is_dead = isinstance(outcome, Dead)
        store.nack(db, claim, delay, error, is_dead, log, reason)


def _release_all(
    source: Source,
    db: Database,
    claims: Sequence[Claim],
    release: Callable[[Transaction, Claim], object],
) -> list[Exception | None]:
    """Release claims in one transaction, or one by one if a lease is over.

    Returns:
        For each claim `None`, or the error with which it could not be released.
    """

    def body(tr: Transaction) -> None:
        for claim in claims:
            release(tr, claim)

    try:
        change_once(source.queue, db, body)
    except LeaseLost as error:
        if len(claims) == 1:
            return [error]
        return [_release_all(source, db, [claim], release)[0] for claim in claims]
    except Exception as error:
        return [error] * len(claims)
    return [None] * len(claims)
