"""Syncs to the disk: of a path, and of commits, which share it with the reads that see them."""

from __future__ import annotations

import _thread
import logging
import os
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.disk.write_ahead_log import Extent, is_intact, next_commit, write_again
from fdbqueue.embedded.permissions import open_directory, open_file
from fdbqueue.errors import DatabaseClosed, FDBError, StorageError, SyncFailed

logger = logging.getLogger("fdbqueue")


def sync_path(path: Path) -> None:
    """Write a file, or the names in a directory, to the disk."""
    opened = open_directory(path) if path.is_dir() else open_file(path, os.O_RDONLY)
    with closing(opened):
        os.fsync(opened.fileno())


class SharedSync:
    """One fdatasync of a write-ahead log for all threads that wait for it.

    A commit, or a read of what others committed, waits for a tail of the log of commits. The first
    waiter syncs for all commits that were published before the sync started. The log of commits
    tells the other processes how much is on disk. No process waits for the sync of another one: the
    system merges syncs that overlap, and a process may stop in the middle of one.

    After a failed sync the kernel may mark lost pages as clean, so a later success proves nothing
    about them. The failure is noted in the log of commits, and no process commits to these files
    any more. Until it is noted, the syncs of the other processes have to fail as well. Linux lets
    one sync fail through each descriptor that was open at the time (fsync(2), since 4.13), but not
    through one that was opened later. So a process that has opened the log writes again what may
    not be on disk, before it confirms anything to others.
    """

    def __init__(self, path: Path, log: CommitLog, generation: int) -> None:
        self._path = path
        self._log = log
        self._generation = generation
        self._file = open_file(path, os.O_RDONLY)
        self._descriptor = self._file.fileno()
        # Each descriptor reports a failure once, so `sync_all` needs its own.
        self._file_of_checkpoints = open_file(path, os.O_RDONLY)
        self.covers_all = False
        """True once a sync covers everything in the log, also what is older than the descriptor."""
        self._lock = threading.Lock()
        self.frames = 0
        """The frames of the log after the newest commit of this process, if commits are durable."""
        self._committed = 0  # the tail after the newest commit of this process
        self._durable = 0
        self._begun = self._ended = 0  # numbers of syncs
        self._failure: StorageError | None = None  # of the sync before the descriptor was closed

    def note_commit(self, tail: int) -> None:
        """Note the tail after a commit. The caller holds the writers' lock."""
        self._log.committed = end = next_commit(self._descriptor, self._log.committed)
        self.frames = end.frames
        self._committed = tail

    def cover_all(self) -> None:
        """Write again what may not be on disk, once. The caller has begun a write in SQLite.

        Raises:
            OSError: The system refuses it.
        """
        if not self.covers_all and self._log.generation == self._generation:
            with open_file(self._path, os.O_RDWR) as file:
                write_again(file.fileno(), self._log.synced)
            self.covers_all = True

    def sync_all(self) -> None:
        """Sync the log before a checkpoint. The caller has begun a write in SQLite.

        Raises:
            SyncFailed: A sync failed since the log was opened. This is noted.
        """
        self.cover_all()
        self._sync_data(self._file_of_checkpoints.fileno())

    def _sync_data(self, descriptor: int) -> None:
        try:
            _data_sync(descriptor)
        except OSError as error:
            self._log.note_failure(self._generation)
            raise SyncFailed(str(self._path)) from error

    @property
    def next(self) -> int:
        """The number of the next sync that begins."""
        return self._begun + 1

    @property
    def is_behind(self) -> bool:
        """True while a commit of this process may not be on disk yet."""
        return self._durable < self._committed

    def wait(self, tail: int = 0, number: int = 0, deadline: float | None = None) -> None:
        """Return once everything up to a tail of the log of commits is on disk.

        Args:
            tail: The tail; by default that after the newest commit of this process.
            number: The number of a sync that has to end, too; 0 for none.
            deadline: When to give up, by `time.monotonic()`; `None` waits forever.

        Raises:
            SyncFailed: This sync or an earlier one failed, in any process.
            FDBError: 1031, the deadline passed.
        """
        tail = tail or self._committed
        if self._is_on_disk(tail, number):
            return
        if deadline is None:
            self._share(tail, number)
            return
        # Nothing interrupts a sync that hangs, so another thread performs it.
        errors: list[Exception] = []
        has_ended = threading.Lock()
        has_ended.acquire()

        def share() -> None:
            try:
                self._share(tail, number)
            except Exception as error:
                errors.append(error)
            finally:
                has_ended.release()

        _thread.start_new_thread(share, ())
        if not has_ended.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise FDBError(1031)
        for error in errors:
            raise error

    def _share(self, tail: int, number: int) -> None:
        """Return once the tail is on disk: sync, unless another thread has just done it."""
        with self._lock:
            progress = self._progress(tail, number)
            if progress is not None:
                self._sync(*progress)

    def _is_on_disk(self, tail: int, number: int) -> bool:
        return self._durable >= tail and self._ended >= number

    def _progress(self, tail: int, number: int = 0) -> tuple[int, Extent] | None:
        """Return how far all processes have committed; `None` if the tail is on disk.

        Raises:
            SyncFailed: A sync of these files failed.
        """
        if self._is_on_disk(tail, number):
            return None
        if self._failure is not None:
            raise self._failure
        committed, generation, end, durable = self._log.progress()
        if generation != self._generation:
            if self._log.has_failed and self._log.generation == self._generation:
                raise SyncFailed(str(self._path))
            return None  # what is in files of an older generation is on disk in newer ones
        self._durable = max(self._durable, durable)
        if self._is_on_disk(tail, number):
            return None
        if self._descriptor < 0:
            raise DatabaseClosed()
        return committed, end

    def _sync(self, tail: int, end: Extent) -> None:
        """Sync what all processes have committed up to a tail, and to an end of SQLite's log."""
        self._begun += 1
        covers_all = self.covers_all
        self._sync_data(self._descriptor)
        progress = self._progress(tail)
        if progress is not None and covers_all:
            # If SQLite has restarted its log meanwhile, nothing is known of the new one.
            self._log.confirm(end if progress[1].salt == end.salt else Extent(0, 0), tail)
            self._durable = tail
        self._ended = self._begun

    def check(self) -> None:
        """Raise `SyncFailed` if a commit cannot be read from the log any more as it was written."""
        if not is_intact(self._descriptor, self._log.committed):
            raise SyncFailed(str(self._path))

    def close(self) -> None:
        """Sync the commits that still wait, and close. No thread may commit at the same time.

        SQLite may remove its log afterwards. If the sync fails, each of the commits raises the
        error.
        """
        if self._descriptor < 0:
            return
        failure = None
        try:
            self.wait()
        except StorageError as error:
            failure = error
        with self._lock:  # no sync that still runs may note again how much is on disk
            try:
                with suppress(OSError):  # it may be that of an earlier sync, and is reported once
                    self._log.withdraw_synced()
                self._log.withdraw_synced()
            except (StorageError, OSError) as error:
                logger.warning("%s: a note about the log may be outdated: %s", self._path, error)
                self._log.synced = Extent(0, 0)
            self._close(failure)

    def retire(self) -> None:
        """Close without a sync: the commits are on disk, in a newer generation of files."""
        with self._lock:
            self._durable = self._committed
            self._close()

    def _close(self, failure: StorageError | None = None) -> None:
        self._failure = failure
        self._descriptor = -1
        self._file.close()
        self._file_of_checkpoints.close()


# Where the system lacks fdatasync (macOS), fsync does the same and more.
_data_sync = getattr(os, "fdatasync", os.fsync)
