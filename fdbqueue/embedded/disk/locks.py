"""The writers' lock."""

from __future__ import annotations

import logging
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fdbqueue.embedded.disk.process_lock import ProcessLock
from fdbqueue.errors import LockTimeout

logger = logging.getLogger("fdbqueue")

# Seconds between two attempts to take the lock, initially and after many attempts.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.000_05, 0.002
_SLOW = 5.0  # seconds of waiting after which the log names the holder

# Type, mode, process, inode, first and last byte of a lock in Linux's /proc/locks.
_LOCK = re.compile(r"\d+: (\w+) +ADVISORY +(\w+) +(-?\d+) \S+:(\d+) (\d+) (\w+)")
_ANYWHERE = range(sys.maxsize)

_T = TypeVar("_T")


class WritersLock:
    """A lock for one writer at a time, among threads and processes. A holder's death frees it.

    Code that needs the lock is a section, a function that `run` calls. `_inside` excludes the other
    threads of this process, `_of_processes` the other processes. Python leaves the `with` statement
    of its own lock in one step, so `_inside` is held exactly while a thread is in a section,
    wherever an exception of a signal handler strikes. The other lock may then stay behind. The next
    thread inside can tell that no section holds it, and `reclaim`, called regularly, frees it for
    other processes.

    A process that waits for another one polls instead of queueing in the kernel. Its wait therefore
    ends at its deadline, whatever the other process does.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        self._path = path
        self._durable = durable
        # Reentrant, because a finalizer may end a hold while its thread is inside.
        self._inside = threading.RLock()
        self._hold: WriteLockHold | None = None
        self._hold_thread = 0
        self.waits = 0
        """How often a section has waited."""
        self._of_processes = ProcessLock(path, takes_slices=not durable)

    def run(
        self,
        section: Callable[[], _T],
        deadline: float | None,
        hold: WriteLockHold | None = None,
        before_wait: Callable[[], object] = bool,
    ) -> _T:
        """Wait for the lock, and call a section while holding it.

        Args:
            section: The function to call.
            deadline: When to give up, by `time.monotonic()`; `None` waits forever.
            hold: The hold of the caller's transaction, which ends with the section.
            before_wait: Called before each wait.

        Returns:
            The result of the section.

        Raises:
            LockTimeout: The deadline passed.
            FDBError: 1025, the database was closed.
        """
        pause = _SHORTEST_PAUSE
        slow = None
        while True:
            with self._inside:
                if self._of_processes.take() if self._hold is None else self._pass_on(hold):
                    try:
                        return section()
                    finally:
                        if self._hold is None:
                            self._of_processes.release()
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise LockTimeout(str(self._path), *self.holder())
            if slow is None:
                slow = now + _SLOW
            elif now >= slow:
                slow = now + 10 * _SLOW
                logger.warning("%s", LockTimeout(str(self._path), *self.holder()).reason)
            before_wait()
            with self._inside:
                self.waits += 1
                seconds = self._of_processes.wait(pause * random.uniform(0.5, 1))
            time.sleep(seconds if deadline is None else min(seconds, deadline - now))
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    def run_if_free(self, section: Callable[[], object]) -> bool:
        """Call a section unless the lock is taken; return whether it was called."""
        with self._inside:
            if self._hold is not None or not self._of_processes.take():
                return False
            try:
                section()
            finally:
                self._of_processes.release()
        return True

    def take_hold(self, deadline: float | None) -> WriteLockHold:
        """Take the lock until a transaction ends."""
        hold = WriteLockHold()

        def begin() -> None:
            self._hold, self._hold_thread = hold, threading.get_ident()

        self.run(begin, deadline)
        return hold

    def _pass_on(self, hold: WriteLockHold | None) -> bool:
        """End the hold of the caller's transaction, which keeps the lock for a section.

        End the hold of another transaction of the same thread as well: the thread would wait for
        itself.
        """
        if hold is not self._hold and self._hold_thread != threading.get_ident():
            return False
        self._hold = None
        return True

    def end_hold(self, hold: WriteLockHold | None) -> None:
        """Release the lock, unless the hold has already ended."""
        with self._inside:
            if hold is not None and hold is self._hold:
                self._hold = None
                self._of_processes.release()

    def reclaim(self, undo: Callable[[], None]) -> None:
        """Call `undo()` and release a lock left by an interrupt, or end a hold that takes too long.

        The second call that finds the same hold ends it.
        """
        with self._inside:
            if self._of_processes.is_closed:
                return
            if self._hold is None:
                undo()
                self._of_processes.unlock()
            elif self._hold.is_seen:
                self.end_hold(self._hold)
            else:
                self._hold.is_seen = True

    def close(self) -> None:
        """Close the lock for good: no section is called any more."""
        with self._inside:
            self._hold = None
            self._of_processes.close()

    def before_fork(self) -> None:
        """Keep all other threads out of sections, and end a hold."""
        self._inside.acquire()
        self.end_hold(self._hold)

    def after_fork(self, in_child: bool) -> None:
        """Let threads into sections again. In a child, open the lock file again."""
        if in_child:
            self._of_processes.close()
            self._of_processes = ProcessLock(self._path, takes_slices=not self._durable)
            self._inside = threading.RLock()
        else:
            self._inside.release()

    def holder(self) -> tuple[int | None, bool]:
        """Return the process that holds the lock, or `None` if unknown, and whether it is stopped.

        Linux lists holders in `/proc/locks`. Other systems, and other containers, do not.
        """
        owners = lock_owners(self._of_processes.inode, "FLOCK", "WRITE")
        return next(iter(owners.items()), (None, False))


def lock_owners(inode: int, kind: str, mode: str, at: range = _ANYWHERE) -> dict[int, bool]:
    """Return the processes that lock a byte of a file, and whether each one is stopped."""
    owners: dict[int, bool] = {}
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            found = _LOCK.match(line)
            if not found or found[1] != kind or found[2] != mode or int(found[4]) != inode:
                continue
            process, first = int(found[3]), int(found[5])
            last = sys.maxsize if found[6] == "EOF" else int(found[6])
            if process > 0 and first < at.stop and last >= at.start:
                # The state follows the name in parentheses, which may itself contain some.
                state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
                owners[process] = state in ("T", "t")
    return owners


class WriteLockHold:
    """The hold of a starved transaction on the writers' lock, from its first read until its end.

    No other transaction commits meanwhile, so its commit cannot conflict, unless its own thread
    commits another one. `WritersLock.reclaim`, called every quarter of a second, ends the hold at
    the second call. A transaction that is slow therefore blocks other transactions only briefly.
    """

    is_seen = False
    """True once `WritersLock.reclaim` has found it."""
