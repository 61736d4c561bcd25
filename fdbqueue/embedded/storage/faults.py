"""Errors of SQLite and of the system, as errors that name the directory and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fdbqueue.embedded.directory import DATABASE_FILE, LOCK_FILE
from fdbqueue.errors import (
    CorruptDatabase,
    DiskFull,
    NotADatabase,
    ReadOnlyDatabase,
    StorageError,
)

_MAPPED = 32 << 10  # bytes of the -shm file that SQLite maps into memory


@contextmanager
def storage_errors(path: Path) -> Generator[None]:
    """Turn errors of SQLite and the system into an error with the path and advice."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explained(path, error) from error


def explained(path: Path, error: sqlite3.Error | OSError) -> StorageError:
    """Return the error with the path and advice for an error of SQLite or the system."""
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
    """Return whether there is no room for the file that SQLite maps, or for another file."""
    try:
        free = os.statvfs(path if path.exists() else path.parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _MAPPED or (free.f_files > 0 and not free.f_favail)
