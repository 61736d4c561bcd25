"""A lock that a forked child does not inherit."""

from __future__ import annotations

import os
import threading


class Guard:
    """A lock for a `with` block. Each process has its own.

    A thread may hold it while another one forks. In the child that thread does not exist, and
    would never release it.

    >>> with Guard():
    ...     print("alone")
    alone
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        process = os.getpid()
        lock = self._locks.get(process) or self._locks.setdefault(process, threading.Lock())
        lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()
