"""The ends of jobs: how they are counted and logged, and how what was not done goes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue.errors import LeaseLost, error_text
from fdbqueue.queue.base import BaseQueue, change_once, end_cancelled, store_of
from fdbqueue.types import Claim, Database, Transaction
from fdbqueue.worker.held import HeldJob
from fdbqueue.worker.outcomes import (
    BatchCancelled,
    Dead,
    Discard,
    Outcome,
    RetryIn,
    Snooze,
    Spent,
)
from fdbqueue.worker.telemetry import Log, Telemetry

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


class Ends:
    """The ends of the jobs of one worker.

    Args:
        queue: The name of the queue.
        lease: The length of a lease in seconds.
        telemetry: Counts the ends, too.

    Attributes:
        report: Their numbers.
        progress: Called with the report after each job.
    """

    def __init__(self, queue: str, lease: float, telemetry: Telemetry) -> None:
        self._queue = queue
        self._lease = lease
        self._telemetry = telemetry
        self.report = WorkerReport()
        self.progress: Callable[[WorkerReport], object] = no_progress

    def count(self, job: HeldJob, outcome: str) -> tuple[str, float]:
        """Count an attempt that has ended, and return its outcome and its duration in seconds."""
        seconds = time.perf_counter() - job.began
        if job.was_cancelled and outcome != "lost":
            outcome = "cancelled"
        self._telemetry.count(job.call.name if job.call else "", outcome, seconds)
        return outcome, seconds

    def fields(self, job: HeldJob, outcome: str, seconds: float) -> dict[str, Any]:
        """Return the fields of the log record of an attempt that has ended."""
        return {
            "queue": self._queue,
            "job": job.call and job.call.name,
            "id": job.item.id,
            "attempt": job.claim.attempt,
            "outcome": outcome,
            "seconds": seconds,
        }

    def note(
        self,
        job: HeldJob,
        outcome: str,
        error: BaseException | None,
        text: str,
    ) -> None:
        """Log a job that ended, and tell the caller of `run`.

        Args:
            job: The job.
            outcome: `"done"`, `"failed"` or `"lost"`.
            error: Why it failed, if it did.
            text: The outcome in the log and the metrics; `"dead"` for a failure that is the last.
        """
        text, seconds = self.count(job, text)
        level = logging.INFO if text == "cancelled" else _LEVELS.get(outcome, logging.INFO)
        if _log.logger.isEnabledFor(level):  # few programs log the jobs that are done
            _log.log(
                level,
                "%s %s %s, attempt %d, %.1f ms%s",
                self._queue,
                job.name,
                text,
                job.claim.attempt,
                1000 * seconds,
                "" if error is None else f": {error_text(error)}",
                exc_info=error is not None and (type(error), error, error.__traceback__),
                extra=self.fields(job, text, seconds),
            )
        is_last = text == "dead"
        if is_last or outcome == "lost":
            advice = _LAST if is_last else _LOST.format(lease=self._lease)
            _log.warning("%s %s: %s", self._queue, job.name, advice)
        try:
            self.progress(self.report)
        except BaseException:
            _log.exception("%s: the progress callback failed", self._queue)

    def warn_about_results(self) -> None:
        """Log that the queue keeps no results of the jobs that end."""
        _log.warning(
            "%s keeps no done items, so the results of jobs cannot be stored; use "
            "configure(db, keep=...), or `fdbq limit --keep-last`, and start the worker again",
            self._queue,
        )


def end_together(
    queue: BaseQueue[Any],
    db: Database,
    job: HeldJob,
    returned: bytes | None,
    run: Callable[[Callable[[], None]], None],
) -> None:
    """Acknowledge a job in one transaction with what its handler gave to `at_end`.

    Args:
        queue: The queue.
        db: The database.
        job: The job.
        returned: The stored form of what the handler has returned.
        run: Calls a function as part of one try of the transaction.
    """
    store = store_of(queue)
    endings = () if job.context is None else tuple(job.context.endings)

    def body(tr: Transaction) -> None:
        end_with = store.begin_ack(tr, job.claim, job.report.log)()

        def end() -> None:
            for ending in endings:
                ending(tr)

        run(end)
        end_with(returned)

    change_once(queue, db, body)


def give_back(
    queue: BaseQueue[Any], db: Database, job: HeldJob, outcome: Outcome | None, error: BaseException
) -> None:
    """Give back a job whose attempt failed, in the way that its outcome says."""
    claim, log = job.claim, job.report.log
    reason = "" if outcome is None or outcome is error else outcome.reason
    if isinstance(outcome, Snooze):
        queue.release(db, claim, delay=outcome.after)
    elif isinstance(outcome, BatchCancelled):
        end_cancelled(queue, db, claim, log)
    elif isinstance(outcome, Discard):
        text = str(outcome) if outcome is error else error_text(error, str(outcome))
        queue.ack(db, claim, discarded=text, log=log)
    elif isinstance(outcome, Spent):
        store = store_of(queue)
        store.change(db, partial(store.leases.bury, claim=claim))
    else:
        delay = outcome.after if isinstance(outcome, RetryIn) else None
        is_dead = isinstance(outcome, Dead)
        store_of(queue).nack(db, claim, delay, error, is_dead, log, reason)


def release_all(
    queue: BaseQueue[Any],
    db: Database,
    claims: Sequence[Claim],
    release: Callable[[Transaction, Claim], object],
) -> list[Exception | None]:
    """Release claims with `release`: in one transaction, or one by one if a lease is over.

    Returns:
        For each claim `None`, or the error with which it could not be released.
    """

    def body(tr: Transaction) -> None:
        for claim in claims:
            release(tr, claim)

    try:
        change_once(queue, db, body)
    except LeaseLost as error:
        if len(claims) == 1:
            return [error]
        return [release_all(queue, db, [claim], release)[0] for claim in claims]
    except Exception as error:
        return [error] * len(claims)
    return [None] * len(claims)
