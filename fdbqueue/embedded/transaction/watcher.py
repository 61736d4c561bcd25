"""Watches: futures that become ready when a key changes.

All processes write to the log of commits. While there are watches, one thread waits for writes to
its file, and reads the watched keys when the end of the log has moved.
"""

from __future__ import annotations

import _thread
import threading
import time
from contextlib import closing
from operator import attrgetter

from fdbqueue.embedded.disk.commit_log import COMMITS_FILE
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.transaction.file_changes import FileChanges
from fdbqueue.embedded.transaction.futures import WatchFuture
from fdbqueue.errors import FDBError, FdbqueueError

_MAX_WAIT = 1.0  # seconds between looks whether the database was closed
_COMMITTING = 0.005  # seconds between looks whether the process of a commit was killed


class Watcher:
    """The watches of one database object."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._watches: dict[WatchFuture, tuple[bytes, bytes | None]] = {}
        self._is_running = False
        self._is_closed = False

    def reserve(self, more: int, limit: int) -> None:
        """Raise 1032 if `more` watches would exceed the limit."""
        if len(self._watches) + more > limit:
            raise FDBError(1032)

    def watch(self, key: bytes, value: bytes | None, future: WatchFuture) -> None:
        """Finish the future once the key's value differs from this one."""
        future.when_cancelled(self._forget)
        with self._lock:
            if self._is_closed:
                future.finish(FDBError(1025))
                return
            self._watches[future] = (key, value)
        if not self._is_running:
            # Unlike `Thread.start`, this call leaves nothing behind when it is interrupted.
            _thread.start_new_thread(self._run, ())
        # The key may have changed since the watch's transaction, before the thread knew of it.
        try:
            while not self._look({future: (key, value)}):
                pass
        except FdbqueueError as error:
            self._forget(future)
            future.finish(error)

    def close(self) -> None:
        """Finish every watch with 1025. The thread ends when it looks at the log again."""
        with self._lock:
            self._is_closed = True
            watches, self._watches = self._watches, {}
        for future in watches:
            future.finish(FDBError(1025))

    def _forget(self, future: WatchFuture) -> None:
        with self._lock:
            self._watches.pop(future, None)

    def _run(self) -> None:
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
        try:
            with closing(FileChanges(self._storage.path / COMMITS_FILE)) as changes:
                self._follow(changes)
        except FdbqueueError as error:
            with self._lock:
                watches, self._watches, self._is_running = self._watches, {}, False
            for future in watches:
                future.finish(error)

    def _follow(self, changes: FileChanges) -> None:
        """Look at the watches after each commit, while there are any."""
        seen = None
        moved = 0.0
        while not self._is_closed:
            tail, version, _, began, *_ = self._storage.log.state()
            is_committing = began > version
            if is_committing and self._storage.recover(began):
                continue
            with self._lock:
                watches = dict(self._watches)
                if not watches:
                    self._is_running = False
                    return
            if (tail, version) != seen:
                moved = time.monotonic()
                if not self._look(watches):
                    continue
                seen = tail, version
            changes.wait(moved, _COMMITTING if is_committing else _MAX_WAIT)

    def _look(self, watches: dict[WatchFuture, tuple[bytes, bytes | None]]) -> bool:
        """Finish the watches whose keys changed; return false if that took too long."""
        snapshot = self._storage.begin(is_ahead=True)
        try:
            changed = [
                future for future, (key, value) in watches.items() if snapshot.get(key) != value
            ]
        except FDBError as error:
            if error.code != 1007:
                raise
            return False  # for example because the process was stopped in between
        finally:
            self._storage.end(snapshot)
        for future in sorted(changed, key=attrgetter("is_ahead"), reverse=True):
            if not future.is_ahead:
                self._storage.confirm(snapshot, None)
            self._forget(future)
            future.finish()
        return True
