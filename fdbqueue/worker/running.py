"""How a job runs: its handler is called, in a transaction or not, and its end is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fdbqueue.database.exactly_once import Pausing, commits_overlap, run_once_with_pauses
from fdbqueue.errors import LeaseLost, error_text
from fdbqueue.layout.batches import may_be_member
from fdbqueue.queue.arguments import validate_result
from fdbqueue.queue.batches import was_cancelled
from fdbqueue.queue.steps import ClaimedSteps
from fdbqueue.types import Database, Transaction
from fdbqueue.worker.context import Context
from fdbqueue.worker.handler import Handler, Invocation, in_this_process
from fdbqueue.worker.held import Held, HeldJob
from fdbqueue.worker.outcomes import BatchCancelled, Dead, Suspended
from fdbqueue.worker.pool import UNKNOWN, Pool
from fdbqueue.worker.steps.errors import HandlerExited
from fdbqueue.worker.telemetry import Log

if TYPE_CHECKING:
    from fdbqueue.worker.endings import Endings
    from fdbqueue.worker.shutdown import Shutdown
    from fdbqueue.worker.turns import Pace

_T = TypeVar("_T")

_InSpan: TypeAlias = Callable[[], object]

_log = Log("fdbqueue.worker")


class _Stopped(Exception):
    """The worker was stopped and does not retry its transaction."""


class _GivenUp(Exception):
    """The worker has ended the attempt without its handler, which returned too late."""


@dataclass(eq=False)
class Running:
    """Runs the jobs of a worker.

    Args:
        db: The database.
        handler: The handler.
        held: The jobs that the worker holds.
        endings: Ends the jobs.
        shutdown: Says when to stop.
        lease: The length of a lease in seconds.
        pace: Learns how long jobs take that are done.
        pool: Learns how long jobs keep its threads busy.
    """

    db: Database
    handler: Handler
    held: Held
    endings: Endings
    shutdown: Shutdown
    lease: float
    pace: Pace
    pool: Pool[HeldJob]
    _variables: Variables = field(default_factory=copy_context)

    def begin(self) -> None:
        """Take over the context variables of the caller, for the jobs."""
        self._variables = copy_context()

    def run(self, job: HeldJob) -> Pausing[None]:
        """Run one job and report its end, whatever happens."""
        try:
            if self.shutdown.stop.is_set:
                self.endings.release([job])
            else:
                yield from self._run(job)
        except BaseException as error:
            self.held.let_go(job)
            self.shutdown.fail(error)

    def _run(self, job: HeldJob) -> Pausing[None]:
        job.began, job.thread = time.perf_counter(), threading.get_ident()
        context = job.context = self._context(job)
        try:
            end = yield from self._called(job, context)
        except LeaseLost:
            if not job.is_given_up:
                self.endings.lost(job)
        except Suspended as suspended:
            self.endings.suspended(job, suspended)
        except _Stopped:
            if not job.is_given_up:
                self.endings.interrupted([job])
        except _GivenUp:
            _log.info("%s %s: it returned after its time was over", job.source.name, job.name)
        except Exception as failure:
            if context.is_suspended:  # an error has replaced what told its function so
                text = "%s %s raised an error when it was suspended, and goes on all the same: %s"
                _log.warning(text, job.source.name, job.name, error_text(failure), exc_info=True)
                self.endings.suspended(job, failure)
            else:
                self.pool.note(UNKNOWN)
                self.endings.failed(job, failure)
        else:
            self.pace.note(time.perf_counter() - job.began)
            end()

    def _context(self, job: HeldJob) -> Context:
        store = job.source.store
        return Context(
            job.claim,
            store.options.max_attempts,
            job.lease.seconds_left,
            partial(job.lease.extend, store, self.db),
            partial(ClaimedSteps, store, self.db, job.claim, self.lease),
            self.handler.results,
        )

    def _called(self, job: HeldJob, context: Context) -> Pausing[Callable[[], None]]:
        """Call the handler; return what ends the job."""
        source, done = job.source, partial(self.endings.done, job)
        if job.lease.seconds_left() < 0:
            # This process may have been stopped for a while: make sure the claim still holds.
            context.extend()
        if was_cancelled(source.queue, self.db, job.item):
            raise BatchCancelled
        call = job.call = self.handler.call(context)
        if job.is_lone:
            source.store.begin_alone(self.db, job.claim, self.lease)
        with source.telemetry.span(
            context.item.id, context.attempt, call.name, call.pushed
        ) as in_span:
            if call.in_transaction:
                yield from self._end_with(job, partial(self._call_handler, job, call, in_span))
                return done
            if self.pool.overlap:
                self.pool.note(UNKNOWN)
            returned = self._call_handler(job, call, in_span)
            if context.is_suspended:  # and its function has caught what told it so
                raise Suspended(call.name)
            if not context.endings:
                return partial(self.endings.acknowledge, job, returned)
            end = partial(self._call_endings, job, context.endings, returned)
            yield from self._end_with(job, end)
            return done

    def _call_handler(
        self, job: HeldJob, call: Invocation, in_span: _InSpan, *tr: Transaction
    ) -> bytes | None:
        """Call the handler in a fresh copy of the worker's context variables."""
        if tr and job.is_retry and self.shutdown.stop.is_set:
            raise _Stopped
        job.variables = self._variables.copy()
        run: Any = partial(job.variables.run, self._in_variables, job, call, in_span, *tr)
        returned: bytes | None = self._guarded(job, run, in_transaction=call.in_transaction)
        return returned

    def _in_variables(
        self, job: HeldJob, call: Invocation, in_span: _InSpan, *tr: Transaction
    ) -> bytes | None:
        returned = None
        endings = job.context.endings if tr and job.context else []  # which middleware may add
        endings.clear()
        in_span()
        with call.around():
            try:
                ran = self.handler.run(call, *tr, observer=job)
                returned = self._encoded(job, call, ran)
            except futures.CancelledError:
                if job.late is None:
                    raise
                raise job.late from None
        for ending in endings:
            ending(*tr)
        return returned

    def _encoded(self, job: HeldJob, call: Invocation, returned: object) -> bytes | None:
        if not (job.source.stores_results or may_be_member(job.item)):
            return None
        try:
            return validate_result(call.encode(returned))
        except Exception as error:
            raise Dead(str(error)) from error  # another attempt would repeat the work in vain

    def _call_endings(
        self,
        job: HeldJob,
        endings: list[Callable[[Transaction], object]],
        returned: bytes | None,
        tr: Transaction,
    ) -> bytes | None:
        """Call what the handler gave to `at_end`."""

        def call() -> None:
            for ending in endings:
                ending(tr)

        self._guarded(job, call, in_transaction=True)
        return returned

    def _end_with(self, job: HeldJob, call: Callable[[Transaction], bytes | None]) -> Pausing[None]:
        """Acknowledge a job in one transaction with what a function writes."""
        store = job.source.store

        def body(tr: Transaction) -> None:
            if job.is_retry:
                self.pool.note(UNKNOWN)  # the thread has waited before it
            end_with = store.begin_ack(tr, job.claim, job.report.log)()
            returned = call(tr)
            if commits_overlap(self.db):
                self.pool.note(job.seconds)
            end_with(returned)

        return run_once_with_pauses(self.db, body, store.layout.receipts)

    def _guarded(self, job: HeldJob, function: Callable[[], _T], *, in_transaction: bool) -> _T:
        """Call a function of the program, perhaps as part of a try of a transaction.

        A transaction may be tried any number of times, so no try begins once the grace period of
        the job, or that of the worker, is over.

        Raises:
            HandlerTooSlow: It took too long in the try before.
            _GivenUp: The worker has given up on it.
        """
        if in_transaction:
            if job.late is not None and job.seconds_told >= self.shutdown.grace:
                raise job.late
            if self.shutdown.seconds_left <= 0:
                raise _Stopped
            job.begin_try()
        job.thread = threading.get_ident()
        job.is_ending = False
        try:
            return in_this_process(job.job_name, function)
        except (Exception, Suspended):
            raise
        except BaseException as error:
            raise HandlerExited(error) from error
        finally:
            if in_transaction:
                job.end_try()
            with self.held.changed:
                job.is_ending = True
            if job.is_given_up:
                raise _GivenUp
