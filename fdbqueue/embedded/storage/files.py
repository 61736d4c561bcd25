"""The files of a database: made, compared, and copied after a failed sync."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from fdbqueue.embedded.directory import (
    COPY_FILE,
    DATABASE_FILE,
    FAILED_FILE,
    INDEX_FILE,
    LOCK_FILE,
    LOG_FILE,
    check_directory,
    create_like,
    open_directory,
    open_file,
)
from fdbqueue.embedded.storage.connection import Connection
from fdbqueue.embedded.storage.tables import begin_clock
from fdbqueue.errors import (
    CorruptDatabase,
    FilesReplaced,
    FormatVersionMismatch,
    NotADatabase,
    StorageError,
    SyncFailed,
)

logger = logging.getLogger("fdbqueue")

APPLICATION_ID = 0x66646271  # "fdbq", in the header of the SQLite file
FORMAT_VERSION = 3

_LONGEST_OPENING = 10.0  # seconds to wait for another process that is opening the database
_OPENING = "another process has been opening the database for ten seconds"
_SETTLED = 10**8  # nanoseconds after which the next change of the directory has another time

_MEMORY_PREFIX = "fdbqueue-memory-"
_MEMORY_ROOM = 1 << 30  # bytes that an in-memory file system must have free to be used

_FIRST_VERSION = 60_000_000  # so that there are earlier ones, which are too old

_SCHEMA = f"""
BEGIN;
CREATE TABLE kv (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE commits (version INTEGER PRIMARY KEY, writes BLOB NOT NULL);
CREATE TABLE clock (shift INTEGER NOT NULL);
INSERT INTO commits VALUES ({_FIRST_VERSION}, x'00000000');
INSERT INTO clock VALUES (0);
PRAGMA application_id={APPLICATION_ID};
PRAGMA user_version={FORMAT_VERSION};
COMMIT;
"""


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Opening


def prepare_directory(path: Path, create: bool) -> None:
    """Create the directory of a database unless it exists.

    Raises:
        UnsafeDirectory: Another user could lead the engine to other files.
        NotADatabase: The directory holds other files, or nothing and `create` is false.
    """
    check_directory(path)
    if any((path / name).exists() for name in (DATABASE_FILE, LOCK_FILE)):
        return
    if not create and (path.is_dir() or not path.exists()):
        raise NotADatabase(
            str(path),
            "there is no database here",
            "push an item to create it, or name the directory that holds it",
        )
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_directory(path)  # another user may have created it meanwhile
    # Do not fill /etc because of a mistyped name. A new file system has a "lost+found".
    others = {entry.name for entry in path.iterdir()} - {"lost+found"}
    if not all(name.startswith("fdbqueue.") for name in others):
        raise NotADatabase(
            str(path),
            "this directory holds other files",
            "name a directory that fdbqueue created, an empty one, or one that does not exist yet",
        )


def open_database(path: Path, directory: int) -> None:
    """Join the processes that have a database open, by a shared lock on `directory`.

    The first creates or repairs the files.
    """
    deadline = time.monotonic() + _LONGEST_OPENING
    while True:
        for lock in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            with suppress(BlockingIOError):
                fcntl.flock(directory, lock | fcntl.LOCK_NB)
                if lock == fcntl.LOCK_EX:
                    _open_first(path)
                    fcntl.flock(directory, fcntl.LOCK_SH)
                if (path / FAILED_FILE).exists():
                    raise SyncFailed(str(path))
                return
        if time.monotonic() > deadline:
            raise StorageError(str(path), _OPENING, "resume a stopped process (kill -CONT)")
        time.sleep(random.uniform(0.001, 0.01))


def _open_first(path: Path) -> None:
    """Create or repair the files, which no other process has open."""
    database, lock = path / DATABASE_FILE, path / LOCK_FILE
    if (path / FAILED_FILE).exists():
        _copy(path)
    if lock.exists():  # it is made last
        if not database.exists() or not database.stat().st_size:
            raise CorruptDatabase(str(database), "the database file is missing or empty")
    else:
        open_file(database).close()  # SQLite would let other users read a new one
    with closing(Connection(database, "FULL")) as connection:
        _create_or_check(database, connection)
        begin_clock(connection)
    if not lock.exists():
        _sync(path)
        create_like(database, lock)


def _create_or_check(database: Path, connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application not in (0, APPLICATION_ID) or (application == 0 and tables):
        raise NotADatabase(str(database))
    if application and version != FORMAT_VERSION:
        raise FormatVersionMismatch(str(database.parent), version, FORMAT_VERSION)
    # Rows have to be fetched up to the end: SQLite commits the change after the last one.
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    if not application:
        connection.executescript(_SCHEMA)


# A copy after a failed sync


def _copy(path: Path) -> None:
    """Replace the database and its log by a readable copy that is certainly on disk.

    If the system lost unwritten pages, SQLite ends the log there, by their checksums: nobody was
    told of anything later. The complete copy replaces the note of the failed sync, an empty file,
    and then the database; if this process dies, the next continues.
    """
    copy, failed = path / COPY_FILE, path / FAILED_FILE
    if not failed.stat().st_size:
        for end in ("", "-wal", "-shm"):
            source, target = path / f"{DATABASE_FILE}{end}", path / f"{COPY_FILE}{end}"
            target.unlink(missing_ok=True)
            if end != "-shm" and source.exists():
                create_like(source, target)
                shutil.copyfile(source, target)
        with closing(Connection(copy, "FULL")) as connection:
            connection.check_integrity()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        _sync(copy)
        copy.rename(failed)
        _sync(path)
        logger.warning("%s was written again because a sync had failed", path)
    # Not before the copy is there: the log has commits that the database lacks. Nor later: SQLite
    # would apply it to the copy.
    for name in (LOG_FILE, INDEX_FILE):
        (path / name).unlink(missing_ok=True)
    _sync(path)
    failed.rename(path / DATABASE_FILE)
    _sync(path)


# While it is open


class OpenFiles:
    """The files of a database, as this process opened them, by device and inode."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory = str(path)
        self._files = {
            name: (path / name).lstat() for name in (DATABASE_FILE, LOG_FILE, INDEX_FILE, LOCK_FILE)
        }
        self._checked: tuple[int, int, int] | None = None

    def check(self) -> None:
        """Raise `FilesReplaced` for a removed or replaced file, `SyncFailed` for a failed sync."""
        name = DATABASE_FILE
        try:
            found = os.stat(self._directory)
            directory = found.st_dev, found.st_ino, found.st_mtime_ns
            if directory == self._checked:
                return
            for name, opened in self._files.items():
                if not os.path.samestat((self._path / name).lstat(), opened):
                    raise FilesReplaced(self._directory, name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FilesReplaced(self._directory, name) from error
        if (self._path / FAILED_FILE).exists():
            raise SyncFailed(self._directory)
        # Modification times are coarse: the next change may have the same time.
        if time.time_ns() - found.st_mtime_ns > _SETTLED:
            self._checked = directory


# In memory


def memory_directory() -> Path:
    """Create a private directory, in memory if there is room."""
    shared_memory = Path("/dev/shm")
    parent = Path(tempfile.gettempdir())
    if shared_memory.is_dir() and os.access(shared_memory, os.W_OK):
        room = os.statvfs(shared_memory)
        if room.f_bavail * room.f_frsize >= _MEMORY_ROOM:
            parent = shared_memory
    for path in parent.glob(_MEMORY_PREFIX + "*"):
        with suppress(OSError):  # its owner is alive, or it is another user's, or already removed
            if time.time() - path.stat().st_mtime > 10:  # otherwise it may not be locked yet
                _remove_abandoned(path)
    return Path(tempfile.mkdtemp(prefix=_MEMORY_PREFIX, dir=parent))


def _remove_abandoned(path: Path) -> None:
    with closing(open_directory(path)) as directory:
        fcntl.flock(directory.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
