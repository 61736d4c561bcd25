"""The writers' lock, and the fsync that commits share."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fdbqueue.errors import FDBError, StorageError

__all__ = ["SharedSync", "WritersLock"]

_TURN = 0.25  # seconds; a starved transaction may keep the writers' lock for one to two of them


class WritersLock:
    """One writer at a time, among threads and processes; the death of a holder frees it.

    Waiters queue in the kernel (`flock`), which wakes them at once, where SQLite's busy handler
    would sleep between tries.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = self._opened()
        self._threads = threading.Lock()
        self._watchdog = _Watchdog()

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            if self._descriptor < 0:
                raise FDBError(1025)  # closed while this thread waited
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            # Whatever it was, a signal handler's exception for example: the lock is not held.
            self.__exit__()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        try:
            if self._descriptor >= 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close it for good; called by its holder."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def renew_after_fork(self) -> None:
        """In a forked child: a lock of its own, not held, in place of the parent's, which is."""
        os.close(self._descriptor)
        self._descriptor = self._opened()
        self._threads = threading.Lock()
        self._watchdog = _Watchdog()

    def turn(self) -> Turn:
        """Take the lock for a whole transaction."""
        turn = Turn(self)
        try:
            self._watchdog.watch(turn)
        except BaseException:
            turn.end()
            raise
        return turn


class Turn:
    """A starved transaction's turn: the lock from its first read until it ends.

    Nobody else commits meanwhile, so its commit cannot conflict. A turn is ended by the
    watchdog after a quarter to half a second: a transaction that dawdles, or waits for another
    one, stops nobody.
    """

    def __init__(self, lock: WritersLock) -> None:
        self._lock = lock
        self._guard = threading.Lock()
        self._held = True
        lock.__enter__()

    @property
    def is_over(self) -> bool:
        return not self._held

    def end(self) -> None:
        """Give the lock back, if the turn was not over already."""
        if self.claim():
            self._lock.__exit__()

    def claim(self) -> bool:
        """End the turn; whether the lock was still held, and so now is the caller's to leave."""
        with self._guard:
            held, self._held = self._held, False
        return held


class _Watchdog:
    """Ends turns that take too long, by a thread that is there while turns are taken.

    A timer for each turn would be a thread for each: several times the cost of the turn.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turn: Turn | None = None
        self._is_there = False

    def watch(self, turn: Turn) -> None:
        """Watch this turn, which took the place of the one before."""
        with self._guard:
            self._turn = turn
            if not self._is_there:
                threading.Thread(target=self._look, daemon=True).start()
                self._is_there = True

    def _look(self) -> None:
        seen: Turn | None = None
        while True:
            time.sleep(_TURN)
            with self._guard:
                turn = self._turn
                if turn is seen and (turn is None or turn.is_over):
                    self._turn, self._is_there = None, False
                    return
            if turn is not None and turn is seen:
                turn.end()
            seen = turn


class SharedSync:
    """One fdatasync for all the commits that wait for one.

    A commit takes a ticket while it has the writers' lock, and waits without it. Who comes first
    syncs for everybody whose ticket was out when the sync began.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._tickets = 0
        self._synced = 0
        self._failure: OSError | None = None

    def ticket(self) -> int:
        """A place among the commits so far; called with the writers' lock."""
        self._tickets += 1
        return self._tickets

    def wait(self, ticket: int) -> None:
        """Return once the commit with this ticket is on disk."""
        with self._lock:
            if self._synced >= ticket:
                return
            covered = self._tickets
            try:
                if self._failure is not None:
                    # After a failed sync the kernel may call lost pages clean: no later success
                    # says anything of them.
                    raise self._failure
                _data_sync(self._descriptor)
            except OSError as error:
                self._failure = error
                raise StorageError(
                    str(self._path),
                    f"the disk did not confirm a write ({error.strerror})",
                    "whether the last commits are on disk is unknown; close the database, look at "
                    "the system's log, and open it again",
                ) from error
            self._synced = covered

    def close(self) -> None:
        """Sync what somebody still waits for, and close; called with the writers' lock.

        If that fails, it is told to who waits.
        """
        with suppress(StorageError):
            self.wait(self._tickets)
        with self._lock:
            os.close(self._descriptor)


# Where the system has no fdatasync (macOS), fsync does the same and more.
_data_sync = getattr(os, "fdatasync", os.fsync)
