"""The ends of jobs: counting, logging, and giving back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fdbqueue.errors import LeaseLost, error_classes, error_text
from fdbqueue.queue.base import end_cancelled
from fdbqueue.queue.steps import JobCancelled
from fdbqueue.types import Transaction
from fdbqueue.worker.functions.guards import InThisProcess
from fdbqueue.worker.invocation import outcome_of
from fdbqueue.worker.outcomes import (
    Dead,
    Discard,
    HandlerExited,
    Outcome,
    RetryIn,
    Snooze,
    Spent,
)
from fdbqueue.worker.pool import HeldJob, Part, by_source
from fdbqueue.worker.telemetry import Log, count

if TYPE_CHECKING:
    from fdbqueue.worker.claiming import Source

Release: TypeAlias = Callable[[Transaction, int, HeldJob], object]

_log = Log("fdbqueue.worker")

_OUTCOMES = {
    **dict.fromkeys(("done", "discarded", "cancelled"), ("done", logging.INFO)),
    **dict.fromkeys(("failed", "dead"), ("failed", logging.ERROR)),
    **dict.fromkeys(("snoozed", "suspended"), ("", logging.INFO)),
    "lost": ("lost", logging.WARNING),
}
"""The field of the report that counts each outcome, and the level of its log record."""

_DECIDED = (Outcome, JobCancelled)

_MAX_TOGETHER = 200  # jobs that one transaction acknowledges

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
    """The numbers of jobs of a worker that succeeded, failed, or lost their lease."""

    done: int = 0
    failed: int = 0
    lost: int = 0


def unclaim(
    tr: Transaction, now: int, job: HeldJob, *, delay: int = 0, has_begun: bool = False
) -> None:
    """Give back a job, by default as if never claimed; `delay` is in milliseconds."""
    due = now + delay if delay else None
    claimed = job.source.store.claimed
    if not has_begun:
        claimed.take_back_starts(tr, now, job.claim)
        claimed.take_back_turns(tr, job.claim)
    claimed.release(tr, now, job.claim, due)


@dataclass(eq=False)
class Endings(Part):
    """Ends jobs in the database, the report and the log."""

    report: WorkerReport = field(default_factory=WorkerReport)
    _returned: list[HeldJob] = field(default_factory=list[HeldJob])
    _wanted: threading.Condition = field(default_factory=threading.Condition)
    _is_over: bool = False

    @contextmanager
    def acknowledging(self) -> Generator[None]:
        """Acknowledge jobs in a thread until the end of a `with` block."""
        self._is_over = False
        thread = threading.Thread(target=self._acknowledge_all)
        thread.start()
        try:
            yield
        finally:
            with self._wanted:
                self._is_over = True
                self._wanted.notify()
            thread.join()

    def acknowledge(self, job: HeldJob) -> None:
        """Acknowledge a job later, with others, or confirm its commit."""
        with self._wanted:
            self._returned.append(job)
            self._wanted.notify()

    def _acknowledge_all(self) -> None:
        while True:
            with self._wanted:
                while not (self._returned or self._is_over):
                    self._wanted.wait()
                jobs = self._returned[:_MAX_TOGETHER]
                del self._returned[:_MAX_TOGETHER]
            if not jobs:
                return
            try:
                self._confirm([job for job in jobs if job.unconfirmed])
                returned = [job for job in jobs if not job.unconfirmed]
                for source, some in by_source(returned).items():
                    self._acknowledge(source, some)
            except BaseException as error:
                for job in jobs:
                    self.pool.let_go(job)
                self.shutdown.fail(error)

    def _confirm(self, jobs: list[HeldJob]) -> None:
        """End jobs that a commit has acknowledged, once it is on disk."""
        for job in jobs:
            try:
                for commit in job.unconfirmed:
                    commit.wait()  # one sync covers all commits before it
            except Exception as error:  # the job may run again
                self.end(job, "failed", error)
            else:
                self.end(job, "done")

    def _acknowledge(self, source: Source, jobs: list[HeldJob]) -> None:
        request = source.store.ack_request
        requests = [request(job.claim, job.returned, log=job.lease.report.log) for job in jobs]
        try:
            losses = source.store.ack_each(self.db, requests)
        except Exception as error:
            if len(jobs) > 1 and not isinstance(error, error_classes()):
                for job in jobs:  # nothing took effect, and the error is that of one of them
                    self._acknowledge(source, [job])
                return
            for job in jobs:  # which another worker may repeat
                self.end(job, "failed", error)
            return
        for job, lost in zip(jobs, losses):
            if lost is None:
                self.end(job, "done")
            else:
                self.lost(job)

    def lost(self, job: HeldJob, error: BaseException | None = None) -> None:
        """End an attempt whose lease ran out."""
        self.end(job, "lost", error)
        advice = _LOST.format(lease=job.lease.seconds)
        _log.warning("%s %s: %s", job.source.name, job.name, advice)

    def failed(self, job: HeldJob, failure: BaseException) -> None:
        """End an attempt whose handler raised an error or an outcome."""
        if self.handler.coroutines.is_orphan:  # which another thread may notice only later
            self.shutdown.begin()
        is_late = job.late is not None
        if self.shutdown.has_begun and not is_late and not isinstance(failure, _DECIDED):
            self.interrupted([job], error_text(failure))
            return
        text, give_back, kept = self._decided(job, failure)
        try:
            give_back()
        except LeaseLost:
            self.lost(job, kept)
            return
        except Exception as error:
            # The lease will expire, so the job is retried anyway.
            _log.error("%s %s: cannot be returned: %s", job.source.name, job.name, error)
        self.end(job, text, kept)
        if text == "dead" and not job.was_cancelled:
            _log.warning("%s %s: %s", job.source.name, job.name, _LAST)

    def _decided(
        self, job: HeldJob, failure: BaseException
    ) -> tuple[str, Callable[[], object], BaseException]:
        """Return the outcome of a failed attempt, a call that gives back its job, and its error."""
        queue, store, claim, log = (
            job.source.queue,
            job.source.store,
            job.claim,
            job.lease.report.log,
        )
        if isinstance(failure, JobCancelled):
            return "cancelled", partial(end_cancelled, queue, self.db, claim, log), failure
        outcome, error = _outcome_of(job, failure)
        if isinstance(outcome, Snooze):
            return "snoozed", partial(queue.release, self.db, claim, delay=outcome.after), error
        if isinstance(outcome, Discard):
            text = str(outcome) if outcome is error else error_text(error, str(outcome))
            return "discarded", partial(queue.ack, self.db, claim, discarded=text, log=log), error
        if isinstance(outcome, Spent):
            bury = partial(store.claimed.bury, claim=claim)
            return "dead", partial(store.change, self.db, bury), error
        is_dead, most = isinstance(outcome, Dead), store.options.max_attempts
        delay = outcome.after if isinstance(outcome, RetryIn) else None
        reason = "" if outcome is None or outcome is error else outcome.reason
        nack = partial(store.nack, self.db, claim, delay, error, is_dead, log, reason)
        is_last = is_dead or (most is not None and claim.attempt >= most)
        return "dead" if is_last else "failed", nack, error

    def interrupted(self, jobs: list[HeldJob], why: str | None = "") -> None:
        """Give back interrupted jobs."""
        for job in jobs if why else ():
            _log.warning("%s %s goes back: %s", job.source.name, job.name, why)
        self.release(jobs, partial(unclaim, has_begun=True))

    def release(self, jobs: list[HeldJob], release: Release = unclaim) -> None:
        """Give back jobs without counting an attempt."""
        for source, some in by_source(jobs).items():
            self._release(source, some, release)

    def _release(self, source: Source, jobs: Sequence[HeldJob], release: Release) -> None:

        def body(tr: Transaction, now: int) -> None:
            for job in jobs:
                release(tr, now, job)

        try:
            source.store.change(self.db, body)
        except Exception as error:
            if isinstance(error, LeaseLost) and len(jobs) > 1:
                for job in jobs:
                    self._release(source, [job], release)
                return
            for job in jobs:
                _log.error("%s %s: cannot be returned: %s", source.name, job.name, error)
        for job in jobs:
            self.pool.let_go(job)

    def end(self, job: HeldJob, outcome: str, error: BaseException | None = None) -> None:
        """Count and log the end of an attempt."""
        counted, level = _OUTCOMES[outcome]
        self.pool.let_go(job)
        if counted:
            with self.pool.changed:
                setattr(self.report, counted, getattr(self.report, counted) + 1)
        if job.was_cancelled and outcome != "lost":
            outcome, level = "cancelled", logging.INFO
        seconds = time.perf_counter() - job.began
        count(job.source.name, job.job_name, outcome, seconds)
        if _log.logger.isEnabledFor(level):  # few programs log the jobs that are done
            fields = {
                "queue": job.source.name,
                "job": job.call and job.call.name,
                "id": job.item.id,
                "attempt": job.claim.attempt,
                "outcome": outcome,
                "seconds": seconds,
            }
            raised = error is not None and (type(error), error, error.__traceback__)
            _log.log(
                level,
                "%s %s %s, attempt %d, %.1f ms%s",
                job.source.name,
                job.name,
                outcome,
                job.claim.attempt,
                1000 * seconds,
                "" if error is None else f": {error_text(error)}",
                exc_info=None if level < logging.ERROR else raised,
                extra=fields,
            )
        self.shutdown.note(self.report)


def _outcome_of(job: HeldJob, failure: BaseException) -> tuple[Outcome | None, BaseException]:
    decide: Callable[[Any], Outcome | None] = outcome_of if job.call is None else job.call.outcome
    outcome = None
    try:
        with InThisProcess(job.job_name):
            outcome = job.variables.copy().run(decide, failure)
    except BaseException as error:  # raised by a class of outcomes
        failure = error
    for each in (outcome, failure):
        if isinstance(each, (Outcome, HandlerExited)) and each.__cause__ is not None:
            return outcome, each.__cause__
    return outcome, failure
