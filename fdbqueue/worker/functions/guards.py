"""What a worker guards against in functions of the program: forks, and slow transactions."""

from __future__ import annotations

import math
import os
import sys
import threading
import time

from fdbqueue.errors import HandlerTooSlow
from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")

_MAX_FORKING = 3  # tries of a transaction that may fork

TRANSACTION = 5.0
"""Seconds that a transaction lives."""


class _Forks(threading.local):
    """How often each thread has forked this process."""

    n = 0


_forks = _Forks()


def _note_fork() -> None:
    _forks.n += 1


os.register_at_fork(after_in_parent=_note_fork)


class Tries:
    """The tries of a part of the body of one transaction.

    Attributes:
        tried: When the current one began, by the performance counter; infinite if there is none.
        seconds: How long the last one took.

    >>> tries = Tries()
    >>> tries.begin_try()
    >>> tries.end_try()
    >>> tries.tried, tries.seconds < 60
    (inf, True)
    """

    tried = math.inf
    seconds = 0.0
    _forks_before = 0
    _n_forking = 0

    @property
    def is_retry(self) -> bool:
        """True once a try has ended."""
        return self.seconds > 0

    def begin_try(self) -> None:
        """Note that a try begins.

        Raises:
            HandlerTooSlow: The one before was too slow.
            RuntimeError: Several have forked, which ends a transaction of the embedded engine.
        """
        if self.seconds > TRANSACTION:
            raise HandlerTooSlow(self.seconds)
        if self._n_forking > _MAX_FORKING:
            raise RuntimeError(
                "each try of a transaction has forked this process, which ends the transaction; "
                "fork before it, or outside of it"
            )
        self._forks_before = _forks.n
        self.tried = time.perf_counter()

    def end_try(self) -> None:
        """Note that a try has ended."""
        self._n_forking += _forks.n > self._forks_before
        self.seconds, self.tried = time.perf_counter() - self.tried, math.inf


class InThisProcess:
    """A `with` block that calls functions of the program, and that no forked process leaves.

    Args:
        name: The name of the job.

    >>> with InThisProcess("shop.send"):
    ...     pass
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if os.getpid() != self._process:
            _end_child(self._name, error)


def _end_child(name: str, error: BaseException | None) -> None:
    code = 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        else:
            _log.error(
                "%s: a process that the job forked has left the job's code, and is ended "
                "before it becomes a second worker; end it with os._exit, or use multiprocessing",
                name or "the handler",
                exc_info=error,
            )
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
