"""Snapshots: the state of the database at one version, which a transaction reads."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from fdbqueue.embedded.disk.damage import in_order
from fdbqueue.embedded.limits import TRANSACTION_LIFETIME
from fdbqueue.embedded.storage.writer import GET
from fdbqueue.errors import DatabaseClosed, FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.disk.files import Connection
    from fdbqueue.embedded.disk.sync import SharedSync
    from fdbqueue.embedded.storage.storage import Storage

FORWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
BACKWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"


class Snapshot:
    """The database at one read version, until it is ended or five seconds old.

    SQLite takes its snapshot at the first read. `offset`, its offset in the log of commits, and
    `version` were noted before that, possibly long before. If the log of commits says something
    else after the read, it is noted and the read is repeated.

    Attributes:
        present: A version of a moment at which the snapshot was the newest state; `None` if a
            commit was under way when the snapshot was taken.
        unconfirmed: What `Storage.confirm` has to wait for, because the snapshot may contain a
            commit that is not on disk yet; otherwise `None`.
        runs_ahead: Whether reads return before that wait.
        deadline: When a read stops waiting, by `time.monotonic()`; `None` for never.
    """

    __slots__ = (
        "_storage",
        "busy",
        "connection",
        "deadline",
        "expires",
        "is_settled",
        "offset",
        "present",
        "runs_ahead",
        "unconfirmed",
        "version",
    )
    offset: int
    version: int
    present: int | None
    unconfirmed: tuple[SharedSync, int, int] | None

    def __init__(
        self,
        storage: Storage,
        connection: Connection,
        newest: tuple[int, int, int],
        deadline: float | None,
    ) -> None:
        self._storage = storage
        self.connection = connection
        self.expires = time.monotonic() + TRANSACTION_LIFETIME
        self.busy = threading.Lock()  # held by a reading thread, and by the thread that expires it
        self.is_settled = False
        self.present = None
        self.unconfirmed = None
        self.runs_ahead = False
        self.deadline = deadline
        self.offset, self.version, _ = newest

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or `None`."""
        rows = self.fetch(GET, (key,))
        return rows[0][0] if rows else None

    def rows(
        self, begin: bytes, end: bytes, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Yield the rows of a range in order, read on demand. The caller closes the generator."""
        self.settle()
        with self.busy:
            if time.monotonic() > self.expires:
                raise self.too_old()
            try:
                rows = self.connection.execute(BACKWARD if reverse else FORWARD, (begin, end, -1))
                yield from in_order(rows, reverse, self._storage.database_file)
            except sqlite3.Error as error:
                raise self._storage.failure(error) from error

    def settle(self) -> None:
        """Take the snapshot now, unless a read has taken it."""
        if not self.is_settled:
            self.fetch(GET, (b"",))

    def fetch(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Return all rows of a statement: `GET`, or `FORWARD` or `BACKWARD` with a limit."""
        with self.busy:
            if time.monotonic() > self.expires:
                raise self.too_old()
            try:
                rows = self.connection.execute(statement, parameters).fetchall()
                while not self.is_settled:
                    # The next commit may have this very microsecond as its version.
                    now = time.monotonic_ns() // 1000 + self._storage.shift - 1
                    state = self._storage.log.state()
                    offset, version, generation, began, ceiling, durable = state
                    newest = self._storage.newest = offset, version, generation
                    if newest == (self.offset, self.version, self.connection.generation):
                        self.is_settled = True
                        if began <= version and now < ceiling:
                            self.present = max(version, now)
                        if self._storage.is_durable and (durable < offset or began > version):
                            self.unconfirmed = self._storage.to_confirm(offset, began > version)
                        break
                    self.offset, self.version = offset, version
                    if generation != self.connection.generation:
                        raise FDBError(1007)  # it would miss all later commits
                    self.connection.execute("ROLLBACK")
                    self.connection.execute("BEGIN")
                    rows = self.connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._storage.failure(error) from error
        if self.unconfirmed is not None and not self.runs_ahead:
            self._storage.confirm(self, self.deadline)
        if len(rows) > 1:
            return list(in_order(rows, statement is BACKWARD, self._storage.database_file))
        return rows

    def expire(self) -> None:
        """Make all further reads fail. The caller holds `busy`, or ends the snapshot."""
        self.expires = -math.inf

    def too_old(self) -> FDBError:
        """Return the error of a snapshot that has expired; 1025 if the database was closed."""
        return DatabaseClosed() if self._storage.is_closed else FDBError(1007)
