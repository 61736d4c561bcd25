"""Transactions whose operations are logged, as a caller of the library makes them.

An operation that took effect twice, because a result was unknown, has two entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import error_classes
from tests.long.simulation.log import Log
from tests.long.simulation.queues.model import Entry, last_stamp

_T = TypeVar("_T")

errors: Counter[int] = Counter()
"""How often transactions of all clients failed, by the code of the error."""

_LOG = Log(Subspace(("log",)))


class Attempt:
    """One attempt of a transaction, with the operations that it makes.

    Args:
        tr: The transaction.
    """

    def __init__(self, tr: Any) -> None:
        self.tr = tr
        self._read = tr.get_read_version().wait()
        self._times = 0, 0
        self._entries: list[tuple[str, dict[str, Any]]] = []

    def call(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Call a method of a queue, and note the time before and after it."""
        begun = milliseconds()
        try:
            return function(*args, **kwargs)
        finally:
            self._times = begun, milliseconds()

    def note(
        self, verb: str, *, snapshot: bool = False, read: int | None = None, **facts: Any
    ) -> None:
        """Add an entry for the last call, which has read at this version or at its own."""
        begun, ended = self._times
        entry = {
            "read": self._read if read is None else read,
            "begun": begun,
            "ended": ended,
            "facts": facts,
        }
        self._entries.append((verb, {**entry, "snapshot": snapshot}))

    def write(self) -> None:
        """Write the entries."""
        for verb, facts in self._entries:
            _LOG.note(self.tr, verb, **facts)


def run(db: Any, body: Callable[[Attempt], _T]) -> _T:
    """Run a transaction with a retry loop of its own."""
    tr = db.create_transaction()
    while True:
        try:
            attempt = Attempt(tr)
            result = body(attempt)
            attempt.write()
            tr.commit().wait()
            return result
        except error_classes() as error:
            errors[error.code] += 1
            tr.on_error(error.code).wait()


def read_log(db: Any, version_of: Callable[[int], int] = lambda version: version) -> list[Entry]:
    """Return all entries in the order in which they took effect.

    Args:
        db: The database.
        version_of: Returns the version of a commit as read versions count, given its own.
    """
    entries: list[Entry] = []
    for stored in _LOG.read(db):
        facts = dict(stored.facts)
        stamp = version_of(int.from_bytes(stored.stamp[:8], "big")) << 16
        stamp |= int.from_bytes(stored.stamp[8:10], "big")
        if facts.pop("snapshot"):
            stamp = last_stamp(facts["read"])
        entries.append(Entry(stored.verb, stamp=stamp, **facts))
    return sorted(entries, key=lambda entry: entry.stamp)
