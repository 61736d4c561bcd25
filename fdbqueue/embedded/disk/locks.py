"""The writers' lock, and the fdatasync that commits share."""

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
from fdbqueue.embedded.disk.process_lock import ProcessLock
from fdbqueue.embedded.disk.write_ahead_log import Extent, next_commit
from fdbqueue.errors import LockTimeout, StorageError

__all__ = ["SharedSync", "WriteLockHold", "WritersLock", "lock_owners"]

logger = logging.getLogger("fdbqueue")

# Seconds between two attempts to take the lock, initially and after many attempts.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.000_05, 0.002
_LONGEST_SYNC = 0.02  # seconds to wait for the sync of another process
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
        hold = WriteLockHold(self)

        def begin() -> None:
            self._hold = hold

        self.run(begin, deadline)
        return hold

    def _pass_on(self, hold: WriteLockHold | None) -> bool:
        """End the hold of the caller's transaction, which keeps the lock for a section."""
        if hold is not self._hold:
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

    No other transaction commits meanwhile, so its commit cannot conflict. `WritersLock.reclaim`,
    called every quarter of a second, ends the hold at the second call. A transaction that is slow,
    or waits for another one, therefore blocks other transactions only briefly.
    """

    def __init__(self, lock: WritersLock) -> None:
        self._lock = lock
        self.is_seen = False

    def end(self) -> None:
        """Release the lock, unless the hold has already ended."""
        self._lock.end_hold(self)


class SharedSync:
    """One fdatasync for all commits that wait for one, of all threads and processes.

    A commit takes a ticket while it holds the writers' lock, and waits without the lock. The first
    waiter syncs for all commits that happened before the sync started. The log of commits tells the
    other processes how much is on disk. They wait for a sync that is under way, but not for a
    process that does not finish it: then they sync themselves.
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
        """Return the number of the newest commit. The caller holds the writers' lock."""
        self._end = self._log.committed = next_commit(self._descriptor, self._log.committed)
        self._tickets += 1
        return self._tickets

    def wait(self, ticket: int) -> None:
        """Return once the commit with this ticket is on disk."""
        with self._lock:
            if self._synced >= ticket:
                return
            if self.failure is not None:
                raise self._unconfirmed(self.failure)
            covered, end = self._tickets, self._end
            if not self._is_on_disk(end):
                is_locked = self._wait_for_others(end)
                try:
                    if not self._is_on_disk(end):
                        self._sync(end)
                finally:
                    if is_locked:
                        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._synced = covered

    def catch_up(self) -> None:
        """Sync the commits that nothing has waited for."""
        if self._synced < self._tickets:
            self.wait(self._tickets)

    def _wait_for_others(self, end: Extent) -> bool:
        """Wait while another process syncs; return whether this process has the lock to do so."""
        patience = time.monotonic() + _LONGEST_SYNC
        pause = 2 * _SHORTEST_PAUSE
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > patience or self._is_on_disk(end):
                    return False
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    def _is_on_disk(self, end: Extent) -> bool:
        synced = self._log.synced
        return 0 < end.frames <= synced.frames and synced.salt == end.salt

    def _sync(self, end: Extent) -> None:
        committed = self._log.committed  # of all processes, before the sync starts
        if committed.salt == end.salt and committed.frames > end.frames:
            end = committed
        try:
            _data_sync(self._descriptor)
        except OSError as error:
            # After a failed sync the kernel may mark lost pages as clean, so a later success proves
            # nothing about them.
            self.failure = error
            raise self._unconfirmed(error) from error
        self._log.synced = end
        if self._log.committed.salt != end.salt:  # the log was restarted in the meantime
            self._log.synced = Extent(0, 0)

    def _unconfirmed(self, error: OSError) -> StorageError:
        return StorageError(
            str(self._path),
            f"the disk did not confirm a write ({error.strerror})",
            "whether the last commits are on disk is unknown; close the database, check the system "
            "log, and open it again",
        )

    def forget(self, and_begin_anew: bool = False) -> None:
        """Withdraw the note of what is on disk, before SQLite removes or shortens the log."""
        with self._lock:
            if and_begin_anew:
                self._log.committed = Extent(0, 0)
            self._end = self._log.synced = Extent(0, 0)

    def close(self) -> None:
        """Sync the commits that still wait, and close. No thread may commit at the same time.

        If the sync fails, each of these commits raises the error.
        """
        with suppress(StorageError):
            self.wait(self._tickets)
        self.retire()

    def retire(self) -> None:
        """Close without a sync: the commits are on disk, in a newer generation of files."""
        with self._lock:
            if self.failure is None:
                self._synced = self._tickets
            os.close(self._descriptor)


# Where the system lacks fdatasync (macOS), fsync does the same and more.
_data_sync = getattr(os, "fdatasync", os.fsync)
