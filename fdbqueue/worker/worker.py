"""The worker, which claims jobs, runs a handler on each and acknowledges them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import closing
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once_with_pauses
from fdbqueue.errors import (
    FdbqueueError,
    HandlerTooSlow,
    LeaseLost,
    TimedOut,
    error_classes,
    error_text,
)
from fdbqueue.layout.batches import may_be_member
from fdbqueue.queue.arguments import (
    validate_agent,
    validate_client_name,
    validate_lease,
    validate_number,
    validate_result,
    validate_seconds,
    validate_timeout,
)
from fdbqueue.queue.base import BaseQueue, wait_to_claim
from fdbqueue.queue.steps import ClaimedSteps
from fdbqueue.types import Database, Duration, Transaction
from fdbqueue.worker.claiming import Claiming, Release, process
from fdbqueue.worker.context import Context
from fdbqueue.worker.endings import (
    Ends,
    WorkerReport,
    end_together,
    give_back,
    no_progress,
    release_all,
)
from fdbqueue.worker.handler import (
    AnyHandler,
    Call,
    Claimable,
    FunctionHandler,
    Handler,
    in_this_process,
    outcome_of,
)
from fdbqueue.worker.health import serving_health, trouble_of_database
from fdbqueue.worker.held import HeldJob
from fdbqueue.worker.leases import Leases
from fdbqueue.worker.outcomes import (
    BatchCancelled,
    Dead,
    Discard,
    Outcome,
    Snooze,
    Suspended,
)
from fdbqueue.worker.presence import Presence
from fdbqueue.worker.signals import stopping_on_signals
from fdbqueue.worker.slots import Share, Slots
from fdbqueue.worker.steps.errors import HandlerExited
from fdbqueue.worker.telemetry import Log, Telemetry
from fdbqueue.worker.threads import Background, Pausing, stack_of

_T = TypeVar("_T")

_InSpan: TypeAlias = Callable[[], object]

_log = Log("fdbqueue.worker")

_PAUSE = 1.0  # seconds after an error of the database
_AGAIN = 0.1  # seconds between looks at the last jobs of a worker that shuts down
_RETRY = 0.01  # seconds for which a retry holds up the thread, about


class _Stopped(Exception):
    """The worker was stopped and does not retry its transaction."""


class _GivenUp(Exception):
    """The worker has ended the attempt without its handler, which returned too late."""


class Worker(Claiming):
    """A worker, which runs a handler on the jobs of a queue until it is stopped.

    Quick jobs are claimed ahead, so that no thread waits for the database: as many jobs as run in a
    twentieth of a second, and none while jobs take longer than that on average. A job that has
    waited for that long goes back, unless it is about to begin: another worker can take it, and its
    attempt does not count.
    Leases are extended while this process lives. If a handler returns, its job is acknowledged,
    together with others. If it raises an exception, the job has failed: it is retried later or
    becomes a dead letter (`nack`). Neither a failing job nor an unreachable database stops a
    worker.

    A handler is a function or coroutine function with one parameter, the item (the task, for a task
    queue). Its jobs may be repeated after a crash: they run at least once.

    A handler whose first parameter is named `tr` is the body of a transaction. Its writes and the
    end of the job are one transaction and take effect exactly once, however often the job is
    started. The body may run several times and must finish within five seconds; a slower one has
    failed. The job is acknowledged before the body runs, so the body can push an item with the same
    unique key. One thread runs all these handlers while they take less than 0.2 milliseconds: while
    the database commits one job, it continues with others.

    `stop`, SIGTERM or SIGINT shut the worker down: jobs that have not started return at once, and
    running ones find `Context.cancelled` set. Those that raise an error from then on, or still run
    after `grace`, return without counting an attempt. A second signal ends the process immediately.
    A worker's death costs every job it held one attempt, started or not. So jobs that were returned
    before, or have a single attempt, are not claimed ahead. A worker that has met a rate claims no
    job ahead, because each claim counts as a start until the job goes back.

    A job whose lease ran out, because its worker died or was stopped, runs alone in its process the
    next time: if it kills its worker again, no other job loses an attempt. The workers of the
    process claim nothing until it ends. While other jobs run, it goes back so that an idle worker
    can take it, and the process waits for them to end, at first for a second. If they take longer,
    the process goes on with other jobs, and tries again after twice that time, for twice as long.

    Args:
        db: A database.
        queue: A `PriorityQueue`, `TaskQueue` or `Queue`.
        handler: The function to call for each job.
        concurrency: The number of jobs that are under way at a time, from 1, as a rule each in a
            thread.
        lease: Seconds until other workers may take over the jobs of a worker that died.
        prefetch: The maximum number of jobs to claim ahead while jobs are quick; 0 for none.
        agent: Take only the tasks of this agent; `None` for all. Only for a task queue.
        store_results: Store what the handler returns, a JSON value of up to 90,000 bytes, with each
            done item; `result` of the queue returns it. If the handler returns anything else, the
            job becomes a dead letter at once. Needs a queue that keeps done items
            (`configure(db, keep=...)`).
        name: The name that `workers` and the claims of this queue object show; `None` for the host
            and the process id. Printable text of up to 255 bytes.
        timeout: The time after which a job is told to stop: a coroutine is cancelled, a function
            finds `Context.cancelled` set. `None` for no limit. A handler with `tr` has five
            seconds.
        grace: The time after which a job that was told to stop, and goes on, has failed: the
            attempt keeps its stack, and another thread does the next job. Python cannot end the
            thread that hangs. After `stop`, the time that running jobs have to end.

    Raises:
        TypeError: An argument has the wrong type, or the handler cannot be called for a job.
        ValueError: `concurrency`, `lease` or `prefetch` is out of range.

    Example:
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
        db: Database,
        queue: Claimable[_T],
        handler: AnyHandler[_T] | Handler,
        *,
        concurrency: int = 1,
        lease: Duration = 30,
        prefetch: int = 100,
        agent: str | None = None,
        store_results: bool = False,
        name: str | None = None,
        timeout: Duration | None = None,
        grace: Duration = 10,
    ) -> None:
        if not isinstance(queue, BaseQueue):
            raise TypeError(f"a worker needs a queue, not {queue!r}")
        if not is_database(db):
            raise TypeError(f"a worker needs a database, not {db!r}")
        self._queue: BaseQueue[Any] = queue
        super().__init__(
            db,
            self._queue,
            handler if isinstance(handler, Handler) else FunctionHandler(handler),
            validate_number(concurrency, "concurrency", 1),
            validate_lease(lease),
            validate_number(prefetch, "prefetch", 0),
            store_results,
        )
        self._timeout = None if timeout is None else validate_timeout(timeout)
        self._grace = validate_seconds("grace", grace)
        if agent is not None:
            if self._store.given_options.kind != "task":
                raise TypeError("only a task queue has agents")
            self._options["agent"] = validate_agent(agent)
        self._name = self._store.layout.name or repr(self._queue.subspace.key())
        self._telemetry = Telemetry(self._name)
        self._ends = Ends(self._name, self._lease, self._telemetry)
        self._presence = Presence(name, self._name, self._concurrency, self._lease)
        if name is not None:
            self._options["client"] = validate_client_name(name)
        self._share: Share | None = None
        self._variables = copy_context()
        self._is_claiming = False
        self._leases = Leases(db, self._queue, self._lease, self._presence, self._all_held)
        self._stopped_at = math.inf  # the time of `stop`
        self._n_hung = 0
        self._background = Background(self._fail)
        self.report = self._ends.report

    def stop(self) -> None:
        """Start no other jobs, and give the running ones the grace period to end.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> worker = Worker(db, fdbqueue.PriorityQueue.named(db, "jobs"), print)
        >>> worker.stop()
        >>> worker.run()
        WorkerReport(done=0, failed=0, lost=0)
        """
        self._stopped_at = min(self._stopped_at, time.monotonic())
        self._stop.set()

    def run(
        self,
        *,
        drain: bool = False,
        progress: Callable[[WorkerReport], object] = no_progress,
        health: int | str | None = None,
    ) -> WorkerReport:
        """Run jobs until `stop` is called.

        In the main thread, SIGTERM and SIGINT stop the worker.

        Args:
            drain: Whether to stop also once no job can be claimed and none is running.
            progress: Called with the report after each job. Its errors are logged.
            health: The port, of the loopback interface, or the text `"HOST:PORT"`, on which to
                answer `/live` and, while the worker claims jobs and the database answers, `/ready`.

        Returns:
            The numbers of jobs that succeeded, failed, or lost their lease.

        Raises:
            OSError: The process cannot listen on the address of `health`.
        """
        self._ends.progress, self._drains = progress, drain
        self._variables = copy_context()
        self._threads.errors.clear()
        with (
            serving_health(health, partial(trouble_of, self)),
            process.joined(self._member),
            closing(self._handler),
            stopping_on_signals(self.stop, "claimed jobs", lambda: len(self._held)),
            self._leases.kept(self._end_late, self._fail),
            self._background,
        ):
            try:
                with self._threads:
                    try:
                        self._feed()
                    except BaseException:
                        self.stop()
                        raise
                    finally:
                        self._leases.woken.set()
                        self._release(self._threads.withdraw())
            finally:
                with self._ended:
                    self._ended.wait_for(lambda: not self._held)
        if self._threads.errors:  # since the end of the threads
            raise self._threads.errors[0]
        return self.report

    def _fail(self, error: BaseException) -> None:
        """Stop the worker because of an error, which `run` raises."""
        self._threads.errors.append(error)
        self.stop()

    def _feed(self) -> None:
        """Claim jobs while there is room for more."""
        errors: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
        sleep = partial(wait_to_claim, self._queue, self._db)
        goes_on = True
        while goes_on and not self._stop.is_set:
            self._is_claiming = True
            try:
                if self._share is None:
                    goes_on = self._feed_alone()
                else:
                    goes_on = self._share.feed(self._stop, partial(self._claim, 0), sleep)
            except errors as error:
                self._is_claiming = False
                _log.error("%s: cannot claim jobs: %s", self._name, error)
                self._stop.wait(_PAUSE)
        self._is_claiming = False

    def _run_job(self, job: HeldJob) -> Pausing:
        """Run one job and report its end, whatever happens."""
        try:
            yield from self._do(job)
        except BaseException as error:
            with self._ended:
                self._let_go(job)
            self._fail(error)

    def _do(self, job: HeldJob) -> Pausing:
        if self._stop.is_set:
            self._release([job])
            return
        claim = job.claim
        context = job.context = self._context(job)
        job.began = time.perf_counter()
        job.thread = threading.get_ident()
        try:
            if job.lease.seconds_left() < 0:
                # This process may have been stopped for a while: make sure the claim still holds.
                self._leases.extend(job.lease, job.report)
            call = job.call = self._handler.call(context)
            if job.is_lone:
                self._store.begin_alone(self._db, claim, self._lease)
            with self._telemetry.span(
                context.item.id, claim.attempt, call.name, call.pushed
            ) as in_span:
                if call.in_transaction:
                    returned = None
                    yield from self._run_in_transaction(job, call, in_span)
                else:
                    returned = self._run_handler(job, call, in_span)
                    if context.is_suspended:  # and its function has caught what told it so
                        raise Suspended(call.name)
                    if context.endings:
                        run = partial(self._called, job, in_transaction=True)
                        end_together(self._queue, self._db, job, returned, run)
        except LeaseLost:
            if not job.is_given_up:
                self._end(job, "lost")
        except Suspended as suspended:
            self._end_uncounted(job, "suspended", suspended)
        except _Stopped:
            if not job.is_given_up:
                self._release([job], self._queue.release)
        except _GivenUp:
            _log.info("%s %s: it returned after its time was over", self._name, job.name)
        except Exception as failure:
            if context.is_suspended:  # an error has replaced what told its function so
                text = "%s %s raised an error when it was suspended, and goes on all the same: %s"
                _log.warning(text, self._name, job.name, error_text(failure), exc_info=True)
                self._end_uncounted(job, "suspended", failure)
            else:
                self._fail_attempt(job, failure)
        else:
            self._note_seconds(time.perf_counter() - job.began)
            if call.in_transaction or context.endings:
                self._end(job, "done")
            else:
                request = self._store.ack_request(claim, returned, log=job.report.log)
                acknowledged = partial(self._acknowledged, job)
                self._store.acks.submit(self._db, request, self._background.call, acknowledged)

    def _run_handler(self, job: HeldJob, call: Call, in_span: _InSpan, *tr: Any) -> bytes | None:
        """Run a handler in a fresh copy of the worker's context variables."""
        job.variables = self._variables.copy()
        run: Any = partial(job.variables.run, self._call_handler, job, call, in_span, *tr)
        returned: bytes | None = self._called(job, run, in_transaction=call.in_transaction)
        return returned

    def _call_handler(self, job: HeldJob, call: Call, in_span: _InSpan, *tr: Any) -> bytes | None:
        returned = None
        endings = job.context.endings if tr and job.context else []  # which middleware may add
        endings.clear()
        in_span()
        with call.around():
            try:
                ran = self._handler.run(call, *tr, observer=job)
                returned = self._encoded(call, job.item, ran)
            except futures.CancelledError:
                if job.late is None:
                    raise
                raise job.late from None
        for ending in endings:
            ending(*tr)
        return returned

    def _called(self, job: HeldJob, function: Callable[[], _T], in_transaction: bool) -> _T:
        """Call a function of the program, perhaps as part of a try of a transaction.

        A transaction may be tried any number of times, so no try begins once the grace period of
        the job, or that of the worker, is over.

        Raises:
            HandlerTooSlow: It took too long in the try before.
            _GivenUp: The worker has given up on it.
        """
        if in_transaction:
            if job.late is not None and time.perf_counter() - job.told_at >= self._grace:
                raise job.late
            if time.monotonic() - self._stopped_at >= self._grace:
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
            with self._guard:
                job.is_ending = True
            if job.is_given_up:
                raise _GivenUp

    def _all_held(self) -> list[HeldJob]:
        with self._guard:
            return list(self._held)

    def _end_late(self) -> float:
        """Stop the jobs whose time is over; return the seconds until that of the next one."""
        left = math.inf
        for job in self._all_held():
            if job.call is None:
                continue
            over, late = job.lateness(job.call.timeout or self._timeout)
            if over >= 0:
                over = job.tell(late)  # perhaps late: this process may have been stopped
            if over >= self._grace:
                self._give_up(job, late)
            else:
                left = min(left, -over if over < 0 else self._grace - over)
        return min(left, self._shut_down())

    def _shut_down(self) -> float:
        """Tell the running jobs that the worker shuts down; in the end give them back.

        Returns:
            The seconds until the next look.
        """
        left = self._stopped_at + self._grace - time.monotonic()
        if self._stopped_at == math.inf:
            return left
        begun = [job for job in self._all_held() if job.tell_shutdown()]
        if left > 0:
            return left
        for job in begun:
            if job.late is not None:  # its own time is over, too
                self._give_up(job, job.late)
        interrupted = [job for job in begun if job.late is None]
        if late := [job for job in interrupted if self._takes_from_handler(job)]:
            for job in late:
                _log.warning("%s %s goes back: it still runs", self._name, job.name)
            self._release(late, self._queue.release)
            self._threads.abandon()
        return _AGAIN

    def _takes_from_handler(self, job: HeldJob) -> bool:
        """Give up on the handler of a job; return false if it has just returned."""
        with self._guard:
            self._n_hung += (is_hanging := job.give_up())
        return is_hanging

    def _give_up(self, job: HeldJob, late: TimedOut | HandlerTooSlow) -> None:
        """End an attempt without its handler, which hangs, and go on without its thread."""
        if not self._takes_from_handler(job):
            return
        failure = late.with_traceback(stack_of(job.loop_thread or job.thread))
        self._threads.replace(job.thread)
        self._fail_attempt(job, failure)

    def _context(self, job: HeldJob) -> Context:
        return Context(
            job.claim,
            self._store.options.max_attempts,
            job.lease.seconds_left,
            partial(self._leases.extend, job.lease),
            partial(ClaimedSteps, self._store, self._db, job.claim, self._lease),
            self._handler.results,
        )

    def _acknowledged(self, job: HeldJob, outcome: Callable[[], LeaseLost | None]) -> None:
        """Report the end of a job whose acknowledgement is over."""
        lost = error = None
        try:
            lost = outcome()
        except Exception as failure:  # of the database: another worker may repeat the job
            error = failure
        try:
            self._end(job, "failed" if error else "lost" if lost else "done", error)
        except BaseException as failure:  # others share the acknowledgement
            self._fail(failure)

    def _encoded(self, call: Call, item: Any, returned: object) -> bytes | None:
        if not (self._stores_results or may_be_member(item)):
            return None
        try:
            return validate_result(call.encode(returned))
        except Exception as error:
            raise Dead(str(error)) from error  # another attempt would repeat the work in vain

    def _run_in_transaction(self, job: HeldJob, call: Call, in_span: _InSpan) -> Pausing:
        """Run the handler in a transaction that also acknowledges the job."""
        note = self._threads.note
        is_retry = False

        def body(tr: Transaction) -> Pausing:
            nonlocal is_retry
            if is_retry and self._stop.is_set:
                raise _Stopped
            if is_retry:
                note(_RETRY)
            is_retry = True
            ack = self._store.begin_ack(tr, job.claim)
            yield
            end_with = ack()
            try:
                returned = self._run_handler(job, call, in_span, tr)
            finally:
                note(job.seconds)
            end_with(returned)

        return run_once_with_pauses(self._db, body, self._store.layout.receipts)

    def _end(
        self, job: HeldJob, outcome: str, error: BaseException | None = None, text: str = ""
    ) -> None:
        """Count and log a job that ended, and tell the caller of `run`."""
        with self._ended:
            setattr(self.report, outcome, getattr(self.report, outcome) + 1)
            self._let_go(job)
        self._ends.note(job, outcome, error, text or outcome)

    def _fail_attempt(self, job: HeldJob, failure: BaseException) -> None:
        """End an attempt whose handler has raised an error or an outcome."""
        if self._handler.is_orphan:  # which another thread may notice only later
            self.stop()
        is_late = job.late is not None
        if self._stopped_at < math.inf and not is_late and not isinstance(failure, Outcome):
            _log.warning("%s %s goes back: %s", self._name, job.name, error_text(failure))
            self._release([job], self._queue.release)
            return
        began = time.monotonic()
        outcome, kept = _decided(job, failure)
        try:
            give_back(self._queue, self._db, job, outcome, kept)
        except Exception as error:
            # The lease will expire, so the job is retried anyway.
            _log.error("%s %s: cannot be returned: %s", self._name, job.name, error)
        self._threads.note(time.monotonic() - began)
        if isinstance(outcome, Snooze):
            self._end_uncounted(job, "snoozed", outcome)
        elif isinstance(outcome, Discard):
            text = "cancelled" if isinstance(outcome, BatchCancelled) else "discarded"
            self._end(job, "done", text=text)
        else:
            most = self._store.options.max_attempts
            is_dead = isinstance(outcome, Dead) or (most is not None and job.claim.attempt >= most)
            self._end(job, "failed", kept, "dead" if is_dead else "")

    def _end_uncounted(self, job: HeldJob, outcome: str, why: BaseException) -> None:
        """Log a job that goes on later, and whose attempt does not count."""
        fields = self._ends.fields(job, *self._ends.count(job, outcome))
        _log.info("%s %s: %s", self._name, job.name, why, extra=fields)
        with self._ended:
            self._let_go(job)

    def _release(self, jobs: list[HeldJob], release: Release | None = None) -> None:
        """Release jobs whose attempt does not count; by default jobs that have not begun."""
        if not jobs:
            return
        claims, give_back = [job.claim for job in jobs], release
        if give_back is None:
            give_back = partial(self._unclaim, milliseconds())
        errors = release_all(self._queue, self._db, claims, give_back)
        with self._ended:
            for job in jobs:
                self._let_go(job)
        for job, error in zip(jobs, errors):
            if error is not None:
                _log.error("%s %s: cannot be returned: %s", self._name, job.name, error)

    def _let_go(self, job: HeldJob) -> None:
        """Hold a job no longer. The caller has the lock."""
        if self._share is None:
            self._held.pop(job, None)
        else:
            with self._share.freeing():
                self._held.pop(job, None)
        if not self._held or self._room():
            self._ended.notify()
        process.note()


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


def held_jobs(worker: Worker) -> int:
    """Return the number of jobs that a worker has claimed."""
    return len(worker._held)


def hung_jobs(worker: Worker) -> int:
    """Return the number of jobs that hung, and perhaps still keep a thread busy."""
    return worker._n_hung


def finish(worker: Worker) -> None:
    """Let the running jobs of a worker end, however long that takes, and start no others."""
    worker._stop.set()


def share_slots(worker: Worker, slots: Slots, weight: float) -> None:
    """Let a worker, which does not run yet, share slots with others."""
    worker._presence.concurrency = slots.n
    worker._share = Share(slots, partial(held_jobs, worker), worker._concurrency, weight)


def trouble_of(worker: Worker) -> str | None:
    """Return why a worker cannot claim jobs; `None` if it can."""
    if worker._stop.is_set:
        return "the worker is about to stop"
    if not worker._is_claiming:
        return f"the worker cannot claim jobs from {worker._name}, or does not yet"
    return trouble_of_database(worker._db)
