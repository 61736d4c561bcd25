"""Guards against functions of the program that fork, or whose transactions are slow."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from fdbqueue.errors import HandlerTooSlow
from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")

TRANSACTION = 5.0
"""Seconds that a transaction lives."""


class Tries:
    """The tries of a part of the body of one transaction.

    Attributes:
        tried: When the current one began, by the performance counter; infinite if there is none.
    """

    tried = math.inf
    seconds = 0.0

    @property
    def is_retry(self) -> bool:
        """True once a try has ended."""
        return self.seconds > 0

    @contextmanager
    def trying(self) -> Generator[None]:
        """Time a try; raise `HandlerTooSlow` if the previous one was too slow."""
        if self.seconds > TRANSACTION:
            raise HandlerTooSlow(self.seconds)
        self.tried = time.perf_counter()
        try:
            yield
        finally:
            self.seconds, self.tried = time.perf_counter() - self.tried, math.inf


class InThisProcess:
    """A `with` block that calls functions of the program, and that no forked process leaves."""

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
