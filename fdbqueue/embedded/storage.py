"""Snapshots of the database and the commit: optimistic concurrency on SQLite.

A transaction reads from a SQLite read transaction, whose snapshot is its read version. At commit,
if nobody committed since, the same connection goes on to write. Otherwise the reads are checked
against the log of what was written since. Either way, the writes are one SQLite transaction: a
process killed at any point leaves all or nothing of them.

A version is the machine's clock, in microseconds, plus a shift, so versions grow by a million a
second. All versions that were ever told are below a ceiling, which is stored ahead of them; where
the clock began anew, after a reboot, versions go on from the ceiling.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fdbqueue.embedded import forks
from fdbqueue.embedded.commit_log import CommitLog
from fdbqueue.embedded.files import (
    DATABASE_FILE,
    LOCK_FILE,
    LOG_FILE,
    connect,
    create_or_check,
    explained,
    memory_directory,
    microseconds,
    prepare_directory,
    storage_errors,
)
from fdbqueue.embedded.limits import TRANSACTION_LIFETIME, VERSIONS_PER_SECOND
from fdbqueue.embedded.locks import SharedSync, Turn, WritersLock
from fdbqueue.embedded.ranges import Range, RangeSet
from fdbqueue.embedded.write_map import Mutation
from fdbqueue.embedded.writer import GET, Writer, stamped
from fdbqueue.errors import FDBError

__all__ = ["Snapshot", "Storage"]

_FORWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_BACKWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"

logger = logging.getLogger("fdbqueue")

_CEILING_STEP = 10 * VERSIONS_PER_SECOND
_WAL_TOO_LONG = 64 << 20  # bytes


class Snapshot:
    """The database at one read version, until it is ended or five seconds old.

    SQLite takes its snapshot at the first read. `place` and `version` are noted before that; if a
    commit came in between, they are noted again and the read is done again.
    """

    __slots__ = (
        "_settled",
        "_storage",
        "began",
        "busy",
        "connection",
        "expired",
        "place",
        "version",
    )

    def __init__(self, storage: Storage, connection: sqlite3.Connection, now: float) -> None:
        self._storage = storage
        self.connection = connection
        self.began = now
        self.busy = threading.Lock()  # held by a thread that reads, and by one that expires it
        self.expired = False
        self._settled = False
        self.place, self.version = storage.log.published

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        rows = self._fetch(GET, (key,))
        return rows[0][0] if rows else None

    def first_rows(
        self, begin: bytes, end: bytes, reverse: bool, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """The first rows of a range, read at once."""
        return self._fetch(_BACKWARD if reverse else _FORWARD, (begin, end, limit))

    def rows(
        self, begin: bytes, end: bytes, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """The rows of a range in order, read as they are asked for; to be closed."""
        self.settle()
        with self.busy:
            self.check_age()
            try:
                yield from self.connection.execute(
                    _BACKWARD if reverse else _FORWARD, (begin, end, -1)
                )
            except sqlite3.Error as error:
                raise self._storage.failure(error) from error

    def settle(self) -> None:
        """Take the snapshot now, if no read has."""
        if not self._settled:
            self._fetch(GET, (b"",))

    def _fetch(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        with self.busy:
            self.check_age()
            try:
                rows = self.connection.execute(statement, parameters).fetchall()
                while not self._settled:
                    now = self._storage.log.published
                    self._settled = now == (self.place, self.version)
                    if not self._settled:
                        self.place, self.version = now
                        self.connection.execute("ROLLBACK")
                        self.connection.execute("BEGIN")
                        rows = self.connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._storage.failure(error) from error
        return rows

    def check_age(self) -> None:
        """Raise 1007 for a snapshot that is too old, or gone."""
        if self.expired or time.monotonic() - self.began > TRANSACTION_LIFETIME:
            raise FDBError(1025 if self._storage.is_closed else 1007)


class Storage:
    """One directory, opened by this process: its connections, its lock, its clock."""

    def __init__(self, path: Path | None, durable: bool, create: bool) -> None:
        """Open the directory, or a private one in memory where `path` is `None`."""
        self._owner: int | None = None
        if path is None:
            path, self._owner = memory_directory()
        self.path = path
        self._durable = durable
        self._open(create or self._owner is not None)
        forks.storages.add(self)

    def _open(self, create: bool) -> None:
        path = self.path
        self._idle: list[sqlite3.Connection] = []
        self._active: dict[Snapshot, None] = {}
        # Held while connections come and go; the end of a transaction may be collected meanwhile.
        self._gate = threading.RLock()
        self._next_expiry = 0.0
        self._next_checkpoint = 0
        self._writer = Writer()
        self._closed = False
        with storage_errors(path), ExitStack() as undo:
            prepare_directory(path, create)
            self._lock = WritersLock(path / LOCK_FILE)
            undo.callback(self._lock.close)
            with self._lock:
                self._anchor = connect(path)
                undo.callback(self._anchor.close)
                create_or_check(path, self._anchor)
                self.log = CommitLog(path / LOG_FILE)
                undo.callback(self.log.close)
                self._shift = self._set_clock()
            self._open_sync()
            if self._durable:
                # No version is told before it is sure that versions go on from above it.
                self._sync.wait(self._sync.ticket())
            undo.pop_all()

    def _open_sync(self) -> None:
        """Begin to sync the write-ahead log, which is where it is while a connection is open."""
        self._write_ahead_log = self.path / (DATABASE_FILE + "-wal")
        self._sync = SharedSync(self._write_ahead_log)
        directory = os.open(self.path, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def _set_clock(self) -> int:
        """The shift from the machine's clock to versions; the first to open sets it."""
        shift, ceiling = self._anchor.execute("SELECT shift, ceiling FROM clock").fetchone()
        if self.log.is_first():
            shift = max(shift, ceiling - microseconds())
            now = microseconds() + shift
            self._anchor.execute(
                "UPDATE clock SET shift = ?, ceiling = ?", (shift, now + _CEILING_STEP)
            )
            self.log.begin_anew(now, now + _CEILING_STEP)
        return int(shift)

    def _close_connections(self) -> None:
        """Close every connection to SQLite; the gate and the writers' lock are held."""
        for snapshot in list(self._active):
            with snapshot.busy:
                snapshot.expired = True
                snapshot.connection.close()
        self._active.clear()
        for connection in [*self._idle, self._anchor]:
            connection.close()
        self._idle.clear()
        self._sync.close()

    def before_fork(self) -> None:
        """Have nothing of SQLite open while the process is copied.

        SQLite knows of its locks by tables in the process's memory; in a child they would speak
        of locks that only the parent has. Transactions under way are too old afterwards (1007).
        """
        self._gate.acquire()
        self._lock.__enter__()
        self._close_connections()

    def after_fork(self, in_child: bool) -> None:
        """Open again, on either side."""
        try:
            with storage_errors(self.path):
                if in_child:
                    self._owner = None
                    self._gate = threading.RLock()
                    self._gate.acquire()
                    self._lock.renew_after_fork()
                    self.log = CommitLog(self.path / LOG_FILE)
                    self.log.join()
                self._anchor = connect(self.path)
                self._anchor.execute("SELECT shift FROM clock").fetchone()
                self._open_sync()
        except BaseException:
            self._closed = True
            raise
        finally:
            if not in_child:
                self._lock.__exit__()
            self._gate.release()

    def close(self) -> None:
        """Close every connection; a `memory:` directory is removed."""
        if self._closed:
            return
        with self._gate:
            with self._lock:
                if self._closed:
                    return
                self._closed = True
                self._close_connections()
                self.log.close()
                self._lock.close()
            if self._owner is not None:
                shutil.rmtree(self.path, ignore_errors=True)
                os.close(self._owner)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def failure(self, error: sqlite3.Error) -> Exception:
        """What an error of SQLite means to the caller."""
        if self._closed or isinstance(error, sqlite3.ProgrammingError):
            return FDBError(1025)  # the database, or an expired snapshot, was closed under it
        return explained(self.path, error)

    # Reading

    def begin(self) -> Snapshot:
        """A snapshot of the newest version."""
        now = time.monotonic()
        if now > self._next_expiry:
            self._next_expiry = now + 1.0
            self._expire_old(now)
        with self._gate:
            connection = self._connection()
            connection.execute("BEGIN")
            snapshot = Snapshot(self, connection, now)
            self._active[snapshot] = None
        return snapshot

    def end(self, snapshot: Snapshot) -> None:
        """Give a snapshot up."""
        with self._gate:
            if self._active.pop(snapshot, snapshot) is None:
                self._give_back(snapshot.connection)

    def turn(self) -> Turn:
        """The writers' lock for a transaction that conflicted too often."""
        return self._lock.turn()

    def read_version(self, snapshot: Snapshot) -> int:
        """The newest version of which the snapshot is the state.

        Commits take their version from the clock, under the lock; so if none came since the
        snapshot, the snapshot is the state of the present moment too.
        """
        with self._lock:
            place, _ = self.log.recover()
            snapshot.settle()
            if place != snapshot.place:
                return self.log.version_after(snapshot.place) - 1
            # The next commit may have this very microsecond as its version.
            now = max(snapshot.version, microseconds() + self._shift - 1)
            if now < self.log.ceiling:
                return now
            # Raised by a commit of its own: SQLite then lets no older snapshot go on to write.
            connection = self._connection()
            try:
                self._begin_anew(connection)
                ceiling = self._raise_ceiling(connection, now)
                self.log.append(place, now, [])
                connection.execute("COMMIT")
                self.log.ceiling = ceiling
                self.log.publish()
                ticket = self._sync.ticket()
            except sqlite3.Error as error:
                raise self.failure(error) from error
            finally:
                self._give_back(connection)
        if self._durable:
            self._sync.wait(ticket)
        return now

    def begin_at(self, version: int) -> Snapshot:
        """The snapshot at a version that the caller names.

        Raises 1009 for a version that is still to come and 1007 for one whose state is gone:
        anything older than the last commit, for SQLite keeps no history.
        """
        snapshot = self.begin()
        try:
            with self._lock:
                _, last = self.log.recover()
                if version > last and version >= microseconds() + self._shift:
                    raise FDBError(1009)
                snapshot.settle()
            if snapshot.version > version:
                raise FDBError(1007)
        except BaseException:
            self.end(snapshot)
            raise
        return snapshot

    def recover(self) -> None:
        """Publish the commit of a writer that was killed in the middle."""
        with self._lock:
            self.log.recover()

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise FDBError(1025)
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return connect(self.path)
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def _expire_old(self, now: float) -> None:
        """End the snapshots that somebody forgot.

        As long as they are there, SQLite cannot begin its write-ahead log anew.
        """
        for snapshot in self._active.copy():
            if now - snapshot.began > TRANSACTION_LIFETIME and snapshot.busy.acquire(False):
                try:
                    snapshot.expired = True
                    self.end(snapshot)
                finally:
                    snapshot.busy.release()

    # Committing

    def commit(
        self,
        snapshot: Snapshot | None,
        turn: Turn | None,
        reads: list[Range],
        mutations: list[Mutation],
        writes: list[tuple[bytes, bytes | None]],
        stamped_keys: tuple[bytes, ...] = (),
    ) -> int:
        """Commit and return the version; acknowledged is on disk, where the database is durable.

        Raises 1020 where a key of `reads` was written since the snapshot, and 1007 where the
        snapshot is too old to tell. The snapshot is ended in any case.
        """
        lock = self._lock
        if turn is None or not turn.claim():
            lock.__enter__()
        try:
            connection, place, last = self._begin_to_write(snapshot, reads)
            try:
                version = max(last + 1, microseconds() + self._shift)
                if stamped_keys:
                    writes = writes + [(stamped(key, version), None) for key in stamped_keys]
                try:
                    self._writer.apply(connection, mutations, version, place)
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):
                        raise
                    # A checkpoint began SQLite's log anew since the snapshot. Nobody committed, so
                    # the transaction is the same from the new beginning.
                    self._begin_anew(connection)
                    self._writer.apply(connection, mutations, version, place)
                ceiling = self.log.ceiling
                if version >= ceiling:
                    ceiling = self._raise_ceiling(connection, version)
                place = self.log.append(place, version, writes)
                connection.execute("COMMIT")
                self.log.ceiling = ceiling
                self.log.publish()
                self._writer.committed(place)
                ticket = self._sync.ticket()
                self._keep_short(connection, version)
            finally:
                self._give_back(connection)
        except sqlite3.Error as error:
            raise self.failure(error) from error
        finally:
            lock.__exit__()
        if self._durable:
            self._sync.wait(ticket)
        return version

    def _begin_to_write(
        self, snapshot: Snapshot | None, reads: list[Range]
    ) -> tuple[sqlite3.Connection, int, int]:
        """A connection that may write, if nothing conflicts; place and version of the last commit.

        If nobody committed since the snapshot, it goes on from reading to writing.
        """
        place, last = self.log.recover()
        if snapshot is not None and self._active.pop(snapshot, snapshot) is None:
            connection = snapshot.connection
        else:
            connection = self._connection()
        try:
            if snapshot is not None and reads:
                snapshot.check_age()
            if snapshot is None or place != snapshot.place or not connection.in_transaction:
                if snapshot is not None and reads:
                    self._check_conflicts(snapshot.place, reads)
                self._begin_anew(connection)
            return connection, place, last
        except BaseException:
            self._give_back(connection)
            raise

    @staticmethod
    def _begin_anew(connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")

    def _check_conflicts(self, place: int, reads: list[Range]) -> None:
        read = RangeSet(reads)
        for begin, end in self.log.since(place):
            if read.overlaps(begin, end):
                raise FDBError(1020)

    @staticmethod
    def _raise_ceiling(connection: sqlite3.Connection, version: int) -> int:
        """Store a new ceiling, which holds once that is committed."""
        ceiling = version + _CEILING_STEP
        connection.execute("UPDATE clock SET ceiling = ?", (ceiling,))
        return ceiling

    def _keep_short(self, connection: sqlite3.Connection, version: int) -> None:
        """About once a second, see that readers have not let SQLite's write-ahead log grow.

        The commit has taken place: if this fails, it is for the next one to try again.
        """
        if version < self._next_checkpoint:
            return
        self._next_checkpoint = version + VERSIONS_PER_SECOND
        try:
            if self._write_ahead_log.stat().st_size > _WAL_TOO_LONG:
                connection.execute("PRAGMA busy_timeout = 50")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (sqlite3.Error, OSError) as error:
            logger.warning("%s: the write-ahead log cannot be shortened: %s", self.path, error)
        finally:
            connection.execute("PRAGMA busy_timeout = 30000")

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._closed:
            connection.close()
            return
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._idle.append(connection)
