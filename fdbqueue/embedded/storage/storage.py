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
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from pathlib import Path
from weakref import ref

from fdbqueue.embedded.limits import TRANSACTION_LIFETIME, VERSIONS_PER_SECOND
from fdbqueue.embedded.mutations import Mutation
from fdbqueue.embedded.permissions import open_directory
from fdbqueue.embedded.ranges import Range, RangeSet, pack_ranges, unpack_ranges
from fdbqueue.embedded.storage import writer
from fdbqueue.embedded.storage.clock import NEWEST, microseconds
from fdbqueue.embedded.storage.faults import explained, storage_errors
from fdbqueue.embedded.storage.files import (
    LONG_LOG,
    OpenFiles,
    connect,
    memory_directory,
    open_database,
    prepare_directory,
)
from fdbqueue.embedded.storage.integrity import check_integrity
from fdbqueue.embedded.storage.lock import WritersLock, inside, lock_owners
from fdbqueue.embedded.storage.names import DATABASE_FILE, INDEX_FILE, LOCK_FILE, LOG_FILE
from fdbqueue.embedded.storage.snapshot import Snapshot
from fdbqueue.embedded.storage.sync import Sync
from fdbqueue.errors import (
    CommitUnknownResult,
    DatabaseClosed,
    FDBError,
    FdbqueueError,
    LockTimeout,
    StorageError,
)

_LIFETIME = int(TRANSACTION_LIFETIME * VERSIONS_PER_SECOND)
_SINCE = "SELECT version, writes FROM commits WHERE version >= ? ORDER BY version"
_NEXT = "SELECT min(version) FROM commits WHERE version > ?"
_NOTE = "INSERT INTO commits VALUES (?, ?)"
# The newest of the rows that are too old stays: a snapshot at it may have begun a moment ago.
_FORGET = "DELETE FROM commits WHERE version < (SELECT max(version) FROM commits WHERE version < ?)"
_FORGET_EVERY = 64  # commits

_RECENT = VERSIONS_PER_SECOND // 100  # a read version may be so old
_LONGEST_LOOK = 0.1  # seconds to wait for the lock to learn a newer one
_LOOK = 0.25  # seconds between two looks at old snapshots and at the files
_CLOSE_WITHIN = 1.0  # seconds for which closing waits for a reading thread
_WARNING = 60.0  # seconds between two warnings of a long log
_READ_LOCKS = range(123, 128)  # the bytes of the -shm file that readers of the log lock

logger = logging.getLogger("fdbqueue")


_storages: set[ref[Storage]] = set()


def _before_fork() -> None:
    inside.acquire()
    for reference in _storages.copy():
        if (storage := reference()) is not None:
            storage.before_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=inside.release, after_in_child=inside.release
)


class Storage:
    """One directory, opened by this process: connections, lock and clock."""

    def __init__(self, path: Path | None, durable: bool, create: bool) -> None:
        """Open the directory, or a private one in memory if `path` is `None`."""
        self._owner = os.getpid() if path is None else 0
        """The process that removes the directory in the end."""
        self.path = memory_directory() if path is None else path
        self.is_durable = durable
        """True if commits wait for the disk."""
        self.is_closed = False
        self._was_forked = False
        self._trouble: StorageError | None = None
        """Why nothing can be read or committed any more."""
        # Weak references: the connection of a snapshot that nothing refers to any more is closed.
        self._active: dict[int, ref[Snapshot]] = {}
        self._idle: list[sqlite3.Connection] = []
        self._writing: sqlite3.Connection | None = None
        self._commits = self._openings = 0
        self._next_warning = 0.0
        with storage_errors(self.path), inside:
            prepare_directory(self.path, create or path is None)
            self._open()
        # When a storage is gone, a `WeakSet` would run Python code, which would lose an interrupt.
        _storages.add(ref(self, _storages.discard))

    def _open(self) -> None:
        path = self.path
        with ExitStack() as undo:
            directory = open_directory(path)
            undo.callback(directory.close)
            self._shift = open_database(path, directory.fileno())
            self.lock = WritersLock(path / LOCK_FILE)
            undo.callback(self.lock.close)
            # Never used: as long as it is open, no other connection is the last one to close, which
            # would remove SQLite's log.
            anchor = connect(path / DATABASE_FILE)
            undo.callback(anchor.close)
            anchor.execute(NEWEST).fetchall()
            self._sync = Sync(path)
            self._files = OpenFiles(path)
            if self.is_durable:
                os.fsync(directory.fileno())
            undo.pop_all()
        self._directory = directory
        self._anchor: sqlite3.Connection | None = anchor
        self._openings += 1
        _thread.start_new_thread(_look_after, (ref(self), self._openings))

    # Closing and forks

    def close(self) -> None:
        """Close every connection and remove a `memory:` directory.

        After an interrupt, another call does the rest.
        """
        self.is_closed = True
        self._close_files()
        self._directory.close()
        if self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)

    def before_fork(self) -> None:
        """Close the files. The next use opens them again, in the parent and in the child.

        The lock of the directory stays: another process might take it for abandoned.

        SQLite tracks its locks in the process's memory; in a child, that memory would describe
        locks that only the parent holds. Open transactions then fail with 1007.
        """
        if not self.is_closed and not self._was_forked:
            self._was_forked = True
            self._close_files()

    def _close_files(self) -> None:
        if self._anchor is None:
            return
        self.lock.close()
        self._undo()
        self._sync.close()
        must_stay = self._must_not_close()
        if must_stay:
            # Never closed, not even when the process ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._anchor))
        for snapshot in self._snapshots():
            snapshot.expire()
            # An interrupt may have left a read unfinished; then its connection is abandoned.
            if snapshot.busy.acquire(timeout=_CLOSE_WITHIN):
                self.end(snapshot)
                snapshot.busy.release()
        self._close_idle()
        if not must_stay:
            self._anchor.close()
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
        if self._trouble is not None:
            raise copy(self._trouble)
        if self._was_forked:
            with inside, storage_errors(self.path):
                if self._was_forked:  # and no other thread has opened it meanwhile
                    self._open()
                    self._was_forked = False

    # Connections

    def _take(self) -> sqlite3.Connection:
        """Return a connection that is not in use."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        if self.is_closed:
            raise DatabaseClosed()
        try:
            with inside:
                return connect(self.path / DATABASE_FILE)
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def _give_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
        else:
            self._idle.append(connection)
        if self.is_closed:
            self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def failure(self, error: sqlite3.Error | OSError) -> Exception:
        """Return the error to raise for an error of SQLite or of the system."""
        if self.is_closed:
            return DatabaseClosed()
        if isinstance(error, sqlite3.ProgrammingError):
            return FDBError(1025)  # an expired snapshot was closed
        return explained(self.path, error)

    # Reading

    def begin(
        self, deadline: float | None = None, is_ahead: bool = False, version: int | None = None
    ) -> Snapshot:
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
        snapshot = Snapshot(self, self._take())
        # From here on the snapshot expires in time, wherever this thread is interrupted. What is
        # called when it is gone is not written in Python, so it runs no signal handler, whose
        # exception would be lost.
        number = id(snapshot)
        self._active[number] = ref(snapshot, partial(self._active.pop, number))
        try:
            snapshot.begin()
            if version is not None:
                if version > snapshot.version and version >= microseconds() + self._shift:
                    raise FDBError(1009)
                if snapshot.version > version:
                    raise FDBError(1007)
            if not is_ahead and (wait := self.confirmation(snapshot, deadline)) is not None:
                wait()
        except BaseException:
            self.end(snapshot)
            raise
        return snapshot

    def end(self, snapshot: Snapshot) -> None:
        """Release a snapshot."""
        if self._active.pop(id(snapshot), None) is not None:
            self._give_back(snapshot.connection)

    def _snapshots(self) -> list[Snapshot]:
        """Return the snapshots that are not ended."""
        found = [reference() for reference in self._active.copy().values()]
        return [snapshot for snapshot in found if snapshot is not None]

    def confirmation(
        self, snapshot: Snapshot, deadline: float | None = None
    ) -> Callable[[], None] | None:
        """Return a function that waits until what a snapshot sees is on disk; `None` if it is.

        The function raises `SyncFailed` if the disk does not confirm it, and 1031 if it does not
        before the deadline.
        """
        if not self.is_durable or self._sync.covers(snapshot.version):
            return None
        return partial(self._wait_for_disk, snapshot.version, deadline)

    def _wait_for_disk(self, version: int, deadline: float | None) -> None:
        while True:
            try:
                return self._sync.wait(version, deadline)
            except DatabaseClosed:
                self._check()  # unless a fork has closed it
            except StorageError as error:
                self._trouble = error
                raise

    def read_version(self, snapshot: Snapshot) -> int:
        """Return a version at which the database was as the snapshot sees it.

        It is below the version of each commit that the snapshot does not see. It is not older than
        the newest commit, nor than ten milliseconds, unless another process stops in its commit.
        A look while nobody commits tells whether the present moment is such a version: later
        commits take theirs from the clock.
        """
        found = seen = snapshot.version

        def look() -> None:
            nonlocal found
            now = microseconds() + self._shift - 1
            connection = self._take()
            try:
                (following,) = connection.execute(_NEXT, (seen,)).fetchone()
            finally:
                self._give_back(connection)
            found = max(seen, now) if following is None else following - 1

        if microseconds() + self._shift - seen > _RECENT:
            with storage_errors(self.path), suppress(LockTimeout):
                self.lock.run(look, time.monotonic() + _LONGEST_LOOK)
        return found

    def check_age(self, version: int) -> None:
        """Raise 1007 if a transaction at a version that the caller names is too old to commit."""
        if version < microseconds() + self._shift - _LIFETIME:
            raise FDBError(1007)

    def check_integrity(self, seconds: float | None) -> bool:
        """Check the whole database for damage; return whether that took at most these seconds."""
        snapshot = self.begin()
        try:
            with snapshot.busy:
                return check_integrity(snapshot.connection, self.path / DATABASE_FILE, seconds)
        except sqlite3.Error as error:
            raise self.failure(error) from error
        finally:
            self.end(snapshot)

    # Committing

    def commit(
        self,
        snapshot: Snapshot | None,
        reads: list[Range],
        mutations: list[Mutation],
        writes: list[bytes],
        deadline: float | None,
    ) -> tuple[int, Callable[[], None] | None]:
        """Commit and return the version. The snapshot is ended in any case.

        Also return a function that waits until the commit is on disk, or `None` if it need not be.
        The function raises `CommitUnknownResult` if the disk does not confirm it.

        Args:
            snapshot: The snapshot of the transaction; `None` if it has read nothing.
            reads: The read conflict ranges.
            mutations: The writes, in order.
            writes: The write conflict ranges, as `pack_ranges` takes them.
            deadline: When to stop waiting for the lock, by `time.monotonic()`; `None` for never.

        Raises:
            FDBError: 1020, a key of `reads` was written since the snapshot. 1007, the snapshot is
                more than five seconds old. 1031, another process held the writers' lock until the
                deadline.
        """
        self._check()
        section = partial(self._commit, snapshot, reads, mutations, writes)
        try:
            version = self.lock.run(section, deadline, partial(self._before_wait, snapshot))
        except BaseException:
            if snapshot is not None:
                self.end(snapshot)
            raise
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

    def _before_wait(self, snapshot: Snapshot | None) -> None:
        """End the reads of a transaction that waits to commit.

        Other transactions commit in the meantime, so it could not continue on its connection. As
        long as it reads, SQLite cannot restart its write-ahead log.
        """
        if snapshot is not None and id(snapshot) in self._active:
            snapshot.release()

    def _commit(
        self,
        snapshot: Snapshot | None,
        reads: list[Range],
        mutations: list[Mutation],
        writes: list[bytes],
    ) -> int:
        """Commit as a section."""
        self._undo()
        if snapshot is not None and self._active.pop(id(snapshot), None) is not None:
            connection = self._writing = snapshot.connection
        else:
            connection = self._writing = self._take()
        try:
            self._files.check()
            version = self._write(connection, snapshot, reads, mutations, writes)
            connection.execute("COMMIT")
        except BaseException as error:
            self._undo()
            if not isinstance(error, (sqlite3.Error, OSError)):
                raise
            failure = self.failure(error)
            if isinstance(failure, StorageError) and "I/O error" in failure.problem:
                self._trouble = failure = self._sync.fail()  # it may have been a sync of SQLite
            raise failure from error
        self._writing = None
        self._sync.note(version, self.is_durable)
        self.lock.tell_of_commit()
        self._give_back(connection)
        return version

    def _undo(self) -> None:
        """Undo the remains of a section that failed or was interrupted at any point."""
        connection, self._writing = self._writing, None
        if connection is not None:
            self._give_back(connection)

    def _write(
        self,
        connection: sqlite3.Connection,
        snapshot: Snapshot | None,
        reads: list[Range],
        mutations: list[Mutation],
        writes: list[bytes],
    ) -> int:
        """Write the mutations and the row of the commit if nothing conflicts; return its version.

        If no transaction committed since the snapshot, its connection continues by writing. If it
        does not read the newest state, SQLite refuses that ("locked").
        """
        if snapshot is not None and time.monotonic() > snapshot.expires:
            raise snapshot.too_old()
        seen = last = 0 if snapshot is None else snapshot.version
        goes_on = connection.in_transaction
        while True:
            if not goes_on:
                connection.execute("BEGIN IMMEDIATE")
                (last,) = connection.execute(NEWEST).fetchone()
                if snapshot is not None and reads and seen != last:
                    self._compare(connection, reads, seen)
            version: int = max(last + 1, microseconds() + self._shift)
            try:
                stamped = writer.apply(connection, mutations, version)
                connection.execute(_NOTE, (version, pack_ranges(writes + stamped)))
            except sqlite3.OperationalError as error:
                if not goes_on or "locked" not in str(error):
                    raise
                goes_on = False
                connection.execute("ROLLBACK")
            else:
                break
        self._commits += 1
        if self._commits % _FORGET_EVERY == 0:
            connection.execute(_FORGET, (version - _LIFETIME,))
        return version

    def _compare(self, connection: sqlite3.Connection, reads: list[Range], seen: int) -> None:
        """Compare the reads of a transaction with the commits after the newest that it has seen.

        Raises:
            FDBError: 1020, one of the commits wrote a key of `reads`. 1007, the rows of some of
                them may have been deleted.
        """
        lowest, highest = min(reads)[0], max(end for _, end in reads)
        keys: RangeSet | None = None
        # All rows at once: a statement that is not finished would outlive a rollback.
        (first, _), *rows = connection.execute(_SINCE, (seen,)).fetchall()
        if first != seen:
            raise FDBError(1007)
        for _, writes in rows:
            for begin, end in unpack_ranges(writes):
                # Compare with all reads at once: most commits write elsewhere.
                if begin < highest and lowest < end:
                    keys = keys or RangeSet(reads)
                    if keys.within(begin, end):
                        raise FDBError(1020)

    # Periodic work

    def look_after(self, opening: int) -> bool:
        """End old snapshots and look at the files; return false once they were closed."""
        self._end_old()
        self.lock.warn_of_wait()
        with inside:
            if self._anchor is None or self._openings != opening:
                return False
            self._undo()
            self.lock.release()  # which an interrupt may have left
            try:
                self._files.check()
                self._warn_of_long_log()
            except OSError:
                pass  # temporarily unreadable
            except StorageError as error:
                self._trouble = error
        return True

    def _end_old(self) -> None:
        """End the snapshots that are too old. SQLite cannot restart its log while they exist."""
        for snapshot in self._snapshots():
            if time.monotonic() > snapshot.expires and snapshot.busy.acquire(False):
                try:
                    snapshot.expire()
                    self.end(snapshot)
                finally:
                    snapshot.busy.release()

    def _warn_of_long_log(self) -> None:
        """Warn if SQLite cannot restart its log, and name the processes that read it."""
        log = self.path / LOG_FILE
        size = log.stat().st_size
        now = time.monotonic()
        if size <= 2 * LONG_LOG or now < self._next_warning:
            return
        self._next_warning = now + _WARNING
        index = (self.path / INDEX_FILE).stat().st_ino
        owners = lock_owners(index, "POSIX", "READ", _READ_LOCKS)
        stopped = [process for process, is_stopped in owners.items() if is_stopped]
        readers = ", ".join(map(str, stopped or owners)) or "unknown to this system"
        logger.warning(
            "%s has %d MB and grows until the processes that read it go on or end: %s%s",
            *(log, size >> 20, "stopped: " if stopped else "", readers),
        )


def _look_after(reference: ref[Storage], opening: int) -> None:
    """Look after a storage, in a thread of its own, which no signal handler interrupts."""
    while True:
        time.sleep(_LOOK)
        storage = reference()
        if storage is None or not storage.look_after(opening):
            return
        del storage
