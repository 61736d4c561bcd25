"""Snapshots of the database and commits: optimistic concurrency on SQLite.

A transaction reads from a SQLite read transaction, whose snapshot is its read version. At commit,
if no other transaction committed since, the same connection continues by writing. Otherwise the
reads are checked against the log of what was written since. In both cases the writes are one SQLite
transaction: a process killed at any point leaves all of them or none.

A version is the machine's clock, in microseconds, plus a shift, so versions grow by a million per
second. All versions ever returned to a client are below a ceiling, which is stored in advance. If
the clock has started from zero again, after a reboot, versions continue from the ceiling. Otherwise
they continue with the time that has passed, also if no process has the database open meanwhile.
"""

from __future__ import annotations

import _thread
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fdbqueue.embedded.clock import microseconds, set_clock
from fdbqueue.embedded.disk import files, generations
from fdbqueue.embedded.disk.commit_log import COMMITS_FILE, CommitLog
from fdbqueue.embedded.disk.damage import check_after_crash
from fdbqueue.embedded.disk.files import (
    LOCK_FILE,
    Connection,
    connect,
    create_files,
    create_or_check,
    memory_directory,
    prepare_directory,
    shorten_write_ahead_log,
    storage_errors,
)
from fdbqueue.embedded.disk.locks import WriteLockHold, WritersLock
from fdbqueue.embedded.disk.rotation import Rotation
from fdbqueue.embedded.disk.sync import SharedSync
from fdbqueue.embedded.limits import TRANSACTION_LIFETIME, VERSIONS_PER_SECOND
from fdbqueue.embedded.mutations import Mutation
from fdbqueue.embedded.permissions import Opened
from fdbqueue.embedded.ranges import Range
from fdbqueue.embedded.storage import conflicts, forks
from fdbqueue.embedded.storage.connections import Connections
from fdbqueue.embedded.storage.owners import Owners
from fdbqueue.embedded.storage.snapshot import Snapshot
from fdbqueue.embedded.storage.sql_writer import GET, Writer
from fdbqueue.errors import (
    CommitUnknownResult,
    FDBError,
    FdbqueueError,
    FilesReplaced,
    LockTimeout,
    SyncFailed,
)

_CEILING_STEP = 10 * VERSIONS_PER_SECOND

_LOOK = 0.25  # seconds between two looks at old snapshots and at the files
_UNUSUAL = VERSIONS_PER_SECOND // 50  # versions that pass while a commit takes unusually long
_CLOSE_WITHIN = 1.0  # seconds for which closing waits for a reading thread
# Seconds between two attempts to replace files whose sync failed. The pause is at least ten times
# as long as the attempt before it.
_PAUSE = 1.0


class _Commit(NamedTuple):
    """A commit that may not be on disk yet.

    Attributes:
        version: Its version.
        tail: The tail of the log of commits after it.
        sync: The sync of the files that it was written to.
        ceiling: The ceiling that it has raised; 0 if it has not.
    """

    version: int
    tail: int
    sync: SharedSync
    ceiling: int


class Storage:
    """One directory, opened by this process: connections, lock and clock."""

    def __init__(self, path: Path | None, durable: bool, create: bool) -> None:
        """Open the directory, or a private one in memory if `path` is `None`."""
        self._owner: Opened | None = None  # of a directory in memory
        if path is None:
            path, self._owner = memory_directory()
        self.path = path
        self.attempts = Owners()
        """The attempts of transactions, each with what it holds."""
        self.is_durable = durable
        """True if commits wait for the disk."""
        with forks.opening:
            self._open(create or self._owner is not None)
            forks.register(self)

    def _open(self, create: bool) -> None:
        path = self.path
        self._connections = Connections(path, self.is_durable)
        self._rotation = Rotation(path)
        self._active: dict[Snapshot, None] = {}
        # Held while connections are taken or given back. Reentrant, because the garbage collector
        # may end a transaction in the meantime.
        self._gate = threading.RLock()
        self._is_watched = False
        self._replaced: str | None = None  # the name of a file that is not the opened one any more
        self._next_checkpoint = 0
        self._next_replacement = 0.0
        self._writer = Writer()
        self._writing: Connection | None = None
        with storage_errors(path), ExitStack() as undo:
            prepare_directory(path, create)
            create_files(path)
            self.lock = WritersLock(path / LOCK_FILE, self.is_durable)
            undo.callback(self.lock.close)
            self.log = CommitLog(path / COMMITS_FILE)
            undo.callback(self.log.close)
            is_first = self.log.is_first()
            if is_first:
                check_after_crash(path, self.log)
            with closing(connect(path, 0)) as connection:
                create_or_check(path, connection)
                if is_first:
                    generations.remove_others(path)
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                    version, ceiling = set_clock(connection, _CEILING_STEP)
                    self.log.begin_anew(version, ceiling, generations.current(path))
                    self.log.join()
                # Read last: another process may have been first and set it in the meantime.
                self.shift = int(connection.execute("SELECT shift FROM clock").fetchone()[0])
                self._connections.open(self.log)
                undo.callback(self._close_connections)
            # What the log of commits said last: the next snapshot is probably that of this commit.
            self.newest: tuple[int, int, int] = self.log.state()[:3]
            if is_first and self.is_durable:
                # No version is returned to a client until its ceiling is certainly on disk.
                self._connections.sync.note_commit(self.log.published[0])
                self._connections.sync.wait(number=1)
            undo.pop_all()

    def _close_connections(self) -> None:
        """Close every connection. The caller holds the gate, and no thread is in a section."""
        for snapshot in list(self._active):
            snapshot.expire()
            # An interrupt may have left a read unfinished; then its connection is abandoned.
            if snapshot.busy.acquire(timeout=_CLOSE_WITHIN):
                self._active.pop(snapshot, None)
                snapshot.connection.close()
                snapshot.busy.release()
        self._active.clear()
        self._connections.close()

    def before_fork(self) -> None:
        """Close everything of SQLite before the process is copied.

        SQLite tracks its locks in the process's memory; in a child, that memory would describe
        locks that only the parent holds. Open transactions then fail with 1007.
        """
        self._gate.acquire()
        self.lock.before_fork()
        self._close_connections()

    def after_fork(self, in_child: bool) -> None:
        """Open the files again, in the parent or in the child."""
        try:
            with storage_errors(self.path):
                if in_child:
                    self._owner = None
                    self._gate = threading.RLock()
                    self._gate.acquire()
                    self._is_watched = False
                    self.log.close()
                    self.log = CommitLog(self.path / COMMITS_FILE)
                    self.log.join()
                self._connections.open(self.log)
        except BaseException:
            self._connections.is_closed = True
            raise
        finally:
            self.lock.after_fork(in_child)
            self._gate.release()

    def close(self, within: float = -1) -> None:
        """Close every connection and remove a `memory:` directory.

        Each step can be repeated: after an interrupt, another call does the rest.

        Args:
            within: The seconds after which to leave that to another thread; below 0 for never. A
                finalizer must not wait for a thread that forks: it may run in a thread that commits
                to another database, and the fork waits for that.
        """
        if not self._gate.acquire(timeout=within):
            _thread.start_new_thread(self.close, ())
            return
        try:
            self._connections.is_closed = True
            self.lock.close()
            self._close_connections()
            self.log.close()
            if self._owner is not None:
                shutil.rmtree(self.path, ignore_errors=True)
                self._owner.close()
        finally:
            self._gate.release()

    @property
    def database_file(self) -> Path:
        """The SQLite file of the open generation."""
        return self._connections.files.database

    @property
    def is_closed(self) -> bool:
        """True once the database was closed."""
        return self._connections.is_closed

    # Reading

    def begin(self, deadline: float | None = None, is_ahead: bool = False) -> Snapshot:
        """Return a snapshot of the newest version. All of it is on disk, unless `is_ahead`."""
        while True:
            try:
                return self.read_first(GET, (b"",), deadline, is_ahead)[0]
            except FDBError as error:
                if error.code != 1007:  # otherwise nothing was read, so it can begin again
                    raise

    def read_first(
        self,
        statement: str,
        parameters: tuple[Any, ...],
        deadline: float | None,
        is_ahead: bool = False,
    ) -> tuple[Snapshot, list[Any]]:
        """Read in a new snapshot of the newest version; return it and the rows.

        Args:
            statement: The statement, as `Snapshot.fetch` takes it.
            parameters: Its parameters.
            deadline: When it stops waiting, by `time.monotonic()`; `None` for never.
            is_ahead: Whether to return before the snapshot is on disk.

        Raises:
            FDBError: 1007, there are newer files. The next call reads those.
        """
        if self._replaced is not None:
            raise FilesReplaced(str(self.path), self._replaced)
        if not self._is_watched:
            self.begin_to_look()
        newest = self.newest
        if newest[2] != self._connections.generation:
            self._follow(deadline)
        with self._gate:
            connection = self._connections.take()
            snapshot = Snapshot(self._connections, connection)
            # From here on the snapshot expires in time, wherever this thread is interrupted.
            self._active[snapshot] = None
            connection.execute("BEGIN")
        try:
            with snapshot.busy:
                rows = self._take(snapshot, newest, statement, parameters)
            if snapshot.unconfirmed is not None and not is_ahead:
                self.confirm(snapshot, deadline)
        except BaseException as error:
            self.end(snapshot)
            if isinstance(error, sqlite3.Error):
                raise self._connections.failure(error) from error
            raise
        return snapshot, rows

    def _take(
        self,
        snapshot: Snapshot,
        newest: tuple[int, int, int],
        statement: str,
        parameters: tuple[Any, ...],
    ) -> list[Any]:
        """Take a snapshot by its first read. The caller holds `busy`, so it does not expire.

        SQLite takes its snapshot at the read. `newest`, what the log of commits says, was noted
        before that, possibly long before. If the log says something else after the read, that is
        noted and the read is repeated.
        """
        if time.monotonic() > snapshot.expires:
            raise snapshot.too_old()
        connection = snapshot.connection
        while True:
            rows = connection.execute(statement, parameters).fetchall()
            # The next commit may have this very microsecond as its version.
            now = time.monotonic_ns() // 1000 + self.shift - 1
            tail, version, generation, began, ceiling, durable = self.log.state()
            noted, newest = newest, (tail, version, generation)
            self.newest = newest
            if generation != connection.generation:
                raise FDBError(1007)  # it would miss all later commits
            if newest == noted:
                break
            connection.execute("ROLLBACK")
            connection.execute("BEGIN")
        snapshot.offset, snapshot.version = tail, version
        is_committing = began > version
        if not is_committing and now < ceiling:
            snapshot.present = max(version, now)
        if self.is_durable and (durable < tail or is_committing):
            sync = self._connections.sync
            # The snapshot may also contain the commit under way, which is not in the log.
            snapshot.unconfirmed = sync, tail, sync.next if is_committing else 0
        return rows

    def end(self, snapshot: Snapshot) -> None:
        """Release a snapshot."""
        with self._gate:
            if snapshot in self._active:
                connection = snapshot.connection
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                del self._active[snapshot]
                self._connections.give_back(connection)

    def read_version(self, snapshot: Snapshot, deadline: float | None) -> int:
        """Return the newest version whose state the snapshot certainly is.

        A commit announces itself before it takes its version from the clock. If no transaction
        committed since the snapshot and none is committing, the snapshot is also the state of the
        present moment. If one is committing, the snapshot is the state up to that commit.
        """
        while True:
            # The next commit may have this very microsecond as its version.
            now = time.monotonic_ns() // 1000 + self.shift - 1
            offset, version, _, began, ceiling, _ = self.log.state()
            if offset != snapshot.offset:
                return self.log.version_after(snapshot.offset) - 1
            if began <= version:
                break
            if not self.recover(began):
                now = began - 1
                break
        if now >= ceiling:
            try:
                self._raise_ceiling(deadline)
            except (LockTimeout, generations.Outdated):
                now = ceiling - 1
        return max(snapshot.version, now)

    def _raise_ceiling(self, deadline: float | None) -> None:
        """Commit nothing, which raises the ceiling, unless another process holds the lock."""
        commit = self.lock.run(partial(self._commit, None, [], [], []), time.monotonic())
        if self.is_durable:
            self._wait_for_disk(commit.sync, commit.tail, deadline=deadline)
        self.log.raise_ceiling(commit.ceiling)

    def confirm(self, snapshot: Snapshot, deadline: float | None) -> None:
        """Return once everything that a snapshot contains is on disk.

        Raises:
            SyncFailed: The disk did not confirm it.
            FDBError: 1031, the disk did not confirm it before the deadline.
        """
        if snapshot.unconfirmed is not None:
            self._wait_for_disk(*snapshot.unconfirmed, deadline)
            snapshot.unconfirmed = None

    def check_version(self, snapshot: Snapshot, version: int) -> None:
        """Check that a snapshot is the state at a version that the caller names.

        Raises:
            FDBError: 1009 for a version in the future. 1007 for a version before the last commit,
                whose state is gone because SQLite keeps no history.
        """
        if version > snapshot.version and version >= microseconds() + self.shift:
            raise FDBError(1009)
        if snapshot.version > version:
            raise FDBError(1007)

    def check_age(self, version: int) -> None:
        """Raise 1007 if a transaction at a version that the caller names is too old to commit."""
        if version < microseconds() + self.shift - TRANSACTION_LIFETIME * VERSIONS_PER_SECOND:
            raise FDBError(1007)

    def recover(self, began: int) -> bool:
        """Publish a commit if its writer was killed; return false if the writer is at work.

        The lock shows whether the writer is alive. Readers look only if the commit takes
        unusually long, because the lock is worth more to writers.

        Args:
            began: The lower bound of the commit's version, which tells when it began.
        """
        if microseconds() + self.shift - began < _UNUSUAL:
            return False
        return self.lock.run_if_free(self.log.recover)

    # Periodic work

    def begin_to_look(self) -> None:
        """Start the thread that does periodic work, unless it runs."""
        _thread.start_new_thread(self._look_after, ())

    def _look_after(self) -> None:
        """Expire old snapshots, end long holds and follow the files, until the database is closed.

        This runs in its own thread, which no signal handler interrupts. An interrupted thread may
        have started it twice; the second one ends immediately.
        """
        with self._gate:
            if self._is_watched or self.is_closed:
                return
            self._is_watched = True
        while not self.is_closed:
            time.sleep(_LOOK)
            self.attempts.release()
            self._expire_old()
            self.lock.reclaim(self._undo)
            self._renew()
            if (sync := self._connections.sync).is_behind:
                with suppress(FdbqueueError):  # whatever waits for these commits raises it
                    sync.wait()
            self._replaced = self._connections.files.replaced()

    def _renew(self) -> None:
        """Start a new generation of the files if that is due, and switch to the newest."""
        try:
            if self._rotation.is_due(self._connections.files.write_ahead_log):
                with suppress(generations.Outdated):
                    self.lock.run(self._rotate, time.monotonic() + _LOOK)
            # Not longer, because this thread ends the holds that others would wait for.
            self._follow(time.monotonic() + _LOOK)
        except (FdbqueueError, sqlite3.Error, OSError):
            pass  # the next transaction meets the same error and raises it

    def _follow(self, deadline: float | None = None) -> None:
        """Open the newest generation of the files unless it is open.

        Raises:
            SyncFailed: A sync of these files failed, and writing new ones fails as well.
        """
        while True:
            with self._gate:
                self._connections.follow(self.log.generation)
            if not self.log.has_failed:
                return
            self._replace_failed_files(deadline)

    def _replace_failed_files(self, deadline: float | None) -> None:
        """Write all commits again, into a new generation of the files, after a failed sync."""
        began = time.monotonic()
        if began < self._next_replacement:
            raise SyncFailed(str(self.path))
        try:
            with suppress(generations.Outdated):  # another process has just done it
                self.lock.run(self._rotate, deadline)
        except (sqlite3.Error, OSError, UnicodeError, SyncFailed) as error:
            now = time.monotonic()
            self._next_replacement = now + _PAUSE * max(1.0, 10 * (now - began))
            raise SyncFailed(str(self.path)) from error

    def _rotate(self) -> None:
        """Start a new generation of the files. Runs as a section."""
        self._undo()
        self.log.recover()
        generations.finish(self.path, self.log)
        self._connections.files.check()
        with self._connections.lent() as connection:
            log, sync = self._connections.files.write_ahead_log, self._connections.sync
            self._rotation.run(self.log, log, sync, connection)

    def _expire_old(self) -> None:
        """End the snapshots that are too old.

        SQLite cannot restart its write-ahead log while they exist.
        """
        for snapshot in self._active.copy():
            if time.monotonic() > snapshot.expires and snapshot.busy.acquire(False):
                try:
                    snapshot.expire()
                    self.end(snapshot)
                finally:
                    snapshot.busy.release()

    # Committing

    def commit(
        self,
        snapshot: Snapshot | None,
        hold: WriteLockHold | None,
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
            hold: The hold of the transaction on the writers' lock, or `None`.
            reads: The read conflict ranges.
            mutations: The writes, in order.
            writes: The write conflict ranges, as `pack_ranges` takes them.
            deadline: When to stop waiting for the lock, by `time.monotonic()`; `None` for never.

        Raises:
            FDBError: 1020, a key of `reads` was written since the snapshot. 1007, the snapshot is
                more than five seconds old. 1031, another process held the writers' lock until the
                deadline.
        """
        section = partial(self._commit, snapshot, reads, mutations, writes)
        before_wait = partial(self._before_wait, snapshot, reads)
        commit = None
        try:
            while commit is None:
                try:
                    commit = self.lock.run(section, deadline, hold, before_wait)
                except generations.Outdated:
                    self._follow(deadline)
        except BaseException:
            if snapshot is not None:
                self.end(snapshot)
            raise
        wait = partial(self._wait_for_commit, commit, deadline) if self.is_durable else None
        if commit.ceiling:
            # No version is returned before its ceiling is on disk.
            self._wait_for_commit(commit, deadline)
            wait = None
        return commit.version, wait

    def _wait_for_commit(self, commit: _Commit, deadline: float | None) -> None:
        """Return once a commit, and the ceiling that it raised, are on disk.

        Raises:
            CommitUnknownResult: The disk did not confirm it before the deadline.
        """
        try:
            if self.is_durable:
                self._wait_for_disk(commit.sync, commit.tail, deadline=deadline)
        except (FdbqueueError, sqlite3.Error, OSError) as error:
            raise CommitUnknownResult(str(self.path), str(error)) from error
        if commit.ceiling:
            self.log.raise_ceiling(commit.ceiling)

    def _wait_for_disk(
        self, sync: SharedSync, tail: int = 0, number: int = 0, deadline: float | None = None
    ) -> None:
        """Wait as `sync.wait` does. After a failed sync, write everything to new files."""
        if not sync.covers_all:  # this process has only read; it does not wait for writers
            with storage_errors(self.path):
                self.lock.run_if_free(self._cover_all)
        try:
            sync.wait(tail, number, deadline)
        except SyncFailed:
            if self.is_closed:
                raise
            self._follow(deadline)

    def _cover_all(self) -> None:
        """Let a sync cover all commits. Runs as a section, but the lock's file may be replaced."""
        with self._connections.lent() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._connections.sync.cover_all()

    def _commit(
        self,
        snapshot: Snapshot | None,
        reads: list[Range],
        mutations: list[Mutation],
        writes: list[bytes],
    ) -> _Commit:
        """Commit as a section."""
        if self._writing is not None:
            self._undo()
        if snapshot is not None and self._active.pop(snapshot, snapshot) is None:
            connection = self._writing = snapshot.connection
        else:
            connection = self._writing = self._connections.take()
        is_committed = False
        try:
            offset, version, ceiling, stamped = self._write(connection, snapshot, reads, mutations)
            self._connections.files.check()
            raised = version + _CEILING_STEP if version >= ceiling else 0
            if raised:
                connection.execute("UPDATE clock SET ceiling = ?", (raised,))
            tail = self.log.append(offset, version, writes + stamped)
            sync = self._connections.sync
            if self.is_durable:
                sync.cover_all()
            connection.execute("COMMIT")
            is_committed = True
            self.log.publish(tail, version)
            self.newest = tail, version, connection.generation
            self._writer.version = version
            if self.is_durable:
                sync.note_commit(tail)
            if version >= self._next_checkpoint or sync.frames >= files.CHECKPOINT:
                self._keep_short(connection, version)
        except Exception as error:
            self._undo()
            with suppress(OSError):  # the next commit does it, as after a killed writer
                self.log.recover()
            self._connections.give_back(connection)
            if isinstance(error, generations.Outdated):
                with storage_errors(self.path):
                    generations.finish(self.path, self.log)
            if isinstance(error, (sqlite3.Error, OSError)):
                raise self._of_commit(self._connections.failure(error), is_committed) from error
            raise self._of_commit(error, is_committed) from error.__cause__
        self._writing = None
        self._connections.give_back(connection)
        return _Commit(version, tail, sync, raised)

    def _of_commit(self, error: Exception, is_committed: bool) -> Exception:
        """Return the error to raise. After the commit it must not claim that it had no effect."""
        return CommitUnknownResult(str(self.path), str(error)) if is_committed else error

    def _before_wait(self, snapshot: Snapshot | None, reads: list[Range]) -> None:
        """End the reads of a transaction that waits to commit, and look for conflicts.

        Other transactions commit in the meantime, so it could not continue on its connection. As
        long as it reads, SQLite cannot restart its write-ahead log, and then each commit of the
        others writes a checkpoint. What has been compared now need not be compared under the lock.
        """
        if snapshot is None:
            return
        with snapshot.busy:
            if snapshot in self._active and snapshot.connection.in_transaction:
                snapshot.connection.execute("ROLLBACK")
        tail = self.log.published[0]
        conflicts.check(reads, self.log, snapshot.offset, tail)
        snapshot.offset = tail

    def _undo(self) -> None:
        """Undo the remains of a section that failed or was interrupted at any point."""
        connection = self._writing
        if connection is not None:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._writing = None

    def _write(
        self,
        connection: Connection,
        snapshot: Snapshot | None,
        reads: list[Range],
        mutations: list[Mutation],
    ) -> tuple[int, int, int, list[bytes]]:
        """Write the mutations if nothing conflicts.

        Return the tail, the version, the ceiling, and the conflict ranges of versionstamped keys.

        If no transaction committed since the snapshot, its connection continues by writing. SQLite
        refuses that ("locked") if the connection does not read the newest state. Then a checkpoint
        restarted SQLite's log, or a process with another lock committed, which requires a replaced
        file. In that case conflicts are checked again, now under SQLite's own lock.
        """
        offset, last, generation, began, ceiling, _ = self.log.state()
        if began > last:
            offset, last, generation, ceiling = self.log.recover()
        goes_on = snapshot is not None and offset == snapshot.offset and connection.in_transaction
        while True:
            if not goes_on:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
                offset, last, generation, ceiling = self.log.recover()
            if generation != connection.generation:
                raise generations.Outdated
            if snapshot is not None:
                if time.monotonic() > snapshot.expires:
                    raise snapshot.too_old()
                if offset != snapshot.offset:
                    conflicts.check(reads, self.log, snapshot.offset, offset)
            self.log.begin(time.monotonic_ns() // 1000 + self.shift)
            version = max(last + 1, time.monotonic_ns() // 1000 + self.shift)
            try:
                stamped = self._writer.apply(connection, mutations, version, last)
            except sqlite3.OperationalError as error:
                if not goes_on or "locked" not in str(error):
                    raise
                goes_on = False
            else:
                return offset, version, ceiling, stamped

    def _keep_short(self, connection: sqlite3.Connection, version: int) -> None:
        """Shorten SQLite's write-ahead log about once a second if readers let it grow."""
        self._next_checkpoint = version + VERSIONS_PER_SECOND
        if not self._is_watched:
            self.begin_to_look()
        log = self._connections.files.write_ahead_log
        shorten_write_ahead_log(log, connection, self.log, self._connections.sync.sync_all)
