"""The writers' lock: one writer at a time, among threads and processes."""

from __future__ import annotations

import fcntl
import io
import logging
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TypeVar

from fdbqueue.embedded.directory import open_file
from fdbqueue.errors import FdbqueueError, LockTimeout

logger = logging.getLogger("fdbqueue")

_PAUSE = 0.002  # the most seconds between two attempts to take the lock
_SLOW = 5.0  # seconds of waiting after which the log names the holder

# Type, mode, process, inode and first byte of a lock in Linux's /proc/locks.
_LOCK = re.compile(r"\d+: (\w+) +ADVISORY +(\w+) +(-?\d+) \S+:(\d+) (\d+) ")

_T = TypeVar("_T")

inside = threading.RLock()
"""Held by a thread that opens connections or commits, and by a fork.

Reentrant, because a signal handler may commit as well.
"""


class WritersLock:
    """A lock on a file, which the system releases when its holder dies.

    Code that needs the lock is a *section*, a function that `run` calls. `inside` excludes other
    threads, `flock` other processes. An interrupt may leave `flock` behind: then the next section
    already has it, or a regular `release` frees it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = open_file(path)
        self._waits_since = math.inf  # by `time.monotonic()`

    def run(
        self,
        section: Callable[[], _T],
        deadline: float | None,
        before_wait: Callable[[], object] = bool,
    ) -> _T:
        """Call a section while holding the lock, and `before_wait` before each wait.

        Raise `LockTimeout` after the deadline, by `time.monotonic()`. A section with a deadline
        retries after random pauses; others block in `flock`.
        """
        file = self._file
        while file is not None:
            with inside:
                if self._file is None:
                    fcntl.flock(file, fcntl.LOCK_UN)
                    break
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass
                else:
                    try:
                        return section()
                    finally:
                        fcntl.flock(file, fcntl.LOCK_UN)
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise LockTimeout(str(self._path), *self._holder())
            before_wait()
            if deadline is None:
                self._waits_since = now
                try:
                    # Not inside, which others need: another section may use and release the lock.
                    fcntl.flock(file, fcntl.LOCK_EX)
                finally:
                    self._waits_since = math.inf
            else:
                time.sleep(min(random.uniform(0, _PAUSE), deadline - now))
        raise copy(self._closed)

    def warn_of_wait(self) -> None:
        """Log which process has the lock if a section waits long."""
        if time.monotonic() - self._waits_since > _SLOW:
            self._waits_since = time.monotonic() + 9 * _SLOW
            logger.warning("%s", LockTimeout(str(self._path), *self._holder()).reason)

    def release(self) -> None:
        """Release the lock that an interrupt may have left."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def tell_of_commit(self) -> None:
        """Wake the processes that wait for a change of the file."""
        if self._file is not None:
            try:
                os.pwrite(self._file.fileno(), b"c", 0)
            except OSError:
                return  # they look now and then anyway

    def close(self, failure: FdbqueueError) -> io.FileIO | None:
        """Close the lock: `run` raises the failure.

        Return its file, which closes once no thread waits for it.
        """
        with inside:
            self._closed = failure
            file, self._file = self._file, None
            return file

    def _holder(self) -> tuple[int | None, bool]:
        """Return the lock's holder, if known, and whether it is stopped."""
        return next(iter(lock_owners(self._path, "FLOCK", "WRITE").items()), (None, False))


def lock_owners(path: Path, kind: str, mode: str, at: range = range(1)) -> dict[int, bool]:
    """Return the processes that lock a file, and whether each is stopped.

    `kind` is `FLOCK` or `POSIX`, `mode` `READ` or `WRITE`; `at` has the possible positions.
    """
    owners: dict[int, bool] = {}
    with suppress(OSError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            found = _LOCK.match(line)
            if not found or found[1] != kind or found[2] != mode or int(found[4]) != inode:
                continue
            process = int(found[3])
            if process > 0 and int(found[5]) in at:
                # The state follows the name in parentheses, which may itself contain some.
                state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
                owners[process] = state in ("T", "t")
    return owners
