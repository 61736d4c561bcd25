"""A job that a worker holds: its claim, and what is known of its attempt."""

from __future__ import annotations

from concurrent import futures
from dataclasses import dataclass
from typing import Any

from fdbqueue.types import Claim
from fdbqueue.worker.context import Context
from fdbqueue.worker.handler import Call


@dataclass(slots=True, eq=False)
class HeldJob:
    """A claimed item.

    Attributes:
        claim: Its claim.
        lease_end: The latest end of its lease, by this process's monotonic clock.
        began: When it began to run, by the performance counter.
        call: The call of its handler; `None` before it is known.
        context: What the handler knows; `None` before the job begins.
        thread: The identifier of the thread that runs it.
        future: Its coroutine, if it is one.
        told_after: The seconds after which it was told that its time is over; `None` if it was not.
        is_ending: Whether its handler has returned.
        is_given_up: Whether the worker has ended the attempt without it.
    """

    claim: Claim
    lease_end: float
    began: float = 0.0
    call: Call | None = None
    context: Context | None = None
    thread: int = 0
    future: futures.Future[Any] | None = None
    told_after: float | None = None
    is_ending: bool = False
    is_given_up: bool = False

    def note(self, future: futures.Future[Any]) -> None:
        """Note its coroutine; cancel it if its time is over."""
        self.future = future
        if self.told_after is not None:
            future.cancel()

    def tell(self, seconds: float) -> None:
        """Tell the job that its time is over, which was so many seconds; cancel its coroutine."""
        if self.told_after is not None or self.context is None:
            return
        self.told_after = seconds
        self.context.cancelled.set("timeout")
        if self.future is not None:
            self.future.cancel()

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
    def name(self) -> str:
        """Its id, and the name of its function if a handler has several."""
        return " ".join(filter(None, [self.claim.item.id, self.call and self.call.name]))
