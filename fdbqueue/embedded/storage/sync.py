"""Syncs of SQLite's write-ahead log: what is told is on disk."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from copy import copy
from pathlib import Path

from fdbqueue.embedded.directory import FAILED_FILE, LOG_FILE, open_file
from fdbqueue.errors import DatabaseClosed, FDBError, FdbqueueError, SyncFailed

# Where the system lacks fdatasync (macOS), fsync does the same and more.
_data_sync = getattr(os, "fdatasync", os.fsync)


class Sync:
    """The syncs of this process, one for all waiting threads.

    SQLite commits without a sync. A commit, and an answer that depends on one, waits here until a
    sync that began later has ended. SQLite syncs the database file before it overwrites the log.

    After a failed sync, a later success proves nothing: this process refuses everything, and a file
    tells the others.
    """

    def __init__(self, path: Path, is_durable: bool) -> None:
        self._path = path
        # Opened before anything can fail: Linux reports a failure once to each open file.
        self._file = open_file(path / LOG_FILE, os.O_RDONLY)
        self._lock = threading.Lock()
        self.newest = 0
        """This process's newest commit that must be on disk."""
        self.covered = 0 if is_durable else math.inf
        """The newest commit certainly on disk; infinite if nobody waits for the disk."""
        self.failure: FdbqueueError | None = None
        """Why everything is refused; `DatabaseClosed` after an orderly end."""

    def wait(self, version: int, deadline: float | None = None) -> None:
        """Return once a commit, and all commits before it, are on disk.

        Raises:
            StorageError: This sync or an earlier one failed, or the files were replaced.
            FDBError: 1031, the deadline passed.
        """
        if version <= self.covered:
            return
        if self.failure is not None:  # perhaps in a forked child, where nobody frees the lock
            raise copy(self.failure)
        if deadline is not None:
            # Nothing interrupts a sync that hangs, so another thread performs it.
            thread = threading.Thread(target=self._try, args=(version,), daemon=True)
            thread.start()
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise FDBError(1031)
        self._share(version)

    def _try(self, version: int) -> None:
        with suppress(FdbqueueError):
            self._share(version)

    def _share(self, version: int) -> None:
        with self._lock:
            if version <= self.covered:
                return
            if self.failure is not None:
                raise copy(self.failure)
            newest = max(self.newest, version)
            try:
                _data_sync(self._file.fileno())
            except OSError as error:
                raise self.fail() from error
            if (self._path / FAILED_FILE).exists():
                raise self.fail()
            self.covered = newest

    def fail(self) -> SyncFailed:
        """Refuse all further commits; return the error to raise."""
        self.failure = failure = SyncFailed(str(self._path))
        with suppress(OSError):
            open_file(self._path / FAILED_FILE).close()
        return failure

    def close(self) -> None:
        """Sync for waiting threads, and close."""
        self._try(self.newest)
        with self._lock:
            self.failure = self.failure or DatabaseClosed()
            self._file.close()
