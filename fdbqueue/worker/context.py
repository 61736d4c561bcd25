"""The context of an attempt: facts and calls for a handler that runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import cached_property
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, overload

from fdbqueue.database.clock import milliseconds
from fdbqueue.database.guard import Guard
from fdbqueue.layout.values import NO_REPORT, Report, utc_time
from fdbqueue.queue.arguments import validate_log, validate_report
from fdbqueue.queue.steps import ClaimedSteps, Signal
from fdbqueue.types import Claim, Duration, Progress, Transaction
from fdbqueue.worker.steps.children import Child, ChildJob, first_error_or, gathered
from fdbqueue.worker.steps.errors import ChildFailed
from fdbqueue.worker.steps.plans import (
    AioSteps,
    JsonResults,
    Plans,
    Policy,
    Results,
    StepOptions,
    Stepper,
    drive,
    options_of,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_guard = Guard()  # of all contexts, because most jobs never need one

Reason: TypeAlias = Literal["cancelled", "timeout", "shutdown"]
"""Why a job should stop: it was cancelled, its time is over, or its worker shuts down."""

Ending = Callable[[Transaction], object]
"""A function that runs in the transaction that ends a job."""


class Cancelled:
    """An event that tells a job to stop. Only the worker sets it; a coroutine can await it.

    Attributes:
        reason: Why: `"cancelled"`, `"timeout"` or `"shutdown"`; `None` until it is set.

    >>> cancelled = Cancelled()
    >>> cancelled.is_set(), cancelled.wait(0.001)
    (False, False)
    """

    def __init__(self) -> None:
        self._event: threading.Event | None = None  # most jobs never wait for it
        self._waiting: list[Callable[[], object]] = []
        self.reason: Reason | None = None

    def is_set(self) -> bool:
        """Return whether the job should stop."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job should stop, or for some seconds; return whether it should."""
        with _guard:
            if self._event is None:
                self._event = threading.Event()
                self._waiting.append(self._event.set)
        return self.is_set() or self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(resolve)

        with _guard:
            self._waiting.append(wake)
        if self.is_set():
            wake()
        yield from future.__await__()

    def set(self, reason: Reason) -> None:
        """Wake all that wait. A shutdown is no new reason for a job that should stop already."""
        with _guard:
            if self.reason is None or reason != "shutdown":
                self.reason = reason
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class Context:
    """An attempt at a job, for a handler whose first parameter is annotated `Context`.

    A step is done once: its result is stored under the claim of the job, before the call returns.
    If the process dies, or the job sleeps or waits, the function of the job runs again from the
    top, and steps that are done return what they have stored. So a job takes days, survives its
    processes, and holds no worker while it waits. Code between steps runs again each time.

    - The name of a step is unique within the job. A step in a loop has the key of the loop in its
      name: `context.step(f"charge {order}", ...)`.
    - A worker that has lost its claim stores no step: the call raises `LeaseLost`.
    - To suspend a job, its worker raises `Suspended`, which is a `BaseException`.
    - A job has up to 10,000 steps. They are deleted with its item.

    In a coroutine, await the same methods of `aio`. The class has all attributes of the context of
    a `Worker`, and more.

    Cost: a transaction for each step that is not done, with two reads and four writes; before it,
    another one reads whether the step is done, unless all stored steps of the job have been read.

    Attributes:
        item: The item of the job.
        job: The name of the job that an app declares; an empty text for any other one.
        tick: The tick of the schedule that has pushed the job; `None` for any other job.
        attempt: The number of the attempt, from 1.
        max_attempts: The number of attempts after which the job becomes a dead letter; `None` for
            any number.
        cancelled: An event that tells the handler to end soon, because the job was cancelled, its
            time is over, or the worker shuts down: `is_set()`, `wait(seconds)`, or `await` it;
            `reason` says which of these. A cancelled job does not run again, however the handler
            ends. In the other two cases it is done if the handler returns; after a shutdown, any
            error gives it back without counting the attempt.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> def work(context: Context):
        ...     print(context.item.value, context.attempt)
        >>> fdbqueue.Worker(db, jobs, work).run(drain=True)
        send 1
        WorkerReport(done=1, failed=0, lost=0)
    """

    def __init__(
        self,
        claim: Claim[Any],
        max_attempts: int | None,
        seconds_left: Callable[[], float],
        extend: Callable[[Report], None],
        begin_steps: Callable[[Callable[[], Report]], ClaimedSteps],
        results: Callable[[str, Callable[..., Any]], Results] = JsonResults,
    ) -> None:
        self.item: Any = claim.item
        self.job = ""
        self.tick: datetime | None = getattr(self.item, "tick", None)  # a task has none
        self.attempt = claim.attempt
        self.max_attempts = max_attempts
        self.cancelled = Cancelled()
        self._seconds_left = seconds_left
        self._extend = extend
        self._begin_steps, self._results = begin_steps, results
        self.endings: list[Ending] = []
        """The functions that `at_end` was given, in their order."""
        self._report = NO_REPORT

    def __repr__(self) -> str:
        return f"<Context of {self.item!r}, attempt {self.attempt}>"

    @property
    def lease_ends(self) -> datetime:
        """The time at which the lease ends unless the worker extends it, which it does by itself.

        By the clock of this process.
        """
        return utc_time(milliseconds()) + timedelta(seconds=self._seconds_left())

    @property
    def is_suspended(self) -> bool:
        """True once the job has given up its claim, to go on later."""
        return "_plans" in self.__dict__ and self._plans.is_suspended

    @cached_property
    def _plans(self) -> Plans:  # most jobs have no steps
        return Plans(self._begin_steps(lambda: self._report), self.item.id, self._results)

    @cached_property
    def aio(self) -> AioSteps:
        """The steps of a coroutine."""
        return AioSteps(self._plans, StepOptions())

    def limit_attempts(self, attempts: int | None) -> None:
        """Lower the number of attempts to that of the job's own policy."""
        if attempts is not None and (self.max_attempts is None or attempts < self.max_attempts):
            self.max_attempts = attempts

    def extend(self) -> None:
        """Make sure that the job is still this worker's, and restart its lease.

        A worker extends the leases of its jobs by itself. Call this before an effect outside of the
        database that must not come from two workers. Cost: one transaction.

        Raises:
            LeaseLost: Another worker may have the job.
        """
        self._extend(self.report)

    @property
    def report(self) -> Report:
        """The progress and the log so far."""
        return self._report

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the work is, to show it: `get` and `search` return it as `progress`.

        The worker stores it within about a second, together with what its other jobs have said, and
        extends the lease. So a job that ends sooner stores nothing, and the call returns at once.

        Args:
            fraction: The part that is done, from 0 to 1.
            message: What happens at present, as text; its first 1,000 characters are kept.
        """
        with _guard:
            progress = Progress(fraction, message)
            self._report = validate_report(progress, self._report.log, milliseconds()) or NO_REPORT

    def log(self, message: str) -> None:
        """Add a line to the log of the attempt, with the time.

        The log is stored with `progress`, and kept with the attempt when it ends: as `log` of the
        failed attempt, or of the done item in a queue that keeps some. It has 8,000 bytes; earlier
        lines make room for later ones.

        Args:
            message: The text of the line.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", keep=100)
            >>> item = jobs.push(db, ["a", "b"])
            >>> def work(context: Context):
            ...     for number, page in enumerate(context.item.value):
            ...         context.progress(number / 2, page)
            ...         context.log(f"page {page} is done")
            >>> _ = fdbqueue.Worker(db, jobs, work).run(drain=True)
            >>> [line.partition(" ")[2] for line in jobs.get(db, item).log.splitlines()]
            ['page a is done', 'page b is done']
        """
        if not isinstance(message, str):
            raise TypeError(f"a line of the log is text, not {message!r}")
        time = utc_time(milliseconds()).strftime("%H:%M:%S.%f")[:-3]
        with _guard:
            log = validate_log(f"{self._report.log}{time} {message}\n")
            self._report = self._report._replace(log=log)

    def at_end(
        self,
        function: Callable[Concatenate[Transaction, _P], object],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> None:
        """Call `function(tr, ...)` in the transaction that ends the job.

        So the job may take hours, and its writes, its follow-ups and its end are one transaction,
        which takes effect exactly once; if the lease was lost meanwhile, none of them does. The
        transaction may run several times, so the function must not sleep, commit or create
        identities, and must end within five seconds. If it takes longer, the attempt fails with
        `HandlerTooSlow`. It does not run if the job fails. It sees the context variables of the
        caller of this method.

        Args:
            function: The function. Functions run in the order in which they were given.
            args: Its arguments after the transaction.
            kwargs: Its keyword arguments.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
            >>> _ = jobs.push(db, "build")
            >>> def work(context: Context):
            ...     if context.item.value == "build":
            ...         context.at_end(jobs.push, "publish")
            >>> fdbqueue.Worker(db, jobs, work).run(drain=True)
            WorkerReport(done=2, failed=0, lost=0)
        """
        variables = copy_context()

        def ending(tr: Transaction) -> None:
            kind: Any = type(variables.copy().run(function, tr, *args, **kwargs))
            if issubclass(kind, (CoroutineType, GeneratorType, AsyncGeneratorType)):
                raise TypeError(
                    f"at_end needs a plain function: {function!r} returned a "
                    f"{kind.__name__}, whose code has not run"
                )

        self.endings.append(ending)

    def step(
        self, name: str, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a function, unless the step is done; return its result.

        The function runs at least once, and not again once its result is stored. The result is
        converted to JSON and back by the return annotation of the function, also the first time.

        If the function raises an exception, the call raises `StepFailed`. A job that catches it and
        goes on finds the same failure if it runs again; if the attempt fails, the next one tries
        the step again. The outcomes `Snooze`, `RetryIn`, `Discard` and `Dead` end the attempt.

        Args:
            name: The name of the step, text of 1 to 255 bytes.
            function: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            DuplicateStep: The job has come to another step of this name.
            StepFailed: The function has raised an exception.
            Dead: The result does not fit the annotation, is not JSON, or has more than 90,000
                bytes.
            TooManySteps: The job has 10,000 steps.
            LeaseLost: Another worker may have the job.
        """
        return Stepper(self._plans, StepOptions()).step(name, function, *args, **kwargs)

    def commit(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, _P], _R],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Run `function(tr, ...)` in the transaction that stores the step; return its result.

        What the function writes takes effect exactly once: data, pushes and signals. The
        transaction may run several times, so the function must not sleep, commit or create
        identities, and must end within five seconds. Errors and result are those of `step`.

        Args:
            name: The name of the step.
            function: The function.
            args: Its arguments after the transaction.
            kwargs: Its keyword arguments.
        """
        return Stepper(self._plans, StepOptions()).commit(name, function, *args, **kwargs)

    def run(self, name: str, job: ChildJob[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Push another job, suspend this one until that has ended, and return its result.

        The other job is pushed in the transaction that stores the step, and its result is stored in
        the step by the transaction that ends it. It may be in the same queue: no worker is held.
        Its attempts, delays and time-outs are its own. If this job is cancelled, it runs all the
        same.

        Args:
            name: The name of the step.
            job: The job, or what its `using` returned, without a transaction.
            args: The arguments of its function, by position.
            kwargs: The arguments of its function, by name.

        Raises:
            ChildFailed: The other job has died, was discarded or cancelled, or has expired.
            ChildNotPushed: An unfinished job has its unique key.
            InvalidArguments: The function does not take these arguments.
            QueueFull: Its queue is full.

        Example:
            >>> from fdbqueue.jobs import App, Context
            >>> app = App("memory:")
            >>> @app.job(name="square")
            ... def square(number: int) -> int:
            ...     return number * number
            >>> @app.job(name="sum")
            ... def sum_of_squares(context: Context, numbers: list[int]) -> int:
            ...     one = context.run("one", square, 1)
            ...     return one + sum(context.gather("squares", map(square.bind, numbers)))
            >>> handle = sum_of_squares.push([2, 3])
            >>> _ = app.work(drain=True)
            >>> handle.result()
            14
        """
        results = drive(self._plans.run({name: job.bind(*args, **kwargs)}))
        result: _R = first_error_or(results)[0]
        return result

    @overload
    def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[False] = False
    ) -> list[_R]: ...

    @overload
    def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[True]
    ) -> list[_R | ChildFailed]: ...

    def gather(
        self, name: str, jobs: Iterable[Child[Any]], *, return_errors: bool = False
    ) -> list[Any]:
        """Run other jobs at the same time, as `run`; return their results in the order of the jobs.

        The steps have the names `f"{name} 0"`, `f"{name} 1"`, and so on.

        Args:
            name: The beginning of the names of the steps.
            jobs: Up to 1,000 jobs with arguments, each of them a `Job.bind`.
            return_errors: True to return errors together with the results.

        Raises:
            ChildFailed: One of the jobs has failed; it is raised once all have ended.
        """
        results = drive(self._plans.run(gathered(name, jobs)))
        return results if return_errors else first_error_or(results)

    def using(self, *, retry: Policy | None = None, timeout: Duration | None = None) -> Stepper:
        """Return a way to run steps with options.

        Args:
            retry: When to try a step again after an error. The job is suspended meanwhile: no
                worker is held, and no attempt of the job is counted.
            timeout: The time after which a step has failed with `TimedOut`. A coroutine is
                cancelled. A function goes on in a thread of its own, because Python cannot end it.

        Example:
            >>> from fdbqueue.jobs import App, Context, Retry
            >>> app = App("memory:")
            >>> @app.job(name="pay")
            ... def pay(context: Context) -> int:
            ...     careful = context.using(retry=Retry(attempts=5, first="10s"), timeout="30s")
            ...     return careful.step("charge", lambda: 42)
            >>> handle = pay.push()
            >>> _ = app.work(drain=True)
            >>> handle.result()
            42
        """
        return Stepper(self._plans, options_of(retry, timeout))

    def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the job for a time: no worker is held, and no attempt is counted.

        Args:
            name: The name of the step.
            duration: How long the job sleeps at least, from the first time that it comes here.
        """
        drive(self._plans.sleep(name, duration))

    def wait(
        self,
        name: str,
        *,
        signal: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Signal:
        """Suspend the job until a signal comes: no worker is held, and no attempt is counted.

        A signal that was sent before counts as well, while it is kept. The wait ends either with
        a signal or with the time-out, whichever is committed first, and remains so.

        Args:
            name: The name of the step, and of the signal unless `signal` is given.
            signal: The name of the signal.
            key: The key of the signal; by default the id of the job.
            timeout: How long to wait at most; `None` for no limit.

        Raises:
            WaitTimedOut: No signal has come in time.
        """
        return drive(self._plans.wait(name, signal, key, timeout))
