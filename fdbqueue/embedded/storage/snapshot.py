"""Snapshots: the state of the database at one version, which a transaction reads."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

from fdbqueue.embedded.limits import TRANSACTION_LIFETIME
from fdbqueue.embedded.storage.clock import NEWEST
from fdbqueue.errors import DatabaseClosed, FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.storage.storage import Storage

GET = "SELECT value FROM kv WHERE key = ?"
FORWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
BACKWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"


class Snapshot:
    """A read transaction of SQLite, until it is ended or five seconds old.

    Attributes:
        version: The version of the newest commit that it sees.
        busy: A lock, held by a thread that reads, and by the thread that expires the snapshot.
    """

    __slots__ = ("__weakref__", "_storage", "busy", "connection", "expires", "version")

    def __init__(self, storage: Storage, connection: sqlite3.Connection) -> None:
        self._storage = storage
        self.connection = connection
        self.expires = time.monotonic() + TRANSACTION_LIFETIME
        self.busy = threading.Lock()
        self.version = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or `None`."""
        rows = self.fetch(GET, (key,))
        return rows[0][0] if rows else None

    def fetch(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """Return all rows of a statement: `GET`, or `FORWARD` or `BACKWARD` with a limit."""
        with self.busy:
            try:
                self._check()
                return self.connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._storage.failure(error) from error

    def begin(self) -> None:
        """Begin the read transaction with its first read, that of the version."""
        with self.busy:
            try:
                self.connection.execute("BEGIN")
                self._check()
                [(self.version,)] = self.connection.execute(NEWEST).fetchall()
            except sqlite3.Error as error:
                raise self._storage.failure(error) from error

    def release(self) -> None:
        """End the read transaction, so that SQLite can restart its log."""
        with self.busy:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def expire(self) -> None:
        """Make all further reads fail."""
        self.expires = -math.inf

    def _check(self) -> None:
        # SQLite ends a transaction by itself after some errors.
        if time.monotonic() > self.expires or not self.connection.in_transaction:
            raise self.too_old()

    def too_old(self) -> FDBError:
        """Return the error of a snapshot that has expired; 1025 if the database was closed."""
        return DatabaseClosed() if self._storage.is_closed else FDBError(1007)
