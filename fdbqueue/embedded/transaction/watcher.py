"""Watches: futures that become ready when a key changes.

Each commit ends with a write to the lock's file. While there are watches, one thread waits for such
writes, and reads the watched keys.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterable
from contextlib import closing

from fdbqueue.embedded.storage.key_values import GET
from fdbqueue.embedded.storage.names import LOCK_FILE
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.transaction.file_changes import file_changes
from fdbqueue.embedded.transaction.futures import WatchFuture
from fdbqueue.errors import FDBError, FdbqueueError

# Seconds between looks. A process may be killed before it has told of its commit, and a look may
# have taken too long.
_MAX_WAIT = 1.0


class Watcher:
    """The watches of one database object."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._watches: dict[WatchFuture, tuple[bytes, bytes | None]] = {}
        self._is_running = False

    def reserve(self, more: int, limit: int) -> None:
        """Raise 1032 if `more` watches would exceed the limit."""
        if len(self._watches) + more > limit:
            raise FDBError(1032)

    def watch(self, key: bytes, value: bytes | None, future: WatchFuture) -> None:
        """Finish the future once the key's value differs from this one."""
        with self._lock:
            self._watches[future] = (key, value)
        future.on_ready(self._forget)
        if not self._is_running:
            # Unlike `Thread.start`, this call leaves nothing behind when it is interrupted.
            _thread.start_new_thread(self._run, ())
        # The key may have changed since the watch's transaction, before the thread knew of it.
        self._look({future: (key, value)})

    def _forget(self, future: WatchFuture) -> None:
        with self._lock:
            self._watches.pop(future, None)

    def _run(self) -> None:
        """Look at the watches after each commit, while there are any."""
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
        with closing(file_changes(self._storage.path / LOCK_FILE, _MAX_WAIT)) as changes:
            for _ in changes:
                with self._lock:
                    watches = dict(self._watches)
                    self._is_running = bool(watches)
                if not watches:
                    return
                self._look(watches)

    def _look(self, watches: dict[WatchFuture, tuple[bytes, bytes | None]]) -> None:
        """Finish the watches whose keys changed; all of them, if the database cannot be read.

        A change may not be on disk yet. A read that follows waits for that.
        """
        changed: Iterable[WatchFuture] = watches
        failure = None
        try:
            snapshot = self._storage.begin(is_ahead=True)
            try:
                changed = [
                    each
                    for each, (key, value) in watches.items()
                    if (snapshot.fetch(GET, (key,)) or [(None,)]) != [(value,)]
                ]
            finally:
                self._storage.end(snapshot)
        except FdbqueueError as error:
            if getattr(error, "code", 0) == 1007:
                return  # for example, the process was stopped in between: the thread looks again
            failure = error.with_traceback(None)
        for future in changed:
            future.finish(failure)
            self._forget(future)  # which its callback does, unless an interrupt came before that
