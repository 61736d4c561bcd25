"""How a job runs: call its handler, in a transaction or not, and report the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fdbqueue.database.binding import engine_of
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import run
from fdbqueue.errors import LeaseLost, error_text
from fdbqueue.layout.batches import may_be_member
from fdbqueue.layout.values import NOW
from fdbqueue.queue.arguments import validate_result
from fdbqueue.queue.batches import was_cancelled
from fdbqueue.queue.steps import JobCancelled, Suspended
from fdbqueue.types import Transaction
from fdbqueue.worker.context import Context
from fdbqueue.worker.functions.guards import InThisProcess
from fdbqueue.worker.invocation import Invocation
from fdbqueue.worker.outcomes import Dead, HandlerExited
from fdbqueue.worker.pool import HeldJob, Part
from fdbqueue.worker.telemetry import Log, span

if TYPE_CHECKING:
    from fdbqueue.worker.endings import Endings

_T = TypeVar("_T")

_TURN = 0.05  # seconds to wait for the end of another transaction on the embedded engine

_log = Log("fdbqueue.worker")


class _Stopped(Exception):
    """The worker was stopped, or the handler was too late."""


@dataclass(eq=False)
class Running(Part):
    """Runs the jobs of a worker."""

    endings: Endings
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self, job: HeldJob) -> None:
        """Run one job and report its end."""
        try:
            if self.shutdown.stop.is_set:
                self.endings.release([job])
            else:
                self._run(job)
        except BaseException as error:
            self.pool.let_go(job)
            self.shutdown.fail(error)

    def _run(self, job: HeldJob) -> None:
        job.began, job.thread = time.perf_counter(), threading.get_ident()
        context = job.context = Context(
            job.lease, job.source.store.options.max_attempts, self.handler.results
        )
        try:
            is_acknowledged = self._call(job, context)
        except LeaseLost:
            if not job.is_given_up:
                self.endings.lost(job)
        except Suspended as suspended:
            self.endings.end(job, "suspended", suspended)
        except _Stopped:
            if job.is_given_up:
                _log.info("%s %s: it returned after its time was over", job.source.name, job.name)
            else:
                self.endings.interrupted([job])
        except (Exception, JobCancelled) as failure:
            if context.is_suspended:  # an error has replaced what told its function so
                text = "%s %s raised an error when it was suspended, and goes on all the same: %s"
                _log.warning(text, job.source.name, job.name, error_text(failure), exc_info=True)
                self.endings.end(job, "suspended", failure)
            else:
                self.endings.failed(job, failure)
        else:
            job.seconds = time.perf_counter() - job.began
            if is_acknowledged and not job.unconfirmed:
                self.endings.end(job, "done")
            else:
                self.endings.acknowledge(job)

    def _call(self, job: HeldJob, context: Context) -> bool:
        """Call the handler; return whether its transaction has acknowledged the job."""
        source = job.source
        if job.lease.seconds_left() < 0:
            # This process may have been stopped for a while: make sure the claim still holds.
            context.extend()
        if was_cancelled(source.queue, self.db, job.item):
            raise JobCancelled
        call = job.call = self.handler.call(context)
        if job.is_lone:
            source.store.extend(self.db, job.lease.extension, alone=NOW)
        with span(source.name, context.item.id, context.attempt, call.name, call.pushed):
            handle = partial(self._call_handler, job, context, call)
            if call.in_transaction:
                self._end_with(job, handle)
                return True
            job.returned = self._guarded(job, handle)
            if context.is_suspended:  # and its function has caught what told it so
                raise Suspended(call.name)
            if context.has_learned:
                raise JobCancelled
            if not context.endings:
                return False

            def end(tr: Transaction) -> bytes | None:
                for ending in context.endings:
                    ending(tr)
                return job.returned

            self._end_with(job, end)
            return True

    def _call_handler(
        self, job: HeldJob, context: Context, call: Invocation, *tr: Transaction
    ) -> bytes | None:
        endings = context.endings if tr else []  # which middleware may add

        def run() -> bytes | None:
            returned = None  # if middleware forgives an error
            with call.around():
                try:
                    returned = self._encoded(job, call, self.handler.run(call, job, *tr))
                except futures.CancelledError:
                    if job.late is None:
                        raise
                    raise job.late from None
            for ending in endings:
                ending(*tr)
            return returned

        endings.clear()
        job.variables = copy_context()
        return job.variables.run(run)

    def _encoded(self, job: HeldJob, call: Invocation, returned: object) -> bytes | None:
        source = job.source
        is_kept = source.stores_results and source.store.options.keeps_done
        if not (is_kept or may_be_member(job.item)):
            return None
        try:
            return validate_result(call.encode(returned))
        except Exception as error:
            raise Dead(str(error)) from error  # another attempt would repeat the work in vain

    def _end_with(self, job: HeldJob, call: Callable[[Transaction], bytes | None]) -> None:
        store = job.source.store

        def body(tr: Transaction) -> None:
            end_with = store.ack_first(tr, job.claim, job.lease.report.log)
            end_with(self._tried(job, partial(call, tr)))

        if not engine_of(self.db).commits_are_certain:
            run_once(self.db, body, store.layout.receipts)
            return
        # Threads that compete for Python's lock take longer than threads that take turns.
        has_turn = self._turn.acquire(timeout=_TURN)
        try:
            run(self.db, body, unconfirmed=job.unconfirmed)
        finally:
            if has_turn:
                self._turn.release()

    def _tried(self, job: HeldJob, function: Callable[[], _T]) -> _T:
        """Call a function of the program as part of a try, if the grace period is not over."""
        if job.late is not None and job.seconds_told >= self.shutdown.grace:
            raise job.late
        is_body = job.call is not None and job.call.in_transaction
        if self.shutdown.seconds_left <= 0 or (
            is_body and job.is_retry and self.shutdown.stop.is_set
        ):
            raise _Stopped
        with job.trying():
            return self._guarded(job, function)

    def _guarded(self, job: HeldJob, function: Callable[[], _T]) -> _T:
        """Call a function of the program; raise `_Stopped` if the worker has given up on it."""
        job.thread = threading.get_ident()
        job.is_ending = False
        try:
            with InThisProcess(job.job_name):
                return function()
        except (Exception, Suspended, JobCancelled):
            raise
        except BaseException as error:
            raise HandlerExited(error) from error
        finally:
            with self.pool.changed:
                job.is_ending = True
            if job.is_given_up:
                raise _Stopped
