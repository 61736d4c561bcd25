"""Waiting for other processes' writes to a file: Linux reports them, elsewhere the wait polls."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

# From <sys/inotify.h>. A database that is closed closes the file, and its own wait ends.
_IN_MODIFY, _IN_CLOSE_WRITE = 0x2, 0x8
_NOTICES = 65_536  # bytes, more than all notices of one file, because equal ones are merged

_POLL = 0.01  # seconds of a wait without notices
_PAUSE = 0.0005  # seconds before a wait for notices, in which commits that follow each other gather


def file_changes(path: Path, longest: float) -> Generator[None, None, None]:
    """Yield at once, and then soon after each write to a file by any process.

    Args:
        path: The file.
        longest: The seconds after which to yield although nothing was written.
    """
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
    """Return a descriptor to read notices of changes from.

    `None` if the system offers none, or the user's processes have too many already.
    """
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    notices: int = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if library.inotify_add_watch(notices, os.fsencode(path), _IN_MODIFY | _IN_CLOSE_WRITE) < 0:
        with suppress(OSError):  # there may be none
            os.close(notices)
        return None
    return notices
