"""Connections to SQLite, each with the snapshot that a transaction reads."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from fdbqueue.embedded.limits import TRANSACTION_LIFETIME
from fdbqueue.embedded.permissions import check_opened
from fdbqueue.embedded.storage.commits import NEWEST
from fdbqueue.embedded.storage.faults import explained
from fdbqueue.errors import DatabaseClosed, FDBError

LONG_LOG = 64 << 20
"""Bytes from which SQLite's log is long. SQLite cuts a longer one when it restarts it."""
CHECKPOINT = 2000
"""Pages of the log from which on SQLite makes a checkpoint after a commit."""

_BUSY_TIMEOUT = 30.0  # seconds for which SQLite waits for one of its own locks


class Connection(sqlite3.Connection):
    """A connection to a file, which exists. Transactions begin and end explicitly.

    A snapshot is a read transaction of SQLite, until it is ended or five seconds old. Then the
    connection serves the next one.

    Attributes:
        version: The version of the newest commit that the snapshot sees.
        expires: When all further reads fail, by `time.monotonic()`: `math.inf` during a commit, 0
            while nobody uses the connection, `-math.inf` once another thread has closed it.
        busy: A lock, held by a thread that reads, and by a thread that closes the connection.
    """

    __slots__ = ("__weakref__", "_directory", "_is_closed", "busy", "expires", "version")

    def __init__(self, file: Path, synchronous: str = "NORMAL") -> None:
        self._directory = file.parent
        self._is_closed = False
        self.version = 0
        self.expires = 0.0
        self.busy = threading.Lock()
        super().__init__(
            f"{file.as_uri()}?mode=rw",
            timeout=_BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            check_opened(self, file)
            self.execute(f"PRAGMA synchronous={synchronous}")
            self.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT}")
            self.execute(f"PRAGMA journal_size_limit={LONG_LOG}").fetchall()
            self.execute("PRAGMA cache_size=-4000")
        except BaseException:
            self.close()  # it refers to itself, so it would wait for the garbage collector
            raise

    def begin(self) -> None:
        """Begin a snapshot with its first read, that of the version."""
        with self.busy:
            if self.expires < 0:
                raise self.too_old()
            self.expires = time.monotonic() + TRANSACTION_LIFETIME
            try:
                self.execute("BEGIN")
                [(self.version,)] = self.execute(NEWEST).fetchall()
            except sqlite3.Error as error:
                raise explained(self._directory, error) from error

    def fetch(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Return all rows of a statement of `key_values.py`."""
        with self.busy:
            # SQLite ends a transaction by itself after some errors.
            if time.monotonic() > self.expires or not self.in_transaction:
                raise self.too_old()
            try:
                return self.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise explained(self._directory, error) from error

    def claim(self) -> None:
        """Keep the connection for a commit, during which the snapshot does not expire."""
        with self.busy:
            if self.expires and time.monotonic() > self.expires:
                raise self.too_old()
            self.expires = math.inf

    def release(self) -> None:
        """End the read transaction before a wait, so that SQLite can restart its log."""
        with self.busy:
            if self.expires > 0 and self.in_transaction:
                self.execute("ROLLBACK")

    def end(self) -> bool:
        """End the snapshot, and return whether the connection can serve another one."""
        with self.busy:
            if self.expires <= 0:
                return False
            if self.in_transaction:
                try:
                    self.execute("ROLLBACK")
                except sqlite3.Error:
                    self._shut()
                    return False
            self.expires = 0.0
            return True

    def expire(self, now: float) -> None:
        """Close the connection if the snapshot has expired, unless a thread is reading it."""
        if self.busy.acquire(blocking=False):
            try:
                if 0 < self.expires < now:
                    self._shut()
            finally:
                self.busy.release()

    def shut(self, seconds: float, is_closed: bool) -> None:
        """Close the connection of another thread.

        Args:
            seconds: How long to wait for the thread if it reads. If it goes on, do nothing.
            is_closed: Whether further reads fail because the database was closed, or else as too
                old.
        """
        if self.busy.acquire(timeout=seconds):
            try:
                self._is_closed = is_closed
                self._shut()
            finally:
                self.busy.release()

    def _shut(self) -> None:
        self.expires = -math.inf
        self.close()

    def too_old(self) -> FDBError:
        """Return the error of a snapshot that has expired; 1025 if the database was closed."""
        return DatabaseClosed() if self._is_closed else FDBError(1007)
