"""The decision to start a new generation of SQLite's files."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from pathlib import Path

from fdbqueue.embedded.disk import generations
from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.disk.files import Connection, is_long, shorten_write_ahead_log
from fdbqueue.embedded.disk.locks import lock_owners
from fdbqueue.embedded.disk.sync import SharedSync

logger = logging.getLogger("fdbqueue")

_STUCK = 6.0  # seconds; the snapshots of running processes end after five
_PAUSE = 60.0  # seconds between a failed copy and the next attempt
_COPIES = 2  # the log must be this many times as long as a copy, so that copying stays cheap
_LOG_HEADER = 32  # bytes, some of which change when SQLite restarts the log
_READ_LOCKS = range(123, 128)  # the bytes of the -shm file that readers of the log lock


class Rotation:
    """A monitor of the write-ahead log that starts a new generation if the log cannot end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = b""
        self._due = 0.0

    def is_due(self, write_ahead_log: Path) -> bool:
        """Return whether the log has been too long for six seconds without a restart."""
        if not is_long(write_ahead_log):
            return False
        now = time.monotonic()
        with write_ahead_log.open("rb", buffering=0) as file:
            header = file.read(_LOG_HEADER)
        if header != self._header:
            self._header = header
            self._due = now + _STUCK
        return now >= self._due

    def run(
        self, log: CommitLog, write_ahead_log: Path, sync: SharedSync, connection: Connection
    ) -> None:
        """Start a new generation if it is still necessary. The caller holds the writers' lock.

        Writers wait for the copy, so the log must first be longer than two copies. After a failed
        sync it need not be, and errors of the copy are raised.
        """
        if log.generation != connection.generation:
            return  # another process has just done it
        if log.has_failed:
            log.withdraw_synced()
            generations.copy(self._path, connection, sync.check)
            generations.finish(self._path, log)
            logger.warning("%s was written again because a sync had failed", self._path)
            return
        if not self.is_due(write_ahead_log):
            return
        shorten_write_ahead_log(write_ahead_log, connection, log, sync.sync_all)
        began = time.monotonic()
        size = write_ahead_log.stat().st_size
        if not is_long(write_ahead_log) or size < _COPIES * generations.live_bytes(connection):
            self._due = began + _STUCK
            return
        self._due = began + _PAUSE
        readers = self._readers(write_ahead_log)
        try:
            generations.copy(self._path, connection)
            generations.finish(self._path, log)
        except (sqlite3.Error, OSError, UnicodeError) as error:
            logger.warning(
                "%s has %d MB, and a copy of the database failed: %s; next attempt in %d seconds",
                *(write_ahead_log, size >> 20, error, _PAUSE),
            )
        else:
            logger.warning(
                "%s had %d MB and could not be shortened because it is read by %s; "
                "other processes continue with a copy, made in %.1f seconds",
                *(write_ahead_log, size >> 20, readers),
                time.monotonic() - began,
            )

    @staticmethod
    def _readers(write_ahead_log: Path) -> str:
        """Describe the processes that read the log; only the stopped ones if there are any."""
        index = write_ahead_log.with_name(write_ahead_log.name.removesuffix("-wal") + "-shm")
        owners = lock_owners(index.stat().st_ino, "POSIX", "READ", _READ_LOCKS)
        owners.pop(os.getpid(), None)
        stopped = [process for process, is_stopped in owners.items() if is_stopped]
        processes = stopped or list(owners)
        noun = "process" if len(processes) == 1 else "processes"
        numbers = ", ".join(map(str, processes)) or "unknown to this system"
        return f"{'stopped ' if stopped else ''}{noun} {numbers}"
