"""Waiting for other processes' writes to a file: Linux reports them, elsewhere the wait polls."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from pathlib import Path

# From <sys/inotify.h>. A database that is closed closes the file, and its own wait ends.
_IN_MODIFY, _IN_CLOSE_WRITE = 0x2, 0x8
_NOTICES = 65_536  # bytes, more than all notices of one file, because equal ones are merged

# A commit writes to the file several times. While commits follow each other, a wait ends this long
# after the first write.
_SETTLE = 0.0005  # seconds
_BUSY = 0.01  # seconds between changes that follow each other

# Without notices, a wait is a share of the time since the last change, within bounds in seconds.
_SHARE = 1 / 20
_MIN_POLL, _MAX_POLL = 0.002, 0.01

_open: set[int] = set()
"""The descriptors of this process. A forked child closes its copies."""


class FileChanges:
    """The writes to a file by any process, for one thread that waits for them."""

    def __init__(self, path: Path) -> None:
        self._notices = _begin_notices(path)
        if self._notices is not None:
            _open.add(self._notices)
            self._ready = select.poll()
            self._ready.register(self._notices, select.POLLIN)

    def wait(self, changed: float, longest: float) -> None:
        """Return soon after the next write, or the first since the last call; or after the longest.

        Args:
            changed: When the file changed last, by `time.monotonic()`.
            longest: The most seconds to wait.
        """
        if self._notices is None:
            quiet = time.monotonic() - changed
            time.sleep(min(_MAX_POLL, longest, max(_MIN_POLL, _SHARE * quiet)))
        elif self._ready.poll(1000 * longest):
            if time.monotonic() - changed < _BUSY:
                time.sleep(_SETTLE)
            os.read(self._notices, _NOTICES)

    def close(self) -> None:
        """Release the descriptor, if there is one."""
        if self._notices is not None:
            _open.discard(self._notices)
            os.close(self._notices)


def _begin_notices(path: Path) -> int | None:
    """Return a descriptor to read notices of changes from.

    `None` if the system offers none, or the user's processes have too many already.
    """
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    notices: int = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if notices < 0:
        return None
    if library.inotify_add_watch(notices, os.fsencode(path), _IN_MODIFY | _IN_CLOSE_WRITE) < 0:
        os.close(notices)
        return None
    return notices


def _close_copies() -> None:
    while _open:
        os.close(_open.pop())


os.register_at_fork(after_in_child=_close_copies)
