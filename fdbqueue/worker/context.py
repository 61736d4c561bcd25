"""The context of an attempt: facts and calls for a running handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent import futures
from contextvars import copy_context
from datetime import datetime, timedelta
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, cast

from fdbqueue.database.binding import Guard
from fdbqueue.database.clock import milliseconds
from fdbqueue.layout.values import NO_REPORT, header_of_item, utc_time
from fdbqueue.queue.arguments import validate_log, validate_report
from fdbqueue.queue.steps import HeldLease
from fdbqueue.types import Progress, Transaction
from fdbqueue.worker.functions.steps import AioSteps, Results, Steps

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    _State_co = TypeVar("_State_co", covariant=True, default=object)
else:
    from typing import TypeVar

    _State_co = TypeVar("_State_co", covariant=True)

_P = ParamSpec("_P")

_guard = Guard()  # of all contexts, because most jobs never need one

Reason: TypeAlias = Literal["cancelled", "timeout", "shutdown", "lost"]

Ending = Callable[[Transaction], object]


class Cancelled:
    """An event that tells a job to stop. A coroutine can await it.

    Attributes:
        reason: `"cancelled"`, `"timeout"`, `"shutdown"` or `"lost"`; `None` until it is set.
    """

    def __init__(self) -> None:
        self._told: futures.Future[None] = futures.Future()
        self._told.set_running_or_notify_cancel()  # so that nobody who awaits it can cancel it
        self.reason: Reason | None = None

    def is_set(self) -> bool:
        """Return whether the job should stop."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for some seconds; return whether it is."""
        futures.wait([self._told], timeout)
        return self.is_set()

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self._told).__await__()

    def set(self, reason: Reason) -> None:
        """Wake all waiters. A shutdown does not replace an earlier reason."""
        with _guard:
            if self.reason is None or reason != "shutdown":
                self.reason = reason
            if not self._told.done():
                self._told.set_result(None)


class Context(Steps, Generic[_State_co]):
    """An attempt at a job, for a handler whose first parameter is annotated `Context`.

    `step`, `commit`, `sleep`, `wait`, `run` and `gather` are steps: the result of each is stored
    before the call returns. After a crash, or when a suspended job goes on, the job's function runs
    again from the top, and done steps return their stored results. A suspended job holds no worker,
    and no attempt counts.

    - The name of a step is unique within the job. In a loop, include the loop's key:
      `context.step(f"charge {order}", ...)`.
    - To suspend a job, a step raises `Suspended`, which is a `BaseException`.
    - A job has up to 10,000 steps, which are deleted with its item.

    Cost: see `docs/reference/costs.md`.

    Attributes:
        job: The name of a declared job; empty for any other.
        state: The value that `App.lifespan` has yielded, of the type in `Context[State]`.
        tick: The tick of the schedule that pushed the job, or `None`.
        attempt: The number of the attempt, from 1.
        max_attempts: The number of attempts after which the job becomes a dead letter, or `None`.
        cancelled: An event that tells the handler to end soon: `is_set()`, `wait(seconds)`, or
            `await` it. Its `reason` is `"cancelled"`, `"timeout"`, `"shutdown"`, or `"lost"` if the
            lease is over: the job may run elsewhere, and the end of this attempt has no effect. A
            cancelled job without steps does not run again, however the handler ends; a step raises
            `JobCancelled`. Otherwise the job is done if the handler returns; after a shutdown, an
            error gives it back without counting the attempt.
    """

    def __init__(
        self,
        lease: HeldLease,
        max_attempts: int | None,
        results: Callable[[str, Callable[..., Any]], Results] = Results,
    ) -> None:
        self.item: Any = lease.claim.item
        self.job = ""
        self.state: _State_co = cast("Any", None)
        self.tick: datetime | None = getattr(self.item, "tick", None)  # a task has none
        self.attempt = lease.claim.attempt
        self.max_attempts = max_attempts
        self.cancelled = Cancelled()
        self._header = header_of_item(self.item)
        if self._header.cancelled is not None:  # in an earlier attempt, or while it waited
            self.cancelled.set("cancelled")
        self._lease = lease
        self.endings: list[Ending] = []
        super().__init__(lease.steps(self.cancelled.is_set), results)

    def __repr__(self) -> str:
        return f"<Context of {self.item!r}, attempt {self.attempt}>"

    @property
    def lease_ends(self) -> datetime:
        """When the lease ends, unless it is extended."""
        return utc_time(milliseconds()) + timedelta(seconds=self._lease.seconds_left())

    @property
    def is_suspended(self) -> bool:
        """True once the job has given up its claim."""
        return self._claimed.is_suspended

    @property
    def has_steps(self) -> bool:
        """True once the job has come to a step, in any attempt."""
        return self._header.has_begun or bool(self._claimed.names)

    @property
    def has_learned(self) -> bool:
        """True once a step has raised `JobCancelled`."""
        return self._claimed.has_raised

    @property
    def aio(self) -> AioSteps:
        """The same steps for a coroutine, to be awaited."""
        return AioSteps(self)

    def limit_attempts(self, attempts: int | None) -> None:
        """Lower the number of attempts to that of the job's own policy."""
        if attempts is not None and (self.max_attempts is None or attempts < self.max_attempts):
            self.max_attempts = attempts

    def extend(self) -> None:
        """Restart the lease, to make sure that the job is still this worker's.

        Call this before an effect outside of the database that must not come from two workers.
        Cost: one transaction.

        Raises:
            LeaseLost: Another worker may have the job.
        """
        self._lease.extend()

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the work is, for `ItemInfo.progress`.

        The worker stores the report within about a second, unless the job ends sooner.

        `fraction` is the part that is done, from 0 to 1; 1,000 characters of `message` are kept.
        """
        with _guard:
            progress = Progress(fraction, message)
            self._lease.report = (
                validate_report(progress, self._lease.report.log, milliseconds()) or NO_REPORT
            )

    def log(self, message: str) -> None:
        """Add a line to the log of the attempt, with the time.

        Its last 8,000 bytes are stored with `progress`, and kept as `log` of the failed attempt or
        of the done item.
        """
        if not isinstance(message, str):
            raise TypeError(f"a line of the log is text, not {message!r}")
        time = utc_time(milliseconds()).strftime("%H:%M:%S.%f")[:-3]
        with _guard:
            log = validate_log(f"{self._lease.report.log}{time} {message}\n")
            self._lease.report = self._lease.report._replace(log=log)

    def at_end(
        self,
        function: Callable[Concatenate[Transaction, _P], object],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> None:
        """Call `function(tr, ...)` in the transaction that ends the job.

        The function's writes, its pushes and the end of the job take effect together, exactly once,
        or not at all if the job fails, learns that it is cancelled, or its lease was lost. The
        function is as for `commit`, and sees the context variables of this call. Several functions
        run in the order of the calls.

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
