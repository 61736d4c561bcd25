"""Connections to SQLite, and their errors."""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fdbqueue.embedded.directory import DATABASE_FILE, LOCK_FILE, check_opened
from fdbqueue.errors import (
    CorruptDatabase,
    DiskFull,
    FDBError,
    NotADatabase,
    ReadOnlyDatabase,
    StorageError,
)

LONG_LOG = 64 << 20
"""Bytes to which SQLite truncates a restarted log."""
CHECKPOINT = 2000
"""Pages of the log after which a commit makes a checkpoint."""

_BUSY_TIMEOUT = 30.0  # seconds for which SQLite waits for one of its own locks
_MAPPED = 32 << 10  # bytes of the -shm file that SQLite maps into memory


class Connection(sqlite3.Connection):
    """A connection to an existing file.

    A snapshot is a read transaction of SQLite, until it is ended or five seconds old.

    Attributes:
        version: The version of the newest commit that the snapshot sees.
        expires: When reads begin to fail with the code `over`, by `time.monotonic()`: `math.inf`
            while unused, `-math.inf` once closed.
        busy: A lock, held while a thread reads, commits or closes the connection.
    """

    __slots__ = ("__weakref__", "_file", "busy", "expires", "over", "version")

    def __init__(self, file: Path, synchronous: str = "NORMAL") -> None:
        self._file = file
        self.version = 0
        self.expires = math.inf
        self.over = 1007
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

    def fetch(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Return all rows of a statement of `tables.py`."""
        with self.busy:
            # SQLite ends a transaction by itself after some errors.
            if time.monotonic() > self.expires or not self.in_transaction:
                raise FDBError(self.over)
            try:
                return self.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise explained(self._file.parent, error) from error

    def pause(self) -> None:
        """End the read transaction, so that SQLite can restart its log."""
        with self.busy, suppress(sqlite3.Error):  # it may be closed, or have ended by itself
            self.execute("ROLLBACK")

    def expire(self, now: float, code: int = 1007, patience: float = 0) -> None:
        """Close an expired connection, unless another thread uses it for `patience` more seconds.

        All further reads fail with `code`. `now=math.inf` also closes an unused connection.
        """
        if -math.inf < self.expires <= now and self.busy.acquire(timeout=patience):
            try:
                if -math.inf < self.expires <= now:  # the first code stays
                    self.expires, self.over = -math.inf, code
                    self.close()
            finally:
                self.busy.release()

    def check_integrity(self, seconds: float | None = None) -> bool:
        """Run SQLite's integrity check; `quick_check` would not compare the order of keys."""
        outcome: list[str | sqlite3.Error] = []

        def check() -> None:
            try:
                outcome.extend(self.execute("PRAGMA integrity_check(1)").fetchone())
            except sqlite3.Error as error:
                outcome.append(error)

        # The check runs in its own thread so that a signal or the time limit can interrupt it: the
        # main thread runs no signal handler inside a call of SQLite.
        thread = threading.Thread(target=check, daemon=True)
        thread.start()
        try:
            thread.join(seconds)
            ended = not thread.is_alive()
        finally:
            while thread.is_alive():
                self.interrupt()  # has no effect if the check has not started yet
                thread.join(0.1)
        (finding,) = outcome
        if not ended or finding == "ok":
            return ended
        if isinstance(finding, sqlite3.Error):
            raise finding
        raise CorruptDatabase(
            str(self._file), f"the database is damaged ({' '.join(finding.split())})"
        )


# Errors of SQLite and of the system


@contextmanager
def storage_errors(path: Path) -> Generator[None]:
    """Raise errors with path and advice instead of SQLite's and the system's."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explained(path, error) from error


def explained(path: Path, error: sqlite3.Error | OSError) -> StorageError:
    """Return the error to raise instead."""
    if isinstance(error, OSError):
        return _of_system(path, error)
    # By its text: SQLite's codes are on the exception only since Python 3.11.
    words = str(error)
    has_failed = "I/O error" in words or "unable to open" in words
    if "is full" in words or (has_failed and _has_no_room(path)):
        return DiskFull(str(path))
    if "readonly" in words or ("unable to open" in words and not os.access(path, os.W_OK)):
        return ReadOnlyDatabase(str(path))
    if "not a database" in words:
        # A file beside a lock used to be a database.
        kind = CorruptDatabase if (path / LOCK_FILE).exists() else NotADatabase
        return kind(str(path / DATABASE_FILE))
    if "malformed" in words or "no such table" in words or "no such column" in words:
        return CorruptDatabase(str(path / DATABASE_FILE))
    return StorageError(str(path), words)


def _of_system(path: Path, error: OSError) -> StorageError:
    if isinstance(error, PermissionError):
        return ReadOnlyDatabase(str(path))
    if isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
        return NotADatabase(str(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(str(path))
    advice = StorageError.advice if error.errno == errno.EIO else "name another directory"
    return StorageError(str(path), error.strerror or str(error), advice)


def _has_no_room(path: Path) -> bool:
    """Return whether there is no room for SQLite's mapped file or for another file."""
    try:
        free = os.statvfs(path if path.exists() else path.parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _MAPPED or (free.f_files > 0 and not free.f_favail)
