"""One process of a host: what it knows as the leader and as a follower alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fdbqueue.coordination.combiner import Performer
from fdbqueue.coordination.contention.messages import Messages
from fdbqueue.types import Database

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

CONTENDED = 1.0
"""Seconds that a process expects contention to last after it met some."""

IDLE_CHECK = 0.002
"""Seconds between checks whether the threads of a leader still work."""

_REST = 5.0  # seconds without an attempt after a leader did not answer


class Contender(Performer[Any, Any], Protocol):
    """A performer that tells when its transactions meet those of other processes."""

    contended_until: float
    """Until then it expects conflicts, by the monotonic clock."""


@dataclass(frozen=True)
class Kind(Generic[_Request, _Result]):
    """The requests of one kind.

    Attributes:
        performer: Returns a new performer of batches of them on a database.
        messages: How they and their results travel between processes.
        cost: `cost(request)` returns the cost of a request.
        budget: The maximum cost of a batch.
    """

    performer: Callable[[Database], Contender]
    messages: Messages[_Request, _Result]
    cost: Callable[[_Request], int]
    budget: int


class Process:
    """This process, among those of its host that work on one queue.

    Attributes:
        kinds: The kinds of requests, by their names.
        performers: The performers of requests of each kind, for this process alone.
        guard: Held during a call. Python leaves its `with` statement in one step.
        calls: The number of calls so far.
        last_led: When this process last became the leader, in nanoseconds of the monotonic clock.
    """

    def __init__(self, db: Database, kinds: dict[bytes, Kind[Any, Any]]) -> None:
        self.kinds = kinds
        self.performers = {name: kind.performer(db) for name, kind in kinds.items()}
        self.guard = threading.Lock()
        self.calls = 0
        self.last_led = 0
        self._contended_until = self._rests_until = 0.0

    def is_contended(self, name: bytes) -> bool:
        """Return whether to share requests of a kind: it recently met or served others."""
        until = max(self._contended_until, self.performers[name].contended_until)
        return until > 0 and self._rests_until < time.monotonic() < until

    def note_contention(self) -> None:
        """Expect contention for a while."""
        self._contended_until = time.monotonic() + CONTENDED

    @property
    def met_nobody(self) -> bool:
        """True if no other process has shared its requests for a while."""
        return time.monotonic() >= self._contended_until

    def rest(self) -> None:
        """Share no transactions for a while."""
        self._rests_until = time.monotonic() + _REST

    def note_leads(self) -> None:
        """Note that this process becomes the leader now."""
        self.last_led = time.monotonic_ns()
        for performer in self.performers.values():
            # The conflicts so far were with processes that now share.
            performer.contended_until = 0.0
