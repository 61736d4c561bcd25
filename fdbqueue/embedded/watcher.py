"""Watches: who waits for a key to change is told, by a look at a shared counter.

The log of commits is in memory that all processes share. One thread looks at its end while there
are watches, and at the watched keys only when it moved.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from fdbqueue.embedded.futures import WatchFuture
from fdbqueue.embedded.limits import MAX_WATCHES
from fdbqueue.errors import FDBError, FdbqueueError

if TYPE_CHECKING:
    from fdbqueue.embedded.storage import Storage

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
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def reserve(self, more: int) -> None:
        """Raise 1032 where `more` watches would be too many."""
        if len(self._watches) + more > MAX_WATCHES:
            raise FDBError(1032)

    def watch(self, key: bytes, value: bytes | None, future: WatchFuture) -> None:
        """Finish the future once the key has another value than this."""
        future.when_cancelled(self._forget)
        with self._lock:
            if self._closed.is_set():
                future.finish(FDBError(1025))
                return
            self._watches[future] = (key, value)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="fdbqueue-watches", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End every watch with 1025."""
        self._closed.set()
        with self._lock:
            watches, self._watches = self._watches, {}
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for future in watches:
            future.finish(FDBError(1025))

    def _forget(self, future: WatchFuture) -> None:
        with self._lock:
            self._watches.pop(future, None)

    def _run(self) -> None:
        seen = None
        moved = 0.0
        known: set[WatchFuture] = set()
        try:
            while not self._closed.is_set():
                if self._storage.log.unpublished:
                    self._storage.recover()
                counter = self._storage.log.published
                with self._lock:
                    watches = dict(self._watches)
                    if not watches:
                        self._thread = None
                        return
                # A new watch is looked at once, whatever the counter says: the change may have
                # come between its transaction and now.
                now = time.monotonic()
                if counter != seen:
                    moved = now
                if counter != seen or not known.issuperset(watches):
                    self._look(watches)
                    seen, known = counter, set(watches)
                self._closed.wait(min(_LONGEST, max(_SHORTEST, _SHARE * (now - moved))))
        except FdbqueueError as error:
            with self._lock:
                watches, self._watches, self._thread = self._watches, {}, None
            for future in watches:
                future.finish(error)

    def _look(self, watches: dict[WatchFuture, tuple[bytes, bytes | None]]) -> None:
        snapshot = self._storage.begin()
        try:
            changed = [
                future for future, (key, value) in watches.items() if snapshot.get(key) != value
            ]
        finally:
            self._storage.end(snapshot)
        for future in changed:
            self._forget(future)
            future.finish()
