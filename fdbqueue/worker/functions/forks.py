"""Processes that a job forks: each is ended before it becomes a second worker."""

from __future__ import annotations

import os
import sys

from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")


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
