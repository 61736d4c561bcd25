"""Snapshots: the state of the database at one version, which a transaction reads."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from fdbqueue.embedded.disk.damage import check_integrity, in_order
from fdbqueue.embedded.disk.files import Connection
from fdbqueue.embedded.disk.sync import SharedSync
from fdbqueue.embedded.limits import TRANSACTION_LIFETIME
from fdbqueue.embedded.storage.sql_writer import GET
from fdbqueue.errors import DatabaseClosed, FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.storage.connections import Connections

FORWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
BACKWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"


class Snapshot:
    """The database at one read version, until it is ended or five seconds old.

    `Storage.read_first` takes it by its first read, and sets the attributes.

    Attributes:
        offset: Its offset in the log of commits.
        version: The version of the last commit that it certainly contains.
        present: A version of a moment at which the snapshot was the newest state; `None` if a
            commit was under way when the snapshot was taken.
        unconfirmed: What `Storage.confirm` has to wait for, because the snapshot may contain a
            commit that is not on disk yet; otherwise `None`.
        busy: A lock, held by a thread that reads, and by the thread that expires the snapshot.
    """

    __slots__ = (
        "_connections",
        "busy",
        "connection",
        "expires",
        "offset",
        "present",
        "unconfirmed",
        "version",
    )
    present: int | None
    unconfirmed: tuple[SharedSync, int, int] | None

    def __init__(self, connections: Connections, connection: Connection) -> None:
        self._connections = connections
        self.connection = connection
        self.expires = time.monotonic() + TRANSACTION_LIFETIME
        self.busy = threading.Lock()
        self.offset = self.version = 0
        self.present = None
        self.unconfirmed = None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or `None`."""
        rows = self.fetch(GET, (key,))
        return rows[0][0] if rows else None

    def fetch(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Return all rows of a statement: `GET`, or `FORWARD` or `BACKWARD` with a limit."""
        with self.busy:
            if time.monotonic() > self.expires:
                raise self.too_old()
            try:
                return self.connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._connections.failure(error) from error

    def rows(
        self, begin: bytes, end: bytes, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Yield the rows of a range in order, read on demand. The caller closes the generator."""
        with self.busy:
            if time.monotonic() > self.expires:
                raise self.too_old()
            try:
                rows = self.connection.execute(BACKWARD if reverse else FORWARD, (begin, end, -1))
                yield from in_order(rows, reverse, self._connections.files.database)
            except sqlite3.Error as error:
                raise self._connections.failure(error) from error

    def check_integrity(self, seconds: float | None) -> bool:
        """Check the whole database for damage; return whether that took at most these seconds."""
        with self.busy:
            try:
                file = self._connections.files.database
                return check_integrity(self.connection, file, seconds)
            except sqlite3.Error as error:
                raise self._connections.failure(error) from error

    def expire(self) -> None:
        """Make all further reads fail. The caller holds `busy`, or ends the snapshot."""
        self.expires = -math.inf

    def too_old(self) -> FDBError:
        """Return the error of a snapshot that has expired; 1025 if the database was closed."""
        return DatabaseClosed() if self._connections.is_closed else FDBError(1007)
