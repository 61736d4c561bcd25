"""The writers' lock, and the fsync that commits share."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fdbqueue.embedded.disk.commit_log import CommitLog
from fdbqueue.embedded.disk.write_ahead_log import Extent, next_commit
from fdbqueue.errors import FDBError, LockTimeout, StorageError

__all__ = ["SharedSync", "Turn", "WritersLock", "lock_owners"]

logger = logging.getLogger("fdbqueue")

# Seconds between two tries to get the lock, at first and after many.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.000_05, 0.002
_SLOW = 5.0  # seconds of waiting after which the log names the holder

# Kind, mode, process, inode, first and last byte of a lock in Linux's /proc/locks.
_LOCK = re.compile(r"\d+: (\w+) +ADVISORY +(\w+) +(-?\d+) \S+:(\d+) (\d+) (\w+)")
_ANYWHERE = range(sys.maxsize)

_T = TypeVar("_T")


class WritersLock:
    """One writer at a time, among threads and processes; the death of a holder frees it.

    What needs the lock is a section, a function that `run` calls. `_inside` tells the threads of
    this process apart, `flock` the processes. Python leaves the `with` statement of a lock of its
    own in one step, so `_inside` is held exactly as long as a thread is in a section, whatever an
    exception of a signal handler interrupts. The `flock` may then stay behind; whoever is next
    inside knows that it is nobody's, and `reclaim`, called now and then, frees it for others.

    Waiters for another process try again and again instead of queueing in the kernel: so their wait
    ends at its deadline, whatever that process does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A finalizer may end a turn while its thread is inside.
        self._inside = threading.RLock()
        self._turn: Turn | None = None
        self._descriptor = self._opened()

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def run(
        self, section: Callable[[], _T], deadline: float | None, turn: Turn | None = None
    ) -> _T:
        """Wait for the lock, and call a section that has it.

        Args:
            section: What to do with the lock.
            deadline: When to give up, by `time.monotonic()`; `None` waits forever.
            turn: The turn of the caller, which ends with the section.

        Raises:
            LockTimeout: The deadline passed.
            FDBError: 1025, the database was closed.
        """
        pause = _SHORTEST_PAUSE
        slow = None
        while True:
            with self._inside:
                if self._lock(turn):
                    try:
                        return section()
                    finally:
                        self._unlock()
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise LockTimeout(str(self._path), *self.holder())
            if slow is None:
                slow = now + _SLOW
            elif now >= slow:
                slow = now + 10 * _SLOW
                logger.warning("%s", LockTimeout(str(self._path), *self.holder()).reason)
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    def run_if_free(self, section: Callable[[], object]) -> bool:
        """Call a section unless another process has the lock; whether it was called."""
        with self._inside:
            if not self._lock():
                return False
            try:
                section()
            finally:
                self._unlock()
        return True

    def take_turn(self, deadline: float | None) -> Turn:
        """Take the lock for a whole transaction."""
        turn = Turn(self)

        def begin() -> None:
            self._turn = turn

        self.run(begin, deadline)
        return turn

    def _lock(self, turn: Turn | None = None) -> bool:
        if self._descriptor < 0:
            raise FDBError(1025)
        if self._turn is not None:
            if self._turn is not turn:
                return False
            self._turn = None
            return True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(self) -> None:
        if self._turn is None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def end_turn(self, turn: Turn) -> None:
        """Give the lock back, unless the turn is over already."""
        with self._inside:
            self._end_turn(turn)

    def _end_turn(self, turn: Turn | None) -> None:
        if turn is not None and turn is self._turn:
            self._turn = None
            self._unlock()

    def reclaim(self, undo: Callable[[], None]) -> None:
        """End a turn that takes too long, or what an interrupt left behind, after `undo()`."""
        with self._inside:
            if self._descriptor < 0:
                return
            if self._turn is None:
                undo()
                self._unlock()
            elif self._turn.is_seen:
                self._end_turn(self._turn)
            else:
                self._turn.is_seen = True

    def close(self) -> None:
        """Close it for good: no section is called any more."""
        with self._inside:
            self._turn = None
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def before_fork(self) -> None:
        """Keep every thread out of the sections."""
        self._inside.acquire()
        self._end_turn(self._turn)

    def after_fork(self, in_child: bool) -> None:
        """Go on; a child has a lock of its own."""
        if in_child:
            os.close(self._descriptor)
            self._descriptor = self._opened()
            self._inside = threading.RLock()
        else:
            self._inside.release()

    def holder(self) -> tuple[int | None, bool]:
        """The process that has the lock, and whether it is stopped; `None` if unknown.

        Linux tells in `/proc/locks`; other systems, and other containers, do not.
        """
        owners = lock_owners(os.fstat(self._descriptor).st_ino, "FLOCK", "WRITE")
        return next(iter(owners.items()), (None, False))


def lock_owners(inode: int, kind: str, mode: str, at: range = _ANYWHERE) -> dict[int, bool]:
    """Return the processes that have a lock on a byte of a file, and whether each is stopped."""
    owners = {}
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            found = _LOCK.match(line)
            if not found or found[1] != kind or found[2] != mode or int(found[4]) != inode:
                continue
            process, first = int(found[3]), int(found[5])
            last = sys.maxsize if found[6] == "EOF" else int(found[6])
            if process > 0 and first < at.stop and last >= at.start:
                # The state stands behind the name, which may have parentheses of its own.
                state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
                owners[process] = state in ("T", "t")
    return owners


class Turn:
    """A starved transaction's turn: it has the lock from its first read until it ends.

    Nobody else commits meanwhile, so its commit cannot conflict. `WritersLock.reclaim`, called
    every quarter of a second, ends it at the second look: a transaction that dawdles, or waits for
    another one, stops nobody.
    """

    def __init__(self, lock: WritersLock) -> None:
        self._lock = lock
        self.is_seen = False

    def end(self) -> None:
        """Give the lock back, unless the turn is over already."""
        self._lock.end_turn(self)


class SharedSync:
    """One fdatasync for all the commits that wait for one.

    A commit takes a ticket while it has the writers' lock, and waits without it. Who comes first
    syncs for everybody whose ticket was out when the sync began.
    """

    def __init__(self, path: Path, log: CommitLog, failure: OSError | None = None) -> None:
        self._path = path
        self._log = log
        self._end = Extent(0, 0)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._tickets = 0
        self._synced = 0
        self.failure = failure

    def ticket(self) -> int:
        """A place among the commits so far; called with the writers' lock."""
        self._end = self._log.committed = next_commit(self._descriptor, self._log.committed)
        self._tickets += 1
        return self._tickets

    def wait(self, ticket: int) -> None:
        """Return once the commit with this ticket is on disk."""
        with self._lock:
            if self._synced >= ticket:
                return
            covered, end = self._tickets, self._end
            try:
                if self.failure is not None:
                    # After a failed sync the kernel may call lost pages clean: no later success
                    # says anything of them.
                    raise self.failure
                _data_sync(self._descriptor)
            except OSError as error:
                self.failure = error
                raise StorageError(
                    str(self._path),
                    f"the disk did not confirm a write ({error.strerror})",
                    "whether the last commits are on disk is unknown; close the database, look at "
                    "the system's log, and open it again",
                ) from error
            self._synced = covered
            self._log.synced = end
            if self._log.committed.salt != end.salt:  # the log began anew, at any time until now
                self._log.synced = Extent(0, 0)

    def forget(self, and_begin_anew: bool = False) -> None:
        """Claim nothing of the write-ahead log any more, before SQLite removes or shortens it."""
        with self._lock:
            if and_begin_anew:
                self._log.committed = Extent(0, 0)
            self._end = self._log.synced = Extent(0, 0)

    def close(self) -> None:
        """Sync what commits still wait for, and close; called while no thread can commit.

        If the sync fails, each of these commits gets the error.
        """
        with suppress(StorageError):
            self.wait(self._tickets)
        self.retire()

    def retire(self) -> None:
        """Close without a sync: the commits so far are on disk, in a newer generation of files."""
        with self._lock:
            if self.failure is None:
                self._synced = self._tickets
            os.close(self._descriptor)


# Where the system has no fdatasync (macOS), fsync does the same and more.
_data_sync = getattr(os, "fdatasync", os.fsync)
