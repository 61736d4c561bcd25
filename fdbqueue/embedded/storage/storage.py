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

import _thread
import os
import shutil
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

from fdbqueue.embedded.disk import generations
from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.disk.connections import Connections
from fdbqueue.embedded.disk.crash import check_after_crash
from fdbqueue.embedded.disk.files import (
    COMMITS_FILE,
    LOCK_FILE,
    Connection,
    connect,
    create_database,
    create_or_check,
    explained,
    memory_directory,
    microseconds,
    prepare_directory,
    shorten_write_ahead_log,
    storage_errors,
)
from fdbqueue.embedded.disk.locks import SharedSync, Turn, WritersLock
from fdbqueue.embedded.disk.rotation import Rotation
from fdbqueue.embedded.limits import VERSIONS_PER_SECOND
from fdbqueue.embedded.mutations import Mutation
from fdbqueue.embedded.ranges import Range, RangeSet
from fdbqueue.embedded.storage import forks
from fdbqueue.embedded.storage.snapshot import Snapshot
from fdbqueue.embedded.storage.writer import Writer, stamped
from fdbqueue.errors import FDBError, FdbqueueError, FilesReplaced, LockTimeout

__all__ = ["Storage"]

_CEILING_STEP = 10 * VERSIONS_PER_SECOND

_LOOK = 0.25  # seconds from one look at old snapshots, and at the files, to the next
_CLOSE_WITHIN = 1.0  # seconds for which closing waits for a thread that reads


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
        self._connections = Connections(path)
        self._rotation = Rotation(path)
        self._active: dict[Snapshot, None] = {}
        # Held while connections come and go; the end of a transaction may be collected meanwhile.
        self._gate = threading.RLock()
        self._is_watched = False
        self._replaced: str | None = None  # a file that is no longer the one that was opened
        self._next_checkpoint = 0
        self._writer = Writer()
        self._writing: Connection | None = None
        self._closed = False
        with storage_errors(path), ExitStack() as undo:
            prepare_directory(path, create)
            create_database(path)
            self._lock = WritersLock(path / LOCK_FILE)
            undo.callback(self._lock.close)
            self.log = CommitLog(path / COMMITS_FILE)
            undo.callback(self.log.close)
            is_first = self.log.is_first()
            if is_first:
                check_after_crash(path, self.log)
            with closing(connect(path, 0)) as connection:
                create_or_check(path, connection)
                if is_first:
                    generations.remove_others(path)
                    self._set_clock(connection)
                    self.log.join()
                # Only now: another one may have been first, and have set it, in between.
                self._shift = int(connection.execute("SELECT shift FROM clock").fetchone()[0])
                self._connections.open(self.log)
            if is_first and self._durable:
                # No version is told before it is sure that versions go on from above it.
                self._connections.sync.wait(self._connections.sync.ticket())
            undo.pop_all()

    def _set_clock(self, connection: sqlite3.Connection) -> None:
        """Store the shift from the machine's clock to versions, and begin the log of commits."""
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        shift, ceiling = connection.execute("SELECT shift, ceiling FROM clock").fetchone()
        shift = max(shift, ceiling - microseconds())
        now = microseconds() + shift
        connection.execute("UPDATE clock SET shift = ?, ceiling = ?", (shift, now + _CEILING_STEP))
        self.log.begin_anew(now, now + _CEILING_STEP, generations.current(self.path))

    def _close_connections(self) -> None:
        """Close every connection to SQLite; the gate is held, and no thread is in a section."""
        self._connections.sync.forget()
        for snapshot in list(self._active):
            snapshot.expired = True
            # An interrupt may have left a read in the middle: its connection goes with it.
            if snapshot.busy.acquire(timeout=_CLOSE_WITHIN):
                snapshot.connection.close()
                snapshot.busy.release()
        self._active.clear()
        self._connections.close()

    def before_fork(self) -> None:
        """Have nothing of SQLite open while the process is copied.

        SQLite knows of its locks by tables in the process's memory; in a child they would speak
        of locks that only the parent has. Transactions under way are too old afterwards (1007).
        """
        self._gate.acquire()
        self._lock.before_fork()
        self._close_connections()

    def after_fork(self, in_child: bool) -> None:
        """Open again, on either side."""
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
            self._closed = True
            raise
        finally:
            self._lock.after_fork(in_child)
            self._gate.release()

    def close(self) -> None:
        """Close every connection; a `memory:` directory is removed."""
        if self._closed:
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._lock.close()
            self._close_connections()
            self.log.close()
            if self._owner is not None:
                shutil.rmtree(self.path, ignore_errors=True)
                os.close(self._owner)

    @property
    def database_file(self) -> Path:
        return self._connections.files.database

    @property
    def is_closed(self) -> bool:
        return self._closed

    def failure(self, error: sqlite3.Error | OSError) -> Exception:
        """The error for the caller, of one of SQLite or of the system."""
        if self._closed or isinstance(error, sqlite3.ProgrammingError):
            return FDBError(1025)  # the database, or an expired snapshot, was closed under it
        return explained(self.path, error)

    # Reading

    def begin(self) -> Snapshot:
        """A snapshot of the newest version."""
        if self._replaced is not None:
            raise FilesReplaced(str(self.path), self._replaced)
        self._begin_to_look()
        with self._gate:
            newest = self.log.newest
            self._connections.follow(newest[2])
            connection = self._connections.take()
            snapshot = Snapshot(self, connection, newest, time.monotonic())
            # From here on it expires in time, whatever interrupts this thread.
            self._active[snapshot] = None
            snapshot.connection.execute("BEGIN")
        return snapshot

    def end(self, snapshot: Snapshot) -> None:
        """Give a snapshot up."""
        with self._gate:
            if snapshot in self._active:
                connection = snapshot.connection
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                del self._active[snapshot]
                self._connections.give_back(connection)

    def turn(self, deadline: float | None) -> Turn:
        """The writers' lock for a transaction that conflicted too often."""
        return self._lock.take_turn(deadline)

    def read_version(self, snapshot: Snapshot) -> int:
        """The newest version of which the snapshot is sure to be the state; without waiting.

        Commits take their version from the clock, after they have said that they begin. So if none
        came since the snapshot, and none is under way, the snapshot is the state of the present
        moment too. If one is, it is the state until that.
        """
        snapshot.settle()
        while True:
            # The next commit may have this very microsecond as its version.
            now = microseconds() + self._shift - 1
            place, _, _, began, ceiling = self.log.state()
            if place != snapshot.place:
                return self.log.version_after(snapshot.place) - 1
            if began is None:
                break
            if not self.recover():  # it is not that of a killed process
                now = began - 1
                break
        if now >= ceiling:
            try:
                self.commit(None, None, [], [], [], (), time.monotonic())  # which raises it
            except LockTimeout:
                now = ceiling - 1
        return max(snapshot.version, now)

    def begin_at(self, version: int) -> Snapshot:
        """The snapshot at a version that the caller names.

        Raises 1009 for a version that is still to come and 1007 for one whose state is gone:
        anything older than the last commit, for SQLite keeps no history.
        """
        snapshot = self.begin()
        try:
            snapshot.settle()
            if version > snapshot.version and version >= microseconds() + self._shift:
                raise FDBError(1009)
            if snapshot.version > version:
                raise FDBError(1007)
        except BaseException:
            self.end(snapshot)
            raise
        return snapshot

    def recover(self) -> bool:
        """Publish the commit of a writer that was killed; false if one is at work."""
        return self._lock.run_if_free(self.log.recover)

    # What has to be done in time

    def _begin_to_look(self) -> None:
        if not self._is_watched:
            _thread.start_new_thread(self._look_after, ())

    def _look_after(self) -> None:
        """End what takes too long, as long as the database is open.

        Runs in a thread of its own, which no signal handler interrupts. An interrupted thread may
        have begun two of them; the second one ends at once.
        """
        with self._gate:
            if self._is_watched or self._closed:
                return
            self._is_watched = True
        while not self._closed:
            time.sleep(_LOOK)
            self._expire_old()
            self._lock.reclaim(self._undo)
            self._renew()
            self._replaced = self._connections.files.replaced()

    def _renew(self) -> None:
        """Have a new generation of the files made if that is due, and go on with the newest."""
        try:
            if self._rotation.is_due(self._connections.files.write_ahead_log):
                with suppress(generations.Outdated):
                    self._lock.run(self._rotate, time.monotonic() + _LOOK)
            self._follow()
        except (FdbqueueError, sqlite3.Error, OSError):
            pass  # the next transaction meets it too, and says so

    def _follow(self) -> None:
        """Open the newest generation of the files, unless it is."""
        with self._gate:
            self._connections.follow(self.log.generation)

    def _rotate(self) -> None:
        """The section that makes a new generation of the files."""
        self._undo()
        self.log.recover()
        generations.finish(self.path, self.log)
        self._connections.files.check()
        connection = self._connections.take()
        try:
            files, sync = self._connections.files, self._connections.sync
            self._rotation.run(self.log, files.write_ahead_log, sync, connection)
        finally:
            self._connections.give_back(connection)

    def _expire_old(self) -> None:
        """End the snapshots that are too old.

        As long as they are there, SQLite cannot begin its write-ahead log anew.
        """
        for snapshot in self._active.copy():
            if snapshot.is_too_old and snapshot.busy.acquire(False):
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
        stamped_keys: tuple[bytes, ...],
        deadline: float | None,
    ) -> int:
        """Commit and return the version; acknowledged is on disk, where the database is durable.

        Raises 1020 where a key of `reads` was written since the snapshot, 1007 where the snapshot
        is too old to tell, and 1031 if another process has the writers' lock until the deadline.
        The snapshot is ended in any case.
        """
        section = partial(self._commit, snapshot, reads, mutations, writes, stamped_keys)
        while True:
            try:
                version, sync, ticket = self._lock.run(section, deadline, turn)
                break
            except generations.Outdated:
                self._follow()
        if self._durable:
            sync.wait(ticket)
        return version

    def _commit(
        self,
        snapshot: Snapshot | None,
        reads: list[Range],
        mutations: list[Mutation],
        writes: list[tuple[bytes, bytes | None]],
        stamped_keys: tuple[bytes, ...],
    ) -> tuple[int, SharedSync, int]:
        """The section of a commit; its version, and the sync that it waits for by its ticket."""
        self._undo()
        connection = self._writing = self._taken(snapshot)
        try:
            place, version, ceiling = self._write(connection, snapshot, reads, mutations)
            if stamped_keys:
                writes = writes + [(stamped(key, version), None) for key in stamped_keys]
            self._connections.files.check()
            is_raised = version >= ceiling
            if is_raised:
                ceiling = version + _CEILING_STEP
                connection.execute("UPDATE clock SET ceiling = ?", (ceiling,))
            place = self.log.append(place, version, writes)
            connection.execute("COMMIT")
            if is_raised:
                self.log.raise_ceiling(ceiling)
            self.log.publish(place, version)
            self._writer.committed(place)
            sync = self._connections.sync
            ticket = sync.ticket() if self._durable else 0
            self._keep_short(connection, version)
        except Exception as error:
            self._undo()
            self.log.recover()
            self._connections.give_back(connection)
            if isinstance(error, generations.Outdated):
                with storage_errors(self.path):
                    generations.finish(self.path, self.log)
            if isinstance(error, (sqlite3.Error, OSError)):
                raise self.failure(error) from error
            raise
        self._writing = None
        self._connections.give_back(connection)
        return version, sync, ticket

    def _undo(self) -> None:
        """Undo what the last section left behind if it failed, or was interrupted anywhere."""
        connection = self._writing
        if connection is not None:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._writing = None

    def _taken(self, snapshot: Snapshot | None) -> Connection:
        """The connection of the snapshot if it has one still, or another one."""
        if snapshot is not None and self._active.pop(snapshot, snapshot) is None:
            return snapshot.connection
        return self._connections.take()

    def _write(
        self,
        connection: Connection,
        snapshot: Snapshot | None,
        reads: list[Range],
        mutations: list[Mutation],
    ) -> tuple[int, int, int]:
        """Write the mutations if nothing conflicts; the log's tail, the version and the ceiling.

        If nobody committed since the snapshot, the connection goes on from reading to writing.
        SQLite refuses that ("locked") if the state that it reads is not the newest one: then a
        checkpoint began SQLite's log anew, or somebody committed who has another lock, which takes
        a file that was replaced. So the conflicts are checked again, and under SQLite's own lock.
        """
        place, last, ceiling = self._recovered(connection)
        goes_on = snapshot is not None and place == snapshot.place and connection.in_transaction
        while True:
            if not goes_on:
                self._begin_anew(connection)
                place, last, ceiling = self._recovered(connection)
            if snapshot is not None and reads:
                snapshot.check_age()
                if place != snapshot.place:
                    self._check_conflicts(snapshot.place, reads)
            self.log.begin(microseconds() + self._shift)
            version = max(last + 1, microseconds() + self._shift)
            try:
                self._writer.apply(connection, mutations, version, place)
            except sqlite3.OperationalError as error:
                if not goes_on or "locked" not in str(error):
                    raise
                goes_on = False
            else:
                return place, version, ceiling

    def _recovered(self, connection: Connection) -> tuple[int, int, int]:
        """Tail and version of the last commit, and the ceiling."""
        place, version, generation, ceiling = self.log.recover()
        if generation != connection.generation:
            raise generations.Outdated
        return place, version, ceiling

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

    def _keep_short(self, connection: sqlite3.Connection, version: int) -> None:
        """About once a second, see that readers have not let SQLite's write-ahead log grow."""
        if version >= self._next_checkpoint:
            self._next_checkpoint = version + VERSIONS_PER_SECOND
            self._begin_to_look()
            files, sync = self._connections.files, self._connections.sync
            shorten_write_ahead_log(files.write_ahead_log, connection, sync)
