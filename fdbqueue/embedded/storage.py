"""Snapshots of the database and the commit: optimistic concurrency on SQLite.

A transaction reads from a SQLite read transaction, whose snapshot is its read version. At commit,
if nobody committed since, the same connection goes on to write. Otherwise the reads are checked
against the log of what was written since. Either way, the writes, the log entry and the version
are one SQLite transaction: a process killed at any point leaves all or nothing of it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from fdbqueue.embedded.atomics import ATOMICS, MutationType
from fdbqueue.embedded.files import (
    DATABASE_FILE,
    LOCK_FILE,
    connect,
    create_or_check,
    explained,
    memory_directory,
    microseconds,
    storage_errors,
)
from fdbqueue.embedded.limits import TRANSACTION_LIFETIME, VERSIONS_PER_SECOND
from fdbqueue.embedded.locks import SharedSync, Turn, WritersLock
from fdbqueue.embedded.ranges import Range, RangeSet, key_after, pack_ranges, unpack_ranges
from fdbqueue.embedded.write_map import Mutation
from fdbqueue.errors import FDBError

__all__ = ["Snapshot", "Storage"]

_LAST_VERSION = "SELECT max(version) FROM log"
_GET = "SELECT value FROM kv WHERE key = ?"
_LOG = "INSERT INTO log VALUES (?, ?)"
_PUT = "REPLACE INTO kv VALUES (?, ?)"
_DELETE = "DELETE FROM kv WHERE key = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE key >= ? AND key < ?"
_FORWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_BACKWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"

_LOG_KEPT = int(2 * TRANSACTION_LIFETIME * VERSIONS_PER_SECOND)


class Snapshot:
    """The database at one read version, until it is ended or five seconds old."""

    __slots__ = ("_storage", "began", "connection", "expired", "version")

    def __init__(self, storage: Storage, connection: sqlite3.Connection, version: int) -> None:
        self._storage = storage
        self.connection = connection
        self.version = version
        self.began = time.monotonic()
        self.expired = False

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        try:
            row = self.connection.execute(_GET, (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._storage.failure(error) from error
        self.check_age()
        return None if row is None else row[0]

    def rows(
        self, begin: bytes, end: bytes, reverse: bool, limit: int = -1
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a range in order, read as they are asked for."""
        try:
            yield from self.connection.execute(
                _BACKWARD if reverse else _FORWARD, (begin, end, limit)
            )
        except sqlite3.Error as error:
            raise self._storage.failure(error) from error
        self.check_age()

    def first_rows(
        self, begin: bytes, end: bytes, reverse: bool, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """The first rows of a range, read at once."""
        try:
            rows = self.connection.execute(
                _BACKWARD if reverse else _FORWARD, (begin, end, limit)
            ).fetchall()
        except sqlite3.Error as error:
            raise self._storage.failure(error) from error
        self.check_age()
        return rows

    def check_age(self) -> None:
        """Raise 1007 for a snapshot that is too old.

        Checked after a read: a snapshot that another thread expired in the meantime may have
        answered from a newer one.
        """
        if self.expired or time.monotonic() - self.began > TRANSACTION_LIFETIME:
            raise FDBError(1007)


class Storage:
    """One directory, opened by this process: its connections, its lock, its clock."""

    def __init__(self, path: Path | None, durable: bool) -> None:
        """Open the directory, or a private one in memory where `path` is `None`."""
        self._owner: int | None = None
        if path is None:
            path, self._owner = memory_directory()
        self.path = path
        self._durable = durable
        self._open()
        _storages.add(self)

    def _open(self) -> None:
        path = self.path
        self._idle: list[sqlite3.Connection] = []
        self._active: dict[Snapshot, None] = {}
        self._last_version = 0
        self._next_shortening = 0.0
        self._next_expiry = 0.0
        self._closed = False
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = WritersLock(path / LOCK_FILE)
            with self._lock:
                # One connection stays open, so that the write-ahead log stays where it is.
                self._anchor = connect(path)
                self._shift = create_or_check(path, self._anchor)
            self._anchor.execute(_LAST_VERSION).fetchone()
            self._sync = SharedSync(path / (DATABASE_FILE + "-wal"))
            directory = os.open(path, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)

    def reopen_after_fork(self) -> None:
        """In a forked child: neither a connection nor a lock can be shared with the parent."""
        _inherited.append((self._anchor, self._idle, self._active, self._sync))
        for snapshot in self._active:
            _inherited.append(snapshot.connection)
            snapshot.connection = _closed_connection()
        self._owner = None
        self._lock.close()
        self._open()

    def close(self) -> None:
        """Close every connection; a `memory:` directory is removed."""
        if self._closed:
            return
        self._closed = True
        for snapshot in list(self._active):
            self._expire(snapshot)
        for connection in [*self._idle, self._anchor]:
            connection.close()
        self._idle.clear()
        self._sync.close()
        self._lock.close()
        if self._owner is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._owner)

    def failure(self, error: sqlite3.Error) -> Exception:
        """What an error of SQLite means to the caller."""
        if self._closed or isinstance(error, sqlite3.ProgrammingError):
            return FDBError(1025)  # the database, or an expired snapshot, was closed under it
        return explained(self.path, error)

    # Reading

    def begin(self) -> Snapshot:
        """A snapshot of the newest version."""
        self._expire_old()
        try:
            connection = self._connection()
            connection.execute("BEGIN")
            version = connection.execute(_LAST_VERSION).fetchone()[0]
        except sqlite3.Error as error:
            raise self.failure(error) from error
        snapshot = Snapshot(self, connection, version)
        self._active[snapshot] = None
        return snapshot

    def end(self, snapshot: Snapshot) -> None:
        """Give a snapshot up."""
        if self._active.pop(snapshot, snapshot) is None:
            connection = snapshot.connection
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._idle.append(connection)

    def turn(self) -> Turn:
        """The writers' lock for a transaction that conflicted too often."""
        return self._lock.turn()

    def read_version(self, snapshot: Snapshot) -> int:
        """The newest version of which the snapshot is the state.

        Commits take their version from the clock, under the lock; so if none came since the
        snapshot, the snapshot is the state of the present moment too.
        """
        with self._lock:
            now = microseconds() + self._shift
            newest = self.newest_version()
        return snapshot.version if newest > snapshot.version else max(snapshot.version, now)

    def newest_version(self) -> int:
        """The version of the last commit."""
        connection = self._connection()
        version = connection.execute(_LAST_VERSION).fetchone()[0]
        self._idle.append(connection)
        return int(version)

    def begin_at(self, version: int) -> Snapshot:
        """The snapshot at a version that the caller names.

        Raises 1009 for a version that is still to come and 1007 for one whose state is gone:
        anything older than the last commit, for SQLite keeps no history.
        """
        with self._lock:
            if version > microseconds() + self._shift:
                raise FDBError(1009)
            snapshot = self.begin()
        if snapshot.version > version:
            self.end(snapshot)
            raise FDBError(1007)
        return snapshot

    def counter(self) -> int:
        """A number that changes with every commit of any process; cheap, for the watches."""
        try:
            return int(self._anchor.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise FDBError(1025)
        try:
            return self._idle.pop()
        except IndexError:
            return connect(self.path)

    def _expire_old(self) -> None:
        """About once a second, end the snapshots that somebody forgot.

        As long as they are there, SQLite cannot begin its write-ahead log anew.
        """
        now = time.monotonic()
        if now < self._next_expiry:
            return
        self._next_expiry = now + 1.0
        for snapshot in self._active.copy():
            if now - snapshot.began > TRANSACTION_LIFETIME:
                self._expire(snapshot)

    def _expire(self, snapshot: Snapshot) -> None:
        snapshot.expired = True
        if self._active.pop(snapshot, snapshot) is None:
            snapshot.connection.close()

    # Committing

    def commit(
        self,
        snapshot: Snapshot | None,
        turn: Turn | None,
        reads: list[Range],
        mutations: list[Mutation],
        writes: Iterable[tuple[bytes, bytes | None]],
        stamped_keys: Iterable[bytes] = (),
    ) -> int:
        """Commit and return the version; acknowledged is on disk, where the database is durable.

        Raises 1020 where a key of `reads` was written since the snapshot, and 1007 where the
        snapshot is too old to tell. The snapshot is ended in any case.
        """
        packed = pack_ranges(writes)
        lock = self._lock
        if turn is None or not turn.claim():
            lock.__enter__()
        try:
            version, connection = self._write_log(snapshot, reads, packed)
            try:
                _apply(connection, mutations, version)
                if stamped_keys:
                    keys = [(_stamped(key, version), None) for key in stamped_keys]
                    connection.execute(
                        "UPDATE log SET writes = ? WHERE version = ?",
                        (packed + pack_ranges(keys), version),
                    )
                self._shorten_log(connection, version)
                connection.execute("COMMIT")
                self._last_version = version
                ticket = self._sync.ticket()
            finally:
                self._give_back(connection)
        except sqlite3.Error as error:
            raise self.failure(error) from error
        finally:
            lock.__exit__()
        if self._durable:
            self._sync.wait(ticket)
        return version

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._idle.append(connection)

    def _write_log(
        self, snapshot: Snapshot | None, reads: list[Range], packed: bytes
    ) -> tuple[int, sqlite3.Connection]:
        """Begin to write: the version and its log entry, once it is sure that nothing conflicts."""
        if reads and snapshot is not None:
            # The log goes back further than any snapshot that is young enough to commit.
            snapshot.check_age()
        connection = None
        if snapshot is not None and self._active.pop(snapshot, snapshot) is None:
            connection = snapshot.connection
            if self._last_version <= snapshot.version:
                # If nobody committed since, the snapshot itself goes on to write.
                version = max(snapshot.version + 1, microseconds() + self._shift)
                try:
                    connection.execute(_LOG, (version, packed))
                    return version, connection
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):  # SQLITE_BUSY_SNAPSHOT: somebody did
                        self._give_back(connection)
                        raise
            connection.execute("ROLLBACK")
        connection = connection or self._connection()
        try:
            connection.execute("BEGIN IMMEDIATE")
            last = connection.execute(_LAST_VERSION).fetchone()[0]
            version = max(last + 1, microseconds() + self._shift)
            if reads and snapshot is not None:
                self._check_conflicts(connection, snapshot, reads)
            connection.execute(_LOG, (version, packed))
        except BaseException:
            self._give_back(connection)
            raise
        return version, connection

    @staticmethod
    def _check_conflicts(
        connection: sqlite3.Connection, snapshot: Snapshot, reads: list[Range]
    ) -> None:
        read = RangeSet(reads)
        for (writes,) in connection.execute(
            "SELECT writes FROM log WHERE version > ?", (snapshot.version,)
        ):
            for begin, end in unpack_ranges(writes):
                if read.overlaps(begin, end):
                    raise FDBError(1020)

    def _shorten_log(self, connection: sqlite3.Connection, version: int) -> None:
        """About once a second, drop from the log what no living transaction can conflict with."""
        now = time.monotonic()
        if now < self._next_shortening:
            return
        self._next_shortening = now + 1.0
        connection.execute("DELETE FROM log WHERE version < ?", (version - _LOG_KEPT,))


def _apply(connection: sqlite3.Connection, mutations: list[Mutation], version: int) -> None:
    """Write a transaction's mutations, in their order; each key is written once."""
    execute = connection.execute
    pending: dict[bytes, bytes | None] = {}
    for kind, key, param in mutations:
        if kind == MutationType.SET:
            pending[key] = param
        elif kind == MutationType.CLEAR_RANGE:
            if param == key_after(key):
                pending[key] = None
            else:
                _flush(connection, pending)
                execute(_DELETE_RANGE, (key, param))
        elif kind == MutationType.SET_VERSIONSTAMPED_KEY:
            pending[_stamped(key, version)] = param
        elif kind == MutationType.SET_VERSIONSTAMPED_VALUE:
            pending[key] = _stamped(param, version)
        else:
            if key in pending:
                value = pending[key]
            else:
                row = execute(_GET, (key,)).fetchone()
                value = None if row is None else row[0]
            pending[key] = ATOMICS[kind](value, param)
    _flush(connection, pending)


def _flush(connection: sqlite3.Connection, pending: dict[bytes, bytes | None]) -> None:
    for key, value in pending.items():
        if value is None:
            connection.execute(_DELETE, (key,))
        else:
            connection.execute(_PUT, (key, value))
    pending.clear()


def _stamped(template: bytes, version: int) -> bytes:
    """Put the versionstamp where the last four bytes of the template say."""
    at = int.from_bytes(template[-4:], "little")
    return template[:at] + version.to_bytes(8, "big") + b"\0\0" + template[at + 10 : -4]


def _closed_connection() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.close()
    return connection


_storages: weakref.WeakSet[Storage] = weakref.WeakSet()
# What a forked child inherited and must not even close: SQLite's locks are the parent's.
_inherited: list[object] = []


def _after_fork() -> None:
    for storage in list(_storages):
        storage.reopen_after_fork()


os.register_at_fork(after_in_child=_after_fork)
