"""Snapshots and commits: optimistic concurrency on SQLite.

A commit stores its version and write conflict ranges as a row, with the data, and compares its
reads with the rows since its snapshot. See `docs/design/embedded-engine.md`.
"""

from __future__ import annotations

import _thread
import ctypes
import logging
import os
import shutil
import sqlite3
import sys
import time
from contextlib import ExitStack, closing, suppress
from copy import copy
from math import inf, isfinite
from pathlib import Path
from typing import ClassVar, TypeAlias
from weakref import ref

from fdbqueue.embedded.arguments import TRANSACTION_LIFETIME, VERSIONS_PER_SECOND
from fdbqueue.embedded.directory import (
    DATABASE_FILE,
    INDEX_FILE,
    LOCK_FILE,
    LOG_FILE,
    open_directory,
)
from fdbqueue.embedded.mutations import Mutation
from fdbqueue.embedded.ranges import Range
from fdbqueue.embedded.storage import tables
from fdbqueue.embedded.storage.connection import LONG_LOG, Connection, explained, storage_errors
from fdbqueue.embedded.storage.files import (
    OpenFiles,
    memory_directory,
    open_database,
    prepare_directory,
)
from fdbqueue.embedded.storage.lock import WritersLock, inside, lock_owners
from fdbqueue.embedded.storage.sync import Sync
from fdbqueue.errors import DatabaseClosed, FDBError, LockTimeout, StorageError

_RECENT = VERSIONS_PER_SECOND // 100  # a read version may be so old
_LONGEST_LOOK = 0.1  # seconds to wait for the lock to learn a newer one
_LOOK = 0.25  # seconds between two looks at old snapshots and at the files
_CLOSE_WITHIN = 1.0  # seconds for which closing waits for a reading thread
_WARNING = 60.0  # seconds between two warnings of a long log
_INTERRUPTED = "a signal handler cannot commit if it has interrupted a commit"
_FORKED = "this process was forked from one that had a database open"
_SPAWN = "open databases after the fork, or start processes with 'spawn'"
_READ_LOCKS = range(123, 128)  # the bytes of the -shm file that readers of the log lock

logger = logging.getLogger("fdbqueue")

Changes: TypeAlias = tuple[list[Range], list[Mutation], list[bytes]]
"""Read conflict ranges, writes in order, and packed write conflict ranges."""

_storages: set[ref[Storage]] = set()
_inherited: list[Storage] = []
"""The parent's open storages at the fork."""


def _leave() -> None:
    for reference in _storages.copy():
        if (storage := reference()) is not None and storage.is_open:
            storage.leave()
            _inherited.append(storage)
    inside.release()


# SQLite tracks its locks in the memory of the process. In a child, that memory describes locks that
# only the parent has, and a thread that does not exist may hold its mutexes.
os.register_at_fork(before=inside.acquire, after_in_parent=inside.release, after_in_child=_leave)


class Storage:
    """One directory, opened by this process: connections, lock and clock."""

    # At most one section runs in a process, because it holds `inside`.
    _section: ClassVar[Connection | None] = None
    """The connection of the section that runs, or that an interrupt has left."""

    def __init__(self, path: Path | None, durable: bool, create: bool) -> None:
        if _inherited:
            raise StorageError(str(path or "memory:"), _FORKED, _SPAWN)
        self._is_private = path is None
        self.path = memory_directory() if path is None else path
        self.is_open = True
        # Weak references: a connection that a transaction has dropped is closed.
        self._connections: set[ref[Connection]] = set()
        self._idle: list[Connection] = []
        self._next_warning = 0.0
        with storage_errors(self.path), inside, ExitStack() as undo:
            prepare_directory(self.path, create or path is None)
            self._directory = open_directory(self.path)
            undo.callback(self._directory.close)
            open_database(self.path, self._directory.fileno())
            self.lock = WritersLock(self.path / LOCK_FILE)
            undo.callback(self.lock.close, DatabaseClosed())
            # As long as it is open, no other connection is the last one to close, which would
            # remove SQLite's log.
            self._anchor = Connection(self.path / DATABASE_FILE)
            undo.callback(self._anchor.close)
            self._shift = tables.shift_of_versions(self._anchor)
            self.sync = Sync(self.path, durable)
            self._files = OpenFiles(self.path)
            if durable:
                os.fsync(self._directory.fileno())
            undo.pop_all()
            # When a storage is gone, a `WeakSet` would run Python code, which would lose an
            # interrupt.
            _storages.add(ref(self, _storages.discard))
        _thread.start_new_thread(_look_after, (ref(self),))

    # Closing and forks

    def close(self) -> None:
        """Close everything. After an interrupt, another call completes this."""
        if self in _inherited:
            return
        if self.is_open:
            self._close_files()
        if self._is_private:
            shutil.rmtree(self.path, ignore_errors=True)

    def _close_files(self) -> None:
        with inside:
            self._undo()
            file = self.lock.close(DatabaseClosed())
        self.sync.close()
        with inside:
            # An interrupt may have left a read unfinished; then its connection is abandoned.
            for connection in self._open_connections():
                connection.expire(inf, 1025, _CLOSE_WITHIN)
            self._idle.clear()
            if self._must_not_close():
                # Never closed, not even when the process ends.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._anchor))
            else:
                self._anchor.close()
            self._directory.close()
            self.is_open = False
        del file  # watches notice that, and find everything closed

    def _must_not_close(self) -> bool:
        """Return whether closing the last connection would do harm.

        After a failed sync, SQLite would write the log into the database; after a replacement, it
        would remove another file with the log's name.
        """
        with suppress(StorageError, OSError):
            self._files.check()
            return not isinstance(self.sync.failure, DatabaseClosed)
        return True

    def leave(self) -> None:
        """In a forked child, refuse everything and drop the parent's locks."""
        self.sync.failure = StorageError(str(self.path), _FORKED, _SPAWN)
        # Its descriptors would keep the locks of its parent.
        if (file := self.lock.close(self.sync.failure)) is not None:
            file.close()
        self._directory.close()
        self._idle += self._open_connections()  # closing one would call SQLite
        for connection in self._idle:
            connection.expires = -inf

    # Connections

    def _connect(self) -> Connection:
        with inside, storage_errors(self.path):
            if self.sync.failure is not None:
                raise copy(self.sync.failure)
            connection = Connection(self.path / DATABASE_FILE)
            self._connections.add(ref(connection, self._connections.discard))
            return connection

    def _open_connections(self) -> list[Connection]:
        found = [reference() for reference in self._connections.copy()]
        return [connection for connection in found if connection is not None]

    # Reading

    def begin(
        self, deadline: float | None = None, is_ahead: bool = False, version: int | None = None
    ) -> Connection:
        """Return a snapshot of the newest version, before it is on disk if `is_ahead`.

        Raises:
            FDBError: 1009, `version` is in the future. 1007, it is before the last commit.
        """
        if self.sync.failure is not None:
            raise copy(self.sync.failure)
        try:
            snapshot = self._idle.pop()
        except IndexError:
            snapshot = self._connect()
        try:
            with snapshot.busy:
                if snapshot.expires < 0:
                    raise FDBError(snapshot.over)
                snapshot.expires = time.monotonic() + TRANSACTION_LIFETIME
                snapshot.execute("BEGIN")
                [(snapshot.version,)] = snapshot.execute(tables.NEWEST).fetchall()
            if version is not None:
                if version > snapshot.version and version >= self._now():
                    raise FDBError(1009)
                if snapshot.version > version:
                    raise FDBError(1007)
            if not is_ahead:
                self.sync.wait(snapshot.version, deadline)
        except BaseException as error:
            self.end(snapshot)
            if isinstance(error, sqlite3.Error):
                raise explained(self.path, error) from error
            raise
        return snapshot

    def end(self, snapshot: Connection | None) -> None:
        """Release a snapshot, if any."""
        if snapshot is None or snapshot is Storage._section:  # which an interrupt has left
            return
        with snapshot.busy:
            if not isfinite(snapshot.expires):
                return
            snapshot.expires = inf
            try:
                if snapshot.in_transaction:
                    snapshot.execute("ROLLBACK")
                if self.is_open:  # and was not closed while it was read
                    self._idle.append(snapshot)
                    return
            except sqlite3.Error:
                pass
        snapshot.expire(inf, 1025)

    def read_version(self, snapshot: Connection) -> int:
        """Return a version at which the database was as the snapshot sees it.

        It is below each commit that the snapshot does not see, and not older than ten milliseconds,
        unless another process stops in its commit. While nobody commits, it can be the present:
        later commits take theirs from the clock.
        """
        seen = snapshot.version

        def look() -> int:
            now = self._now() - 1
            [(following,)] = self._anchor.execute(tables.FOLLOWING, (seen,)).fetchall()
            return max(seen, now) if following is None else following - 1

        if time.monotonic_ns() // 1000 + self._shift - seen > _RECENT:
            with storage_errors(self.path), suppress(LockTimeout):
                return self.lock.run(look, time.monotonic() + _LONGEST_LOOK)
        return seen

    def _now(self) -> int:
        return time.monotonic_ns() // 1000 + self._shift

    def check_integrity(self, seconds: float | None) -> bool:
        """Check the database; return whether that ended in time."""
        with storage_errors(self.path), closing(self._connect()) as connection, connection.busy:
            return connection.check_integrity(seconds)

    # Committing

    def commit(self, snapshot: Connection, changes: Changes) -> int:
        """Commit, as a section of the lock; return the version. The caller ends the snapshot.

        Raises:
            FDBError: 1020, a key of the read conflict ranges was written since the snapshot.
                1007, the snapshot is more than five seconds old.
        """
        if self.sync.failure is not None:
            raise copy(self.sync.failure)
        if Storage._section is not None and not self._undo():
            raise StorageError(str(self.path), _INTERRUPTED, "let it set a flag, and commit later")
        with snapshot.busy:
            if time.monotonic() > snapshot.expires:
                raise FDBError(snapshot.over)
            Storage._section = snapshot
            try:
                self._files.check()
                version = self._write(snapshot, changes)
                snapshot.execute("COMMIT")
            except BaseException as error:
                self._roll_back(snapshot)
                if not isinstance(error, (sqlite3.Error, OSError)):
                    raise
                failure = explained(self.path, error)
                if "I/O error" in failure.problem:
                    failure = self.sync.fail()  # it may have been a sync of SQLite
                raise failure from error
            Storage._section = None
        self.sync.newest = version
        self.lock.tell_of_commit()
        return version

    @classmethod
    def _undo(cls) -> bool:
        """Undo a section that an interrupt has left; false if it continues after the interrupt."""
        if cls._section is not None:
            frame = sys._getframe(1).f_back
            while frame is not None and frame.f_code is not cls.commit.__code__:
                frame = frame.f_back
            if frame is None:
                cls._roll_back(cls._section)
        return cls._section is None

    @staticmethod
    def _roll_back(connection: Connection) -> None:
        with suppress(sqlite3.Error):  # there may be nothing to roll back
            connection.execute("ROLLBACK")
        Storage._section = None

    def _write(self, connection: Connection, changes: Changes) -> int:
        """Write the mutations and the row of the commit if nothing conflicts; return its version.

        After other commits, SQLite refuses to continue by writing ("locked").
        """
        reads, mutations, writes = changes
        last = connection.version
        goes_on = connection.in_transaction
        while True:
            if not goes_on:
                connection.execute("BEGIN IMMEDIATE")
                (last,) = connection.execute(tables.NEWEST).fetchone()
                if reads and last != connection.version:
                    tables.compare(connection, connection.version, reads)
            version: int = max(last + 1, time.monotonic_ns() // 1000 + self._shift)
            try:
                tables.apply(connection, mutations, version, writes)
            except sqlite3.OperationalError as error:
                if not goes_on or "locked" not in str(error):
                    raise
                goes_on = False
                connection.execute("ROLLBACK")
            else:
                return version

    # Periodic work

    def look_after(self) -> bool:
        """End old snapshots and check the files; return false once closed."""
        # SQLite cannot restart its log while there are old snapshots.
        now = time.monotonic()
        for connection in self._open_connections():
            connection.expire(now)
        self.lock.warn_of_wait()
        with inside, suppress(OSError):  # temporarily unreadable
            if self.is_open and self.sync.failure is None:
                self._undo()
                self.lock.release()  # which an interrupt may have left
                try:
                    self._files.check()
                    self._warn_of_long_log()
                except StorageError as error:
                    self.sync.failure = error
        return self.is_open

    def _warn_of_long_log(self) -> None:
        """Warn if SQLite cannot restart its log, and name its readers."""
        log = self.path / LOG_FILE
        size = log.stat().st_size
        now = time.monotonic()
        if size <= 2 * LONG_LOG or now < self._next_warning:
            return
        self._next_warning = now + _WARNING
        owners = lock_owners(self.path / INDEX_FILE, "POSIX", "READ", _READ_LOCKS)
        stopped = [process for process, is_stopped in owners.items() if is_stopped]
        readers = ", ".join(map(str, stopped or owners)) or "unknown to this system"
        logger.warning(
            "%s has %d MB and grows until the processes that read it go on or end: %s%s",
            *(log, size >> 20, "stopped: " if stopped else "", readers),
        )


def _look_after(reference: ref[Storage]) -> None:
    """Look after a storage in a thread, which no signal handler interrupts."""
    while (storage := reference()) is not None and storage.look_after():
        del storage
        time.sleep(_LOOK)
