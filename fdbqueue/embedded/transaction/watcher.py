"""Watches: futures that become ready when a key changes, found by polling a shared counter.

The log of commits is in memory that all processes share. While there are watches, one thread polls
the end of the log, and reads the watched keys only when the end has moved.
"""

from __future__ import annotations

import _thread
import threading
import time
from typing import TYPE_CHECKING

from fdbqueue.embedded.transaction.futures import WatchFuture
from fdbqueue.errors import FDBError, FdbqueueError

if TYPE_CHECKING:
    from fdbqueue.embedded.storage.storage import Storage

__all__ = ["Watcher"]

# The pause between two polls is a share of the time since the counter last moved, within these
# bounds in seconds.
_SHARE = 1 / 20
_SHORTEST, _LONGEST = 0.002, 0.01


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

    def close(self) -> None:
        """Finish every watch with 1025. The thread ends within its next poll."""
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
        seen = None
        moved = 0.0
        known: set[WatchFuture] = set()
        try:
            while not self._is_closed:
                tail, version, _, began, _ = self._storage.log.state()
                if began > version and self._storage.recover(began):
                    continue
                counter = tail, version
                with self._lock:
                    watches = dict(self._watches)
                    if not watches:
                        self._is_running = False
                        return
                # A new watch is checked immediately, whatever the counter says: the key may have
                # changed between the watch's transaction and now.
                now = time.monotonic()
                if counter != seen:
                    moved = now
                is_new = counter != seen or not known.issuperset(watches)
                if is_new and self._look(watches):
                    seen, known = counter, set(watches)
                time.sleep(min(_LONGEST, max(_SHORTEST, _SHARE * (now - moved))))
        except FdbqueueError as error:
            with self._lock:
                watches, self._watches, self._is_running = self._watches, {}, False
            for future in watches:
                future.finish(error)

    def _look(self, watches: dict[WatchFuture, tuple[bytes, bytes | None]]) -> bool:
        """Finish the watches whose keys changed; return false if that took too long."""
        snapshot = self._storage.begin()
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
        for future in changed:
            self._forget(future)
            future.finish()
        return True
