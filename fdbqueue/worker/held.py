"""A job that a worker holds: its claim, and what is known of its attempt."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.database.clock import Since
from fdbqueue.errors import HandlerTooSlow, TimedOut
from fdbqueue.layout.values import NO_REPORT, Report
from fdbqueue.types import Claim
from fdbqueue.worker.context import Context
from fdbqueue.worker.handler import Call, Observer
from fdbqueue.worker.outcomes import TRANSACTION, Tries


@dataclass(slots=True)
class HeldLease:
    """The lease of a claim, to which the context of its job refers.

    It does not refer to the job, which refers to the context: all three would wait for the garbage
    collector.

    Attributes:
        claim: The claim.
        seconds: Its length.
        since: When it started, at the latest.
    """

    claim: Claim
    seconds: float
    since: Since

    def seconds_left(self) -> float:
        """Return the seconds until the end; less than 0 if it is over."""
        return self.seconds - self.since.seconds()


@dataclass(slots=True, eq=False)
class HeldJob(Observer, Tries):
    """A claimed item, and the tries of the transaction that ends it.

    Attributes:
        claim: Its claim.
        item: Its item.
        lease: Its lease.
        is_lone: Whether it is to run alone in its process.
        began: When it began to run, by the performance counter; infinite for a coroutine that has
            not begun.
        call: The call of its handler; `None` before it is known.
        context: What the handler knows; `None` before the job begins.
        thread: The identifier of the thread that runs it.
        reported: What its handler had said of its work when that was last stored.
        loop_thread: That of the event loop which runs it, if it is a coroutine that has begun.
        future: Its coroutine, if it is one.
        variables: The context variables of its handler.
        late: The error of its attempt, if it was told that its time is over.
        told_at: When it was told, by the performance counter.
        is_ending: Whether no code of the program runs for it at the moment, or ever again.
        is_given_up: Whether the worker has ended the attempt without it.
    """

    claim: Claim
    item: Any
    lease: HeldLease
    is_lone: bool = False
    began: float = 0.0
    call: Call | None = None
    context: Context | None = None
    thread: int = 0
    reported: Report = NO_REPORT
    loop_thread: int = 0
    future: futures.Future[Any] | None = None
    variables: contextvars.Context = field(default_factory=contextvars.Context)
    late: TimedOut | HandlerTooSlow | None = None
    told_at: float = 0.0
    is_ending: bool = False
    is_given_up: bool = False

    def wait_for_loop(self) -> None:
        """Note that an event loop will begin it; its time does not run until then."""
        self.began = math.inf

    def begin(self) -> None:
        """Note that it begins, in this thread."""
        self.loop_thread = threading.get_ident()
        self.began = time.perf_counter()

    def note(self, future: futures.Future[Any]) -> None:
        """Note its coroutine; cancel it if its time is over."""
        self.future = future
        if self.late is not None:
            future.cancel()

    def lateness(self, timeout: float | None) -> tuple[float, TimedOut | HandlerTooSlow]:
        """Return for how many seconds its time is over, and with which error; less than 0 before.

        Args:
            timeout: Its time limit. The body of a transaction has that of transactions instead.
        """
        now = time.perf_counter()
        if timeout is None or (self.call and self.call.in_transaction):
            timeout = math.inf
        over, body = now - self.began - timeout, now - self.tried
        if body - TRANSACTION > over:
            return body - TRANSACTION, HandlerTooSlow(body)
        return over, TimedOut(timeout)

    def tell(self, late: TimedOut | HandlerTooSlow) -> float:
        """Tell the job that its time is over; cancel its coroutine.

        Returns:
            The seconds since it was told.
        """
        now = time.perf_counter()
        if self.late is None and self.context is not None:
            self.late, self.told_at = late, now
            self.context.cancelled.set("timeout")
            if self.future is not None:
                self.future.cancel()
        return now - self.told_at

    def give_up(self) -> bool:
        """Go on without its handler; return false if that has just returned."""
        self.is_given_up = not self.is_ending
        if self.is_given_up and self.future is not None:
            self.future.cancel()
        return self.is_given_up

    def tell_shutdown(self) -> bool:
        """Tell the job that its worker shuts down; return false if it has not begun."""
        if self.context is None:
            return False
        self.context.cancelled.set("shutdown")
        return True

    @property
    def was_cancelled(self) -> bool:
        """True if a client has cancelled it: it ends as cancelled, whatever its handler does."""
        return self.context is not None and self.context.cancelled.reason == "cancelled"

    @property
    def report(self) -> Report:
        """The last report of its handler."""
        return NO_REPORT if self.context is None else self.context.report

    @property
    def job_name(self) -> str:
        """The name of its function; an empty text if it has none, or is not known yet."""
        return self.call.name if self.call else ""

    @property
    def name(self) -> str:
        """Its id, and the name of its function if a handler has several."""
        return " ".join(filter(None, [self.item.id, self.job_name]))
