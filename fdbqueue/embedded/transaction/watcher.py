"""Watches: who waits for a key to change is told, by a look at a shared counter.

The log of commits is in memory that all processes share. One thread looks at its end while there
are watches, and at the watched keys only when it moved.
"""

from __future__ import annotations

import _thread
import threading
import time
from typing import TYPE_CHECKING

from fdbqueue.embedded.limits import MAX_WATCHES
from fdbqueue.embedded.transaction.futures import WatchFuture
from fdbqueue.errors import FDBError, FdbqueueError

if TYPE_CHECKING:
    from fdbqueue.embedded.storage.storage import Storage

__all__ = ["Watcher"]

# From one look at the counter to the next a share of the time passes since it last moved, but so
# many seconds at least, and at most.
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

    def reserve(self, more: int) -> None:
        """Raise 1032 where `more` watches would be too many."""
        if len(self._watches) + more > MAX_WATCHES:
            raise FDBError(1032)

    def watch(self, key: bytes, value: bytes | None, future: WatchFuture) -> None:
        """Finish the future once the key has another value than this."""
        future.when_cancelled(self._forget)
        with self._lock:
            if self._is_closed:
                future.finish(FDBError(1025))
                return
            self._watches[future] = (key, value)
        if not self._is_running:
            # An interrupt within this call leaves nothing behind, as one in `Thread.start` may.
            _thread.start_new_thread(self._run, ())

    def close(self) -> None:
        """End every watch with 1025, and the thread within its next look."""
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
                *counter, _, began, _ = self._storage.log.state()
                if began is not None and self._storage.recover():
                    continue  # a killed process may have left a commit
                with self._lock:
                    watches = dict(self._watches)
                    if not watches:
                        self._is_running = False
                        return
                # A new watch is looked at once, whatever the counter says: the change may have
                # come between its transaction and now.
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
        """Finish the watches whose keys have changed; return false if the look took too long."""
        snapshot = self._storage.begin()
        try:
            changed = [
                future for future, (key, value) in watches.items() if snapshot.get(key) != value
            ]
        except FDBError as error:
            if error.code != 1007:
                raise
            return False  # the process was stopped meanwhile, for example
        finally:
            self._storage.end(snapshot)
        for future in changed:
            self._forget(future)
            future.finish()
        return True
