"""One process of a host: what it knows as the leader and as a follower alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from fdbqueue.coordination.combiner import Batch
from fdbqueue.types import Database

CONTENDED = 1.0
"""Seconds that a process expects contention to last after it met some."""

IDLE_CHECK = 0.002
"""Seconds between checks whether the threads of a leader still work."""

_REST = 5.0  # seconds without an attempt after a leader did not answer

Pairs: TypeAlias = list[tuple[bytes, bytes]]
"""A result as it travels: keys and values."""


class Performer(Protocol):
    """Performs batches of requests; tells when its transactions meet those of other processes."""

    contended_until: float
    """Until then it expects conflicts, by the monotonic clock."""

    def perform(self, db: Database, batch: Batch[Any]) -> Sequence[Any]:
        """Perform a batch, as `Combiner` expects it."""
        ...


class Kind(Protocol):
    """The requests of one kind: who performs them, and how they and their results travel.

    Attributes:
        name: One byte.
        budget: The maximum cost of a batch.
    """

    name: bytes
    budget: int

    def cost(self, request: Any) -> int:
        """Return the cost of a request."""
        ...

    def performer(self, db: Database) -> Performer:
        """Return a new performer of batches on a database."""
        ...

    def encode(self, requests: Sequence[Any]) -> bytes | None:
        """Return the content of a message; `None` if the process has to perform them itself."""
        ...

    def decode(self, content: bytes) -> list[Any]:
        """Return the requests of a message; raise an error if it is not one."""
        ...

    def pairs(self, result: Any) -> Iterable[tuple[bytes, bytes]]:
        """Return a result, as the leader's transaction found it, as keys and values.

        Raises:
            NotShareable: It does not fit a message.
        """
        ...

    def result(self, pairs: Pairs) -> Any:
        """Return the result of a request; `None` if the process has to perform it again."""
        ...

    def undo(self, db: Database, results: list[Pairs]) -> None:
        """Undo requests that took effect, for a call that failed afterwards."""
        ...


class Process:
    """This process, among those of its host that work on one queue.

    Attributes:
        kinds: The kinds of requests, by their names.
        performers: The performers of requests of each kind, for this process alone.
        guard: Held during a call. Python leaves its `with` statement in one step.
        calls: The number of calls so far.
        last_led: When this process last became the leader, in nanoseconds of the monotonic clock.
    """

    def __init__(self, db: Database, kinds: Iterable[Kind]) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.performers = {name: kind.performer(db) for name, kind in self.kinds.items()}
        self.guard = threading.Lock()
        self.calls = 0
        self.last_led = 0
        self._contended_until = self._rests_until = 0.0

    def is_contended(self, kind: Kind) -> bool:
        """Return whether to share requests of a kind: it recently met or served others."""
        until = max(self._contended_until, self.performers[kind.name].contended_until)
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
