"""The context of an attempt: facts and calls for a handler that runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, Concatenate, ParamSpec

from fdbqueue.types import Claim, Transaction

_P = ParamSpec("_P")

Ending = Callable[[Transaction], object]
"""A function that runs in the transaction that ends a job."""


class Cancelled:
    """An event that tells a job to stop. Only the worker sets it; a coroutine can await it.

    >>> cancelled = Cancelled()
    >>> cancelled.is_set(), cancelled.wait(0.001)
    (False, False)
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._guard = threading.Lock()
        self._waiting: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """Return whether the job should stop."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job should stop, or for some seconds; return whether it should."""
        return self._event.wait(timeout)

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

    def set(self) -> None:
        """Wake all that wait."""
        with self._guard:
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class Context:
    """An attempt at a job, for a handler whose first parameter is annotated `Context`.

    Attributes:
        item: The item of the job.
        attempt: The number of the attempt, from 1.
        max_attempts: The number of attempts after which the job becomes a dead letter; `None` for
            any number.
        cancelled: An event that tells the handler to end soon, because the job was cancelled or its
            time is over: `is_set()`, `wait(seconds)`, or `await` it. A cancelled job does not run
            again, however the handler ends; one whose time is over is done if it returns.

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
    ) -> None:
        self.item: Any = claim.item
        self.attempt = claim.attempt
        self.max_attempts = max_attempts
        self.cancelled = Cancelled()
        self._seconds_left = seconds_left
        self._extend = extend
        self._endings: list[Ending] = []

    def __repr__(self) -> str:
        return f"<Context of {self.item!r}, attempt {self.attempt}>"

    @property
    def lease_ends(self) -> datetime:
        """The time at which the lease ends unless the worker extends it, which it does by itself.

        By the clock of this process.
        """
        return datetime.now(timezone.utc) + timedelta(seconds=self._seconds_left())

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
