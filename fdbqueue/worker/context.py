"""The context of an attempt: facts and calls for a handler that runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias

from fdbqueue.database.clock import milliseconds
from fdbqueue.layout.values import NO_REPORT, Report, utc_time
from fdbqueue.queue.arguments import validate_log, validate_report
from fdbqueue.queue.steps import ClaimedSteps
from fdbqueue.types import Claim, Progress, Transaction

_P = ParamSpec("_P")

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
        self._guard = threading.Lock()
        self._event: threading.Event | None = None  # most jobs never wait for it
        self._waiting: list[Callable[[], object]] = []
        self.reason: Reason | None = None

    def is_set(self) -> bool:
        """Return whether the job should stop."""
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job should stop, or for some seconds; return whether it should."""
        with self._guard:
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

        with self._guard:
            self._waiting.append(wake)
        if self.is_set():
            wake()
        yield from future.__await__()

    def set(self, reason: Reason) -> None:
        """Wake all that wait. A shutdown is no new reason for a job that should stop already."""
        with self._guard:
            if self.reason is None or reason != "shutdown":
                self.reason = reason
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class Context:
    """An attempt at a job, for a handler whose first parameter is annotated `Context`.

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
        extend: Callable[[], None],
        begin_steps: Callable[[Callable[[], Report]], ClaimedSteps],
    ) -> None:
        self.item: Any = claim.item
        self.job = ""
        self.tick: datetime | None = getattr(claim.item, "tick", None)  # a task has none
        self.attempt = claim.attempt
        self.max_attempts = max_attempts
        self.cancelled = Cancelled()
        self._seconds_left = seconds_left
        self._extend = extend
        self._begin_steps = begin_steps
        self._endings: list[Ending] = []
        self._guard = threading.Lock()
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
        return False

    @property
    def endings(self) -> list[Ending]:
        """The functions that `at_end` was given, in their order."""
        return self._endings

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
        self._extend()

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
        with self._guard:
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
        with self._guard:
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
        identities, and must end within five seconds. It does not run if the job fails.

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

        def ending(tr: Transaction) -> object:
            return function(tr, *args, **kwargs)

        self._endings.append(ending)
