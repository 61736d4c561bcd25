"""The files of an embedded database: names, creation, and the meaning of their errors.

fdbqueue.sqlite       the key-value pairs
fdbqueue.sqlite-wal   SQLite's write-ahead log: the commits since the last checkpoint
fdbqueue.sqlite-shm   SQLite's index of it, shared by the processes
fdbqueue.lock         the writers' lock
fdbqueue.commits      the log of recent commits, shared by the processes
fdbqueue.N.sqlite     the key-value pairs, with their own -wal and -shm, after the other processes
                      left fdbqueue.sqlite to a stopped one (see generations.py)

Together they are one database: a process that has it open fails as soon as one of the files is no
longer the file it opened. Only the owner may read them, unless the directory or the files are given
other permissions.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from fdbqueue.embedded.clock import microseconds
from fdbqueue.embedded.disk.commit_log import COMMITS_FILE, CommitLog
from fdbqueue.embedded.disk.generations import (
    Outdated,
    current,
    database_file,
    use_write_ahead_log,
)
from fdbqueue.embedded.disk.write_ahead_log import Extent
from fdbqueue.embedded.permissions import (
    Opened,
    check_directory,
    check_opened,
    create_like,
    open_directory,
    open_file,
)
from fdbqueue.errors import (
    CorruptDatabase,
    DiskFull,
    FilesReplaced,
    FormatVersionMismatch,
    NotADatabase,
    ReadOnlyDatabase,
    StorageError,
    SyncFailed,
)

_OUR_FILES = "fdbqueue."
LOCK_FILE = "fdbqueue.lock"
_OLD_COMMITS_FILE = "fdbqueue.log"  # of format 1
APPLICATION_ID = 0x66646271  # "fdbq", in the header of the SQLite file
FORMAT_VERSION = 2

_BUSY_TIMEOUT = 30.0  # seconds for which SQLite waits for one of its own locks
_LONG_LOG = 64 << 20  # bytes
CHECKPOINT = 2000
"""The frames of the write-ahead log from which on each commit makes a checkpoint."""
_SETTLED = 10**8  # nanoseconds after which the next change of the directory has another time

_MAPPED = 32 << 10  # bytes of the file that SQLite maps into memory

_MEMORY_PREFIX = "fdbqueue-memory-"
_MEMORY_ROOM = 1 << 30  # bytes that an in-memory file system must have free to be used

logger = logging.getLogger("fdbqueue")

_SCHEMA = """
CREATE TABLE kv (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE clock (shift INTEGER NOT NULL, ceiling INTEGER NOT NULL);
"""


def prepare_directory(path: Path, create: bool) -> None:
    """Create the directory of a database unless it exists.

    Raises:
        UnsafeDirectory: Another user could lead the engine to other files.
        NotADatabase: The directory holds other files, or nothing and `create` is false.
        CorruptDatabase: The database file is missing beside its log of commits.
    """
    check_directory(path)
    file = database_file(path)
    if file.exists():
        return
    if _has_commits(path):
        raise CorruptDatabase(str(path), f"the file {file.name} is missing")
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
    if not all(name.startswith(_OUR_FILES) for name in others):
        raise NotADatabase(
            str(path),
            "this directory holds other files",
            "name a directory that fdbqueue created, an empty one, or one that does not exist yet",
        )


def _has_commits(path: Path) -> bool:
    """Return whether there is a log of commits, which is created after the database."""
    commits = path / COMMITS_FILE
    return (commits.exists() and commits.stat().st_size > 0) or (path / _OLD_COMMITS_FILE).exists()


class Connection(sqlite3.Connection):
    """A connection whose transactions begin and end explicitly."""

    generation = 0
    """The generation of the opened files or an older one, never a newer one."""


def connect(path: Path, generation: int, makes_checkpoints: bool = True) -> Connection:
    """Open the newest files.

    Args:
        path: The directory.
        generation: The newest generation that was known before this call.
        makes_checkpoints: Whether SQLite makes checkpoints by itself.
    """
    while True:
        file = database_file(path)
        try:
            connection = _connect(file, makes_checkpoints)
        except sqlite3.OperationalError:
            if file == database_file(path):
                raise
        else:
            connection.generation = generation
            return connection


def _connect(file: Path, makes_checkpoints: bool) -> Connection:
    connection = sqlite3.connect(
        f"{file.as_uri()}?mode=rw",  # does not create a file that was just removed
        timeout=_BUSY_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
        cached_statements=64,
        uri=True,
    )
    try:
        check_opened(connection, file)
        # The engine makes a commit durable by its own fdatasync, which waiting commits share.
        connection.execute("PRAGMA synchronous=NORMAL")
        frames = CHECKPOINT if makes_checkpoints else 0
        connection.execute(f"PRAGMA wal_autocheckpoint={frames}")
        connection.execute("PRAGMA cache_size=-4000")
    except BaseException:
        connection.close()  # it refers to itself, so it would wait for the garbage collector
        raise
    return connection


def create_files(path: Path) -> None:
    """Create the files that are missing. The permissions of the SQLite file pass to the others."""
    database = database_file(path)
    with suppress(FileExistsError):
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for name in (LOCK_FILE, COMMITS_FILE):
        with suppress(FileExistsError):
            create_like(database, path / name)


def create_or_check(path: Path, connection: sqlite3.Connection) -> None:
    """Create the tables of a new database, or check the version of an existing one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        if _has_commits(path):
            raise CorruptDatabase(str(database_file(path)), "the database file is empty")
        use_write_ahead_log(connection)
        connection.executescript(
            f"BEGIN; {_SCHEMA} INSERT INTO clock VALUES ({1 - microseconds()}, 1);"
            f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT_VERSION}; COMMIT;"
        )
    elif application != APPLICATION_ID:
        raise NotADatabase(str(database_file(path)))
    elif version == 1:
        _migrate_from_1(path, connection)
    elif version != FORMAT_VERSION:
        raise FormatVersionMismatch(str(path), version, FORMAT_VERSION)
    else:
        use_write_ahead_log(connection)  # the output of `.recover` has none


def _migrate_from_1(path: Path, connection: sqlite3.Connection) -> None:
    """Rename the log of commits, provided that no older release has the database open.

    The two releases would not see each other's commits.
    """
    in_use = StorageError(
        str(path),
        "a process with an older release of fdbqueue has the database open",
        "end all such processes and retry",
    )
    # The older release opens its log while it holds the writers' lock.
    with open_file(path / LOCK_FILE) as lock, open_file(path / _OLD_COMMITS_FILE) as commits:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(commits, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use from None
        connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        (path / _OLD_COMMITS_FILE).unlink()


def is_long(write_ahead_log: Path) -> bool:
    """Return whether SQLite's write-ahead log is long enough to be restarted."""
    return write_ahead_log.stat().st_size > _LONG_LOG


def shorten_write_ahead_log(
    path: Path, connection: sqlite3.Connection, log: CommitLog, sync: Callable[[], object]
) -> None:
    """Make a checkpoint if SQLite's write-ahead log is long. The caller holds the writers' lock.

    SQLite then restarts its log, unless open snapshots prevent it. If the log is much too long, it
    becomes shorter at once. If any of this fails, the next commit can retry.

    `sync()` writes the log to the disk first. SQLite does that, too, but by a descriptor that may
    not report an earlier failure. A checkpoint of frames that such a failure has lost would damage
    the database.
    """
    committed = log.committed
    try:
        is_too_long = is_long(path)
        if not is_too_long and committed.frames < CHECKPOINT:
            return
        connection.execute("BEGIN IMMEDIATE")
        sync()
        connection.execute("ROLLBACK")
        if is_too_long:
            # In this order: a process that syncs meanwhile must not note again what is withdrawn.
            log.committed = Extent(0, 0)
            log.withdraw_synced()
            connection.execute("PRAGMA busy_timeout = 50")
        mode = "TRUNCATE" if is_too_long else "PASSIVE"
        connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    except (sqlite3.Error, OSError, SyncFailed) as error:
        logger.warning("%s cannot be shortened: %s", path, error)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute(f"PRAGMA busy_timeout = {1000 * _BUSY_TIMEOUT:.0f}")
    with suppress(OSError):
        if is_long(path):  # it was not shortened, so the note of its commits still holds
            log.committed = committed


class OpenFiles:
    """The files of one generation of a database, as this process opened them.

    Device and inode reveal a name that now leads to another file or to none. The open files keep
    their inodes, so no new file has one of them.
    """

    def __init__(self, path: Path, log: CommitLog, generation: int) -> None:
        self._directory = str(path)
        self._log = log
        self._generation = generation
        self.database = database_file(path)
        name = self.database.name
        self.write_ahead_log = path / f"{name}-wal"
        self._common = self._identities(LOCK_FILE, COMMITS_FILE)
        self._files = self._identities(*(f"{name}{end}" for end in ("", "-wal", "-shm")))
        self._checked: tuple[int, int, int] | None = None

    def _identities(self, *names: str) -> dict[str, tuple[int, int]]:
        return {name: self._identity(name) for name in names}

    def _identity(self, name: str) -> tuple[int, int]:
        try:
            found = os.lstat(f"{self._directory}/{name}")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FilesReplaced(self._directory, name) from error
        return found.st_dev, found.st_ino

    def check(self) -> None:
        """Raise an error if one of the files is not the opened one any more.

        While the directory is unchanged, comparing its modification time is enough.

        Raises:
            FilesReplaced: A file was removed or replaced.
            Outdated: There is a newer generation of the files.
        """
        try:
            found = os.stat(self._directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FilesReplaced(self._directory, self.database.name) from error
        directory = found.st_dev, found.st_ino, found.st_mtime_ns
        if directory == self._checked:
            return
        self._compare(self._common)
        if current(self._directory) > self._generation:
            raise Outdated
        try:
            self._compare(self._files)
        except FilesReplaced:
            if current(self._directory) > self._generation:  # they were removed meanwhile
                raise Outdated from None
            raise
        # Modification times are coarse: the next change may have the same time.
        if time.time_ns() - found.st_mtime_ns > _SETTLED:
            self._checked = directory

    def _compare(self, files: dict[str, tuple[int, int]]) -> None:
        for name, identity in files.items():
            if self._identity(name) != identity:
                raise FilesReplaced(self._directory, name)

    def replaced(self) -> str | None:
        """Return the name of a file that was replaced or truncated, if there is one."""
        try:
            self._log.check_size()
            self.check()
        except FilesReplaced as error:
            return error.name
        except (OSError, Outdated):
            return None  # closed, temporarily unreadable, or about to be reopened
        return None


@contextmanager
def storage_errors(path: Path) -> Generator[None]:
    """Turn errors of SQLite and the system into an error with the path and advice."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explained(path, error) from error


def explained(path: Path, error: sqlite3.Error | OSError) -> StorageError:
    """Return the error with the path and advice for an error of SQLite or the system."""
    return _of_system(path, error) if isinstance(error, OSError) else _of_sqlite(path, error)


def _of_system(path: Path, error: OSError) -> StorageError:
    if isinstance(error, PermissionError):
        return ReadOnlyDatabase(str(path))
    if isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
        return NotADatabase(str(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(str(path))
    advice = None if error.errno == errno.EIO else "name another directory"
    return StorageError(str(path), error.strerror or str(error), advice)


def _has_no_room(path: Path) -> bool:
    """Return whether there is no room for the file that SQLite maps, or for another file."""
    try:
        free = os.statvfs(path if path.exists() else path.parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _MAPPED or (free.f_files > 0 and not free.f_favail)


def _of_sqlite(path: Path, error: sqlite3.Error) -> StorageError:
    # By its text: SQLite's codes are on the exception only since Python 3.11.
    words = str(error)
    has_failed = "I/O error" in words or "unable to open" in words
    if "is full" in words or (has_failed and _has_no_room(path)):
        return DiskFull(str(path))
    if "readonly" in words or ("unable to open" in words and not os.access(path, os.W_OK)):
        return ReadOnlyDatabase(str(path))
    if "not a database" in words:
        # A file beside a log of commits used to be a database.
        kind = CorruptDatabase if _has_commits(path) else NotADatabase
        return kind(str(database_file(path)))
    if "malformed" in words or "no such table" in words or "no such column" in words:
        return CorruptDatabase(str(database_file(path)))
    return StorageError(str(path), words)


def memory_directory() -> tuple[Path, Opened]:
    """Create a private directory in memory; return it and what locks it until it is closed.

    The lock shows that the owner is alive. `memory:` is the same engine on an in-memory file
    system, if the machine has one with enough room, so that it behaves the same down to its locks.
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


def _lock_directory(path: Path) -> Opened:
    directory = open_directory(path, os.O_NOFOLLOW)
    fcntl.flock(directory.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    return directory


def _remove_abandoned(parent: Path) -> None:
    """Remove the `memory:` directories of processes that were killed before they closed them."""
    for path in parent.glob(_MEMORY_PREFIX + "*"):
        try:
            if time.time() - path.stat().st_mtime < 10:
                continue  # its owner may not have locked it yet
            directory = _lock_directory(path)
        except OSError:
            continue  # its owner is alive, or it is another user's, or already removed
        shutil.rmtree(path, ignore_errors=True)
        directory.close()
