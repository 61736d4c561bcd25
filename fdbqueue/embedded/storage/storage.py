"""Snapshots of the database and commits: optimistic concurrency on SQLite.

A snapshot is a read transaction of SQLite. Each commit stores its write conflict ranges as a row of
a table, in the SQLite transaction that writes the data. So a commit that is in the database is in
the table, whatever is killed when. At commit, if no other transaction committed since, the same
connection continues by writing. Otherwise the reads are compared with the rows since the snapshot.

The version of a commit is the key of its row. Versions follow the machine's clock (`clock.py`).
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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeAlias
from weakref import ref

from fdbqueue.embedded.limits import VERSIONS_PER_SECOND
from fdbqueue.embedded.mutations import Mutation
from fdbqueue.embedded.permissions import open_directory
from fdbqueue.embedded.ranges import Range
from fdbqueue.embedded.storage import commits, key_values
from fdbqueue.embedded.storage.connection import LONG_LOG, Connection
from fdbqueue.embedded.storage.faults import explained, storage_errors
from fdbqueue.embedded.storage.files import (
    OpenFiles,
    memory_directory,
    open_database,
    prepare_directory,
)
from fdbqueue.embedded.storage.integrity import check_integrity
from fdbqueue.embedded.storage.lock import WritersLock, inside, lock_owners
from fdbqueue.embedded.storage.names import DATABASE_FILE, INDEX_FILE, LOCK_FILE, LOG_FILE
from fdbqueue.embedded.storage.sync import Sync
from fdbqueue.errors import (
    CommitUnknownResult,
    DatabaseClosed,
    FDBError,
    FdbqueueError,
    LockTimeout,
    StorageError,
)

_RECENT = VERSIONS_PER_SECOND // 100  # a read version may be so old
_LONGEST_LOOK = 0.1  # seconds to wait for the lock to learn a newer one
_LOOK = 0.25  # seconds between two looks at old snapshots and at the files
_CLOSE_WITHIN = 1.0  # seconds for which closing waits for a reading thread
_WARNING = 60.0  # seconds between two warnings of a long log
_INTERRUPTED = "a signal handler cannot commit if it has interrupted a commit"
_READ_LOCKS = range(123, 128)  # the bytes of the -shm file that readers of the log lock

logger = logging.getLogger("fdbqueue")


_storages: set[ref[Storage]] = set()


def _before_fork() -> None:
    inside.acquire()
    for reference in _storages.copy():
        if (storage := reference()) is not None:
            storage.close_files()


os.register_at_fork(
    before=_before_fork, after_in_parent=inside.release, after_in_child=inside.release
)


Changes: TypeAlias = tuple[list[Range], list[Mutation], list[bytes]]
"""The content of a commit: its read conflict ranges, its writes in order, and its write conflict
ranges, as `pack_ranges` takes them."""


class Storage:
    """One directory, opened by this process: connections, lock and clock.

    A fork closes the files, and the next use opens them again, in the parent and in the child.
    """

    # At most one section runs in a process, because it holds `inside`.
    _section: ClassVar[Connection | None] = None
    """The connection of the section that runs, or that an interrupt has left."""

    def __init__(self, path: Path | None, durable: bool, create: bool) -> None:
        """Open the directory, or a private one in memory if `path` is `None`."""
        self._owner = os.getpid() if path is None else 0
        """The process that removes the directory in the end."""
        self.path = memory_directory() if path is None else path
        self.is_durable = durable
        """True if commits wait for the disk."""
        self.is_closed = False
        # Weak references: a connection that a transaction has dropped is closed.
        self._connections: set[ref[Connection]] = set()
        self._idle: list[Connection] = []
        self._next_warning = 0.0
        with storage_errors(self.path), inside:
            prepare_directory(self.path, create or path is None)
            self._open()
            # When a storage is gone, a `WeakSet` would run Python code, which would lose an
            # interrupt.
            _storages.add(ref(self, _storages.discard))

    def _open(self) -> None:
        with ExitStack() as undo:
            directory = open_directory(self.path)
            undo.callback(directory.close)
            self._shift = open_database(self.path, directory.fileno())
            self.lock = WritersLock(self.path / LOCK_FILE)
            # As long as it is open, no other connection is the last one to close, which would
            # remove SQLite's log.
            anchor = Connection(self.path / DATABASE_FILE)
            undo.callback(anchor.close)
            anchor.execute(commits.NEWEST).fetchall()
            self._sync = Sync(self.path)
            self._files = OpenFiles(self.path)
            if self.is_durable:
                os.fsync(directory.fileno())
            undo.pop_all()
        self._directory = directory
        self._anchor: Connection | None = anchor
        _thread.start_new_thread(_look_after, (ref(self), self.lock))

    # Closing and forks

    def close(self) -> None:
        """Close every connection and remove a `memory:` directory.

        After an interrupt, another call does the rest.
        """
        self.is_closed = True
        self.close_files()
        self._directory.close()
        if self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)

    def close_files(self) -> None:
        """Close the files, for good or before a fork.

        The lock of the directory stays: another process might take it for abandoned.

        SQLite tracks its locks in the process's memory; in a child, that memory would describe
        locks that only the parent holds. Open transactions then fail with 1007.
        """
        anchor = self._anchor
        if anchor is None:
            return
        self.lock.close()
        self._sync.close()
        with inside:
            self._undo()
            # An interrupt may have left a read unfinished; then its connection is abandoned.
            for connection in self._opened():
                connection.shut(_CLOSE_WITHIN, self.is_closed)
            self._idle.clear()
            if self._must_not_close():
                # Never closed, not even when the process ends.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(anchor))
            else:
                anchor.close()
            self._anchor = None

    def _must_not_close(self) -> bool:
        """Return whether closing the last connection would do harm.

        After a failed sync, SQLite would write the log into the database. If files were replaced,
        it would remove the file that now has the log's name.
        """
        with suppress(StorageError, OSError):
            self._files.check()
            return self._sync.failure is not None
        return True

    def _check(self) -> None:
        """Raise why the database cannot be used. After a fork, open it first."""
        if self.is_closed:
            raise DatabaseClosed()
        if self._sync.failure is not None:
            raise copy(self._sync.failure)
        if self._anchor is None:
            with inside, storage_errors(self.path):
                # Meanwhile another thread may have opened it, or closed it for good.
                if self._anchor is None and not self.is_closed:
                    self._open()

    # Connections

    def _take(self) -> Connection:
        """Return a connection that is not in use."""
        try:
            return self._idle.pop()
        except IndexError:
            with inside, storage_errors(self.path):
                self._check()
                connection = Connection(self.path / DATABASE_FILE)
                self._connections.add(ref(connection, self._connections.discard))
                return connection

    def _opened(self) -> list[Connection]:
        """Return all connections but the anchor."""
        found = [reference() for reference in self._connections.copy()]
        return [connection for connection in found if connection is not None]

    # Reading

    def begin(
        self, deadline: float | None = None, is_ahead: bool = False, version: int | None = None
    ) -> Connection:
        """Return a snapshot of the newest version.

        Args:
            deadline: When to stop waiting for the disk, by `time.monotonic()`; `None` for never.
            is_ahead: Whether to return before the snapshot is on disk.
            version: The version that the caller wants to read.

        Raises:
            FDBError: 1009 for a version in the future. 1007 for a version before the last commit,
                whose state is gone because SQLite keeps no history.
        """
        self._check()
        snapshot = self._take()
        try:
            snapshot.begin()
            if version is not None:
                if version > snapshot.version and version >= self._now():
                    raise FDBError(1009)
                if snapshot.version > version:
                    raise FDBError(1007)
            if self.is_durable and not is_ahead and snapshot.version > self._sync.covered:
                self._wait_for_disk(snapshot.version, deadline)
        except BaseException:
            self.end(snapshot)
            raise
        return snapshot

    def end(self, snapshot: Connection | None) -> None:
        """Release a snapshot, if there is one."""
        if snapshot is not None and snapshot.end():
            self._idle.append(snapshot)
            if self._anchor is None:  # closed while it was read
                snapshot.shut(0, self.is_closed)

    def confirmation(
        self, snapshot: Connection | None, deadline: float | None = None
    ) -> Callable[[], None] | None:
        """Return a function that waits until what a snapshot sees is on disk; `None` if it is.

        The function raises `SyncFailed` if the disk does not confirm it, and 1031 if it does not
        before the deadline.
        """
        if snapshot is None or not self.is_durable or snapshot.version <= self._sync.covered:
            return None
        return partial(self._wait_for_disk, snapshot.version, deadline)

    def _wait_for_disk(self, version: int, deadline: float | None) -> None:
        while True:
            try:
                return self._sync.wait(version, deadline)
            except DatabaseClosed:
                self._check()  # unless a fork has closed it

    def read_version(self, snapshot: Connection) -> int:
        """Return a version at which the database was as the snapshot sees it.

        It is below the version of each commit that the snapshot does not see. It is not older than
        the newest commit, nor than ten milliseconds, unless another process stops in its commit.
        A look while nobody commits tells whether the present moment is such a version: later
        commits take theirs from the clock.
        """
        seen = snapshot.version

        def look() -> int:
            now = self._now() - 1
            assert self._anchor is not None  # otherwise the lock is closed
            [(following,)] = self._anchor.execute(commits.FOLLOWING, (seen,)).fetchall()
            return max(seen, now) if following is None else following - 1

        if self._now() - seen > _RECENT:
            with storage_errors(self.path), suppress(LockTimeout):
                return self.lock.run(look, time.monotonic() + _LONGEST_LOOK)
        return seen

    def _now(self) -> int:
        """Return the version of a commit at this moment."""
        return time.monotonic_ns() // 1000 + self._shift

    def check_age(self, version: int) -> None:
        """Raise 1007 if a transaction at a version that the caller names is too old to commit."""
        if version < self._now() - commits.LIFETIME:
            raise FDBError(1007)

    def check_integrity(self, seconds: float | None) -> bool:
        """Check the whole database for damage; return whether that took at most these seconds."""
        snapshot = self.begin()
        try:
            with storage_errors(self.path), snapshot.busy:
                return check_integrity(snapshot, self.path / DATABASE_FILE, seconds)
        finally:
            self.end(snapshot)

    # Committing

    def commit(
        self, snapshot: Connection | None, changes: Changes, deadline: float | None
    ) -> tuple[int, Callable[[], None] | None]:
        """Commit and return the version. The snapshot is ended in any case.

        Also return a function that waits until the commit is on disk, or `None` if it need not be.
        The function raises `CommitUnknownResult` if the disk does not confirm it.

        Args:
            snapshot: The snapshot of the transaction; `None` if it has read nothing.
            changes: What to commit.
            deadline: When to stop waiting for the lock, by `time.monotonic()`; `None` for never.

        Raises:
            FDBError: 1020, a key of the read conflict ranges was written since the snapshot. 1007,
                the snapshot is more than five seconds old. 1031, another process held the writers'
                lock until the deadline.
        """
        self._check()
        # Other transactions commit during a wait, so it could not continue on its connection.
        before_wait = bool if snapshot is None else snapshot.release
        try:
            version = self.lock.run(partial(self._commit, snapshot, changes), deadline, before_wait)
        finally:
            if Storage._section is not snapshot:  # otherwise an interrupt has left it
                self.end(snapshot)
        wait = partial(self._wait_for_commit, version, deadline) if self.is_durable else None
        return version, wait

    def _wait_for_commit(self, version: int, deadline: float | None) -> None:
        """Return once a commit is on disk.

        Raises:
            CommitUnknownResult: The disk did not confirm it before the deadline.
        """
        try:
            self._wait_for_disk(version, deadline)
        except FdbqueueError as error:
            raise CommitUnknownResult(str(self.path), str(error)) from error

    def _commit(self, snapshot: Connection | None, changes: Changes) -> int:
        """Commit as a section."""
        self._undo()
        if Storage._section is not None:
            raise StorageError(str(self.path), _INTERRUPTED, "let it set a flag, and commit later")
        connection = self._take() if snapshot is None else snapshot
        connection.claim()
        Storage._section = connection
        try:
            self._files.check()
            version = self._write(connection, changes)
            connection.execute("COMMIT")
        except BaseException as error:
            self._undo()
            if snapshot is None:
                self.end(connection)
            if not isinstance(error, (sqlite3.Error, OSError)):
                raise
            failure = explained(self.path, error)
            if "I/O error" in failure.problem:
                failure = self._sync.fail()  # it may have been a sync of SQLite
            raise failure from error
        Storage._section = None
        if self.is_durable:
            self._sync.newest = version
        self.lock.tell_of_commit()
        if snapshot is None:
            self.end(connection)
        return version

    @staticmethod
    def _undo() -> None:
        """Undo the remains of a section that failed or was interrupted at any point.

        If an interrupt comes before the rollback, the next call finds the connection again. The
        next section begins with one, even that of another storage, which would wait for SQLite's
        lock otherwise. A section that a signal handler or a finalizer has interrupted goes on.
        """
        if Storage._section is not None:
            frame = sys._getframe(2).f_back
            while frame is not None and frame.f_code is not Storage._commit.__code__:
                frame = frame.f_back
            if frame is None:
                with suppress(sqlite3.Error):  # there may be nothing to roll back
                    Storage._section.execute("ROLLBACK")
                Storage._section = None

    def _write(self, connection: Connection, changes: Changes) -> int:
        """Write the mutations and the row of the commit if nothing conflicts; return its version.

        If no transaction committed since the snapshot, its connection continues by writing. If it
        does not read the newest state, SQLite refuses that ("locked").
        """
        reads, mutations, writes = changes
        last = connection.version
        goes_on = connection.in_transaction
        while True:
            if not goes_on:
                connection.execute("BEGIN IMMEDIATE")
                (last,) = connection.execute(commits.NEWEST).fetchone()
                if reads and last != connection.version:
                    commits.compare(connection, connection.version, reads)
            version: int = max(last + 1, self._now())
            try:
                stamped = key_values.apply(connection, mutations, version)
                commits.note(connection, version, writes + stamped)
            except sqlite3.OperationalError as error:
                if not goes_on or "locked" not in str(error):
                    raise
                goes_on = False
                connection.execute("ROLLBACK")
            else:
                break
        return version

    # Periodic work

    def look_after(self, lock: WritersLock) -> bool:
        """End old snapshots and look at the files; return false once they were closed."""
        # SQLite cannot restart its log while there are old snapshots.
        now = time.monotonic()
        for connection in self._opened():
            connection.expire(now)
        lock.warn_of_wait()
        with inside:
            if self._anchor is None or self.lock is not lock:
                return False
            self._undo()
            lock.release()  # which an interrupt may have left
            try:
                self._files.check()
                self._warn_of_long_log()
            except OSError:
                pass  # temporarily unreadable
            except StorageError as error:
                self._sync.failure = error
        return True

    def _warn_of_long_log(self) -> None:
        """Warn if SQLite cannot restart its log, and name the processes that read it."""
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


def _look_after(reference: ref[Storage], lock: WritersLock) -> None:
    """Look after a storage, in a thread of its own, which no signal handler interrupts."""
    while (storage := reference()) is not None and storage.look_after(lock):
        del storage
        time.sleep(_LOOK)
