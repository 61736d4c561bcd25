"""The files of an embedded database: where they are, how they are made, what their faults mean.

fdbqueue.sqlite       the key-value pairs
fdbqueue.sqlite-wal   SQLite's write-ahead log: what was committed since the last checkpoint
fdbqueue.sqlite-shm   SQLite's index of it, shared by the processes
fdbqueue.lock         the writers' lock
fdbqueue.log          the log of recent commits, shared memory
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fdbqueue.errors import (
    CorruptDatabase,
    DiskFull,
    FormatVersionMismatch,
    NotADatabase,
    ReadOnlyDatabase,
    StorageError,
)

__all__ = [
    "DATABASE_FILE",
    "FORMAT_VERSION",
    "LOCK_FILE",
    "LOG_FILE",
    "connect",
    "create_or_check",
    "explained",
    "memory_directory",
    "microseconds",
    "prepare_directory",
    "storage_errors",
]

_OUR_FILES = "fdbqueue."
DATABASE_FILE = "fdbqueue.sqlite"
LOCK_FILE = "fdbqueue.lock"
LOG_FILE = "fdbqueue.log"
APPLICATION_ID = 0x66646271  # "fdbq", in the header of the SQLite file
FORMAT_VERSION = 1

_MEMORY_PREFIX = "fdbqueue-memory-"
_MEMORY_ROOM = 1 << 30  # bytes that a file system in memory must have free to be taken

_SCHEMA = """
CREATE TABLE kv (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE clock (shift INTEGER NOT NULL, ceiling INTEGER NOT NULL);
"""


def microseconds() -> int:
    """The clock of versions: it never goes back, and all processes of a machine share it."""
    return time.monotonic_ns() // 1000


def prepare_directory(path: Path, create: bool) -> None:
    """Make the directory of a database, unless it is there; raises `NotADatabase` for another."""
    if (path / DATABASE_FILE).exists():
        return
    if (path / LOG_FILE).exists():  # made after it
        raise CorruptDatabase(str(path), f"the file {DATABASE_FILE} is gone")
    if not create and (path.is_dir() or not path.exists()):
        raise NotADatabase(
            str(path), "there is no database here", "the first push makes it; or is it elsewhere?"
        )
    path.mkdir(parents=True, exist_ok=True)
    # Not /etc because somebody mistyped a name; "lost+found" is what a new file system has.
    others = {entry.name for entry in path.iterdir()} - {"lost+found"}
    if not all(name.startswith(_OUR_FILES) for name in others):
        raise NotADatabase(
            str(path),
            "this directory holds other files",
            "name one that fdbqueue made, an empty one, or one that does not exist yet",
        )


def connect(path: Path) -> sqlite3.Connection:
    """A connection whose transactions are begun and ended by hand."""
    connection = sqlite3.connect(
        path / DATABASE_FILE,
        timeout=30.0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    # A commit is made durable by the engine's own fdatasync, shared by all that wait for it.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=2000")
    connection.execute("PRAGMA cache_size=-4000")
    return connection


def create_or_check(path: Path, connection: sqlite3.Connection) -> None:
    """Make the tables of a new database, or check those of an old one; under the writers' lock."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        if (path / LOG_FILE).exists():  # made after them
            raise CorruptDatabase(str(path / DATABASE_FILE), "there is nothing in the database")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(
            f"BEGIN; {_SCHEMA} INSERT INTO clock VALUES ({1 - microseconds()}, 1);"
            f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT_VERSION}; COMMIT;"
        )
    elif application != APPLICATION_ID:
        raise NotADatabase(str(path / DATABASE_FILE))
    elif version != FORMAT_VERSION:
        raise FormatVersionMismatch(str(path), version, FORMAT_VERSION)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say of the files into an error that names the path."""
    try:
        yield
    except sqlite3.Error as error:
        raise explained(path, error) from error
    except (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        if isinstance(error, PermissionError):
            raise ReadOnlyDatabase(str(path)) from error
        raise NotADatabase(str(path)) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(str(path)) from error
        advice = None if error.errno == errno.EIO else "name another directory"
        raise StorageError(str(path), error.strerror or str(error), advice) from error


def explained(path: Path, error: sqlite3.Error) -> StorageError:
    # By its words: SQLite's codes are on the exception only since Python 3.11.
    words = str(error)
    if "is full" in words:
        return DiskFull(str(path))
    if "readonly" in words or ("unable to open" in words and not os.access(path, os.W_OK)):
        return ReadOnlyDatabase(str(path))
    if "not a database" in words:
        # Beside a log of commits, it was one.
        kind = CorruptDatabase if (path / LOG_FILE).exists() else NotADatabase
        return kind(str(path / DATABASE_FILE))
    if "malformed" in words or "no such table" in words or "no such column" in words:
        return CorruptDatabase(str(path / DATABASE_FILE))
    return StorageError(str(path), words)


def memory_directory() -> tuple[Path, int]:
    """A private directory in memory, and the descriptor whose lock says that its owner lives.

    `memory:` is the same engine on a file system that is not on disk (where the machine has one
    with room enough), so that it behaves the same down to its locks.
    """
    shared_memory = Path("/dev/shm")
    parent = Path(tempfile.gettempdir())
    if shared_memory.is_dir() and os.access(shared_memory, os.W_OK):
        room = os.statvfs(shared_memory)
        if room.f_bavail * room.f_frsize >= _MEMORY_ROOM:
            parent = shared_memory
    _remove_abandoned(parent)
    path = Path(tempfile.mkdtemp(prefix=_MEMORY_PREFIX, dir=parent))
    return path, _lock_directory(path)


def _lock_directory(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove what processes killed before they could close a `memory:` database left behind."""
    for path in parent.glob(_MEMORY_PREFIX + "*"):
        try:
            if time.time() - path.stat().st_mtime < 10:
                continue  # its owner may be between making and locking it
            descriptor = _lock_directory(path)
        except OSError:
            continue  # its owner lives, or it is another user's, or it is gone already
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)
