"""Watches: futures that become ready when a key changes.

Each commit ends with a write to the lock's file, for which one thread waits (on Linux; elsewhere it
polls), to read the watched keys.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import select
import sys
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from pathlib import Path

from fdbqueue.embedded.directory import LOCK_FILE
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.storage.tables import GET
from fdbqueue.embedded.transaction.futures import WatchFuture
from fdbqueue.errors import FDBError, FdbqueueError

# Seconds between looks. A process may be killed before it has told of its commit, and a look may
# have taken too long.
_MAX_WAIT = 1.0

# From <sys/inotify.h>. A database that is closed closes the file, and its own wait ends.
_IN_MODIFY, _IN_CLOSE_WRITE = 0x2, 0x8
_NOTICES = 65_536  # bytes, more than all notices of one file, because equal ones are merged

_POLL = 0.01  # seconds of a wait without notices
_PAUSE = 0.0005  # seconds before a wait for notices, in which commits that follow each other gather


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
        """Finish the watches whose keys changed; all, if the database cannot be read.

        A read that follows waits until the change is on disk.
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


def file_changes(path: Path, longest: float) -> Generator[None, None, None]:
    """Yield at once, soon after each write to a file, and after `longest` seconds without one."""
    notices = _begin_notices(path)
    if notices is None:
        while True:
            yield
            time.sleep(_POLL)
    try:
        ready = select.poll()
        ready.register(notices, select.POLLIN)
        while True:
            yield
            time.sleep(_PAUSE)
            if ready.poll(1000 * longest):
                os.read(notices, _NOTICES)
    finally:
        os.close(notices)


def _begin_notices(path: Path) -> int | None:
    """Return a descriptor of notices of changes, if the system has any."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    notices: int = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if library.inotify_add_watch(notices, os.fsencode(path), _IN_MODIFY | _IN_CLOSE_WRITE) < 0:
        with suppress(OSError):  # there may be none
            os.close(notices)
        return None
    return notices
