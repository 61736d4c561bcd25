"""What each transaction writes, so that the state after each commit can be had later.

Each transaction also writes an entry to a log, which puts the commits in order. So this works where
many clients commit at a time, and also for those that never learn that they have.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fdbqueue.embedded.mutations import ATOMICS, MutationType
from fdbqueue.testing.faults import FaultyDatabase, FaultyTransaction
from tests.long.simulation.groups.ledger import Act
from tests.long.simulation.log import Log
from tests.long.simulation.scheduler import Commit

_MUTATIONS = {"clear", *(kind.name.lower() for kind in MutationType)}
_STAMP = 10  # bytes of a versionstamp


class Row(NamedTuple):
    """A key and its value."""

    key: bytes
    value: bytes


class Rows:
    """The rows that mutations have written, read like a database.

    Args:
        keeps: Returns whether a key is of interest.

    Attributes:
        values: The values by key.
    """

    def __init__(self, keeps: Callable[[bytes], bool]) -> None:
        self.keeps = keeps
        self.values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def apply(self, stamp: bytes, name: str, key: bytes, value: bytes = b"") -> None:
        """Apply a mutation of a transaction that was committed with a versionstamp."""
        if name == "clear_range":
            for row in self.get_range(key, value):
                self._set(row.key, None)
            return
        if name == "set_versionstamped_key":
            name, key = "set", _stamped(key, stamp)
        elif name == "set_versionstamped_value":
            name, value = "set", _stamped(value, stamp)
        if self.keeps(key):
            change = (lambda *_: None) if name == "clear" else ATOMICS[MutationType[name.upper()]]
            self._set(key, change(self.values.get(key), value))

    def _set(self, key: bytes, value: bytes | None) -> None:
        if key not in self.values and value is not None:
            insort(self._keys, key)
        elif key in self.values and value is None:
            self._keys.remove(key)
            del self.values[key]
        if value is not None:
            self.values[key] = value

    def get_range(self, begin: bytes, end: bytes) -> list[Row]:
        """Return the rows of a range."""
        keys = self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]
        return [Row(key, self.values[key]) for key in keys]

    def __getitem__(self, keys: slice) -> list[Row]:
        return self.get_range(keys.start, keys.stop)


def _stamped(operand: bytes, stamp: bytes) -> bytes:
    begin = int.from_bytes(operand[-4:], "little")
    return operand[:begin] + stamp + operand[begin + _STAMP : -4]


class Attempt(NamedTuple):
    """One attempt to commit a transaction.

    Attributes:
        act: The act that it is part of.
        read: Its read version.
        time: When it was sent, by the time of the recording.
        mutations: What it writes: the names of methods with their arguments.
    """

    act: Act
    read: int
    time: int
    mutations: list[tuple[Any, ...]]


class Recording:
    """All attempts of all clients.

    Args:
        log: The log that shows which of them have taken effect, in order.
        now: Returns the time in milliseconds, by a clock that is not behind those of the clients.
    """

    def __init__(self, log: Log, now: Callable[[], int]) -> None:
        self._log = log
        self.now = now
        self._attempts: list[Attempt] = []

    def add(self, tr: Any, attempt: Attempt) -> None:
        """Add an attempt, which is about to commit."""
        self._attempts.append(attempt)
        self._log.note(tr, "commit", attempt=len(self._attempts) - 1)

    def replay(
        self, db: Any, rows: Rows, version_of: Callable[[int], int]
    ) -> Iterator[tuple[Attempt, Commit]]:
        """Yield each commit, in order, once the rows are those after it."""
        for entry in self._log.read(db):
            attempt, stamp = self._attempts[entry.facts["attempt"]], entry.stamp[:_STAMP]
            for mutation in attempt.mutations:
                rows.apply(stamp, *mutation)
            yield attempt, Commit(attempt.read, version_of(int.from_bytes(stamp[:8], "big")))


class RecordedDatabase(FaultyDatabase):
    """A database, as one client uses it.

    Args:
        db: The database.
        recording: Where its transactions are recorded.
    """

    def __init__(self, db: Any, recording: Recording) -> None:
        super().__init__(db)
        self.recording = recording
        self._thread = threading.get_ident()
        self._own = self._of_others = Act("pop for others")

    @property
    def act(self) -> Act:
        """What a new transaction is part of.

        After a pop, another thread may go on to serve those of other clients for a moment.
        """
        return self._own if threading.get_ident() == self._thread else self._of_others

    @act.setter
    def act(self, act: Act) -> None:
        self._own = act

    def create_transaction(self) -> RecordedTransaction:
        return RecordedTransaction(self, self.db.create_transaction())


class RecordedTransaction(FaultyTransaction):
    """A transaction of a recorded database."""

    def __init__(self, db: RecordedDatabase, wrapped: Any) -> None:
        super().__init__(db, wrapped)
        self._recording = db.recording
        self._act = db.act
        self._mutations: list[tuple[Any, ...]] = []
        self.version: int | None = None
        """The read version of its last attempt to commit."""
        db.act.transaction = self

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.wrapped, name)
        if name not in _MUTATIONS:
            return method

        def mutate(*operands: bytes) -> None:
            method(*operands)
            self._mutations.append((name, *operands))

        return mutate

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        self.clear(key)

    def commit(self) -> Any:
        self.version = self.wrapped.get_read_version().wait()
        if self._mutations:
            attempt = Attempt(self._act, self.version, self._recording.now(), self._mutations)
            self._recording.add(self.wrapped, attempt)
        return self.wrapped.commit()

    def on_error(self, error: Any) -> Any:
        self._mutations = []
        return self.wrapped.on_error(error if isinstance(error, int) else error.code)
