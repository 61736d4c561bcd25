"""How a worker is stopped: by a call, an error, SIGTERM or SIGINT."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fdbqueue.queue.base import Stop
from fdbqueue.worker.telemetry import Log

if TYPE_CHECKING:
    from fdbqueue.worker.endings import WorkerReport

_log = Log("fdbqueue.worker")


@dataclass(eq=False)
class Shutdown:
    """The end of a worker.

    Attributes:
        kill: Called before a second signal ends the process.
        limit: Returns why no other job may begin, or `None`.
        stop: Set once no other job may begin. Not an event: a signal handler must not take its
            lock.
        errors: The errors that stopped the worker.
    """

    grace: float
    kill: Callable[[], object] = lambda: None
    limit: Callable[[WorkerReport], str | None] | None = None
    stop: Stop = field(default_factory=Stop)
    errors: list[BaseException] = field(default_factory=list[BaseException])
    _began: float = math.inf

    @property
    def has_begun(self) -> bool:
        """True if the grace period has begun."""
        return self._began < math.inf

    @property
    def seconds_left(self) -> float:
        """Seconds until the grace period is over; infinite before it begins."""
        return self._began + self.grace - time.monotonic()

    def begin(self) -> None:
        """Begin no other job, and begin the grace period."""
        self._began = min(self._began, time.monotonic())
        self.stop.set()

    def note(self, report: WorkerReport) -> None:
        """At a limit, begin no other job, and let running jobs take their time."""
        if self.limit and not self.stop.is_set and (reason := self.limit(report)):
            self.stop.set()
            _log.warning("ending after the running jobs: %s", reason)

    def fail(self, error: BaseException) -> None:
        """Begin because of an error, which the worker raises at its end."""
        self.errors.append(error)
        self.begin()


@contextmanager
def stopping_on_signals(
    stop: Callable[[], object],
    noun: str,
    number: Callable[[], int],
    kill: Callable[[], object] = lambda: None,
) -> Generator[None]:
    """Call `stop` on SIGTERM and SIGINT; on the second signal, call `kill` and end the process.

    Does nothing outside of the main thread, which `stop` may interrupt anywhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    has_stopped = False

    def handle(received: int, _: object) -> None:
        nonlocal has_stopped
        if has_stopped:
            kill()
            signal.signal(received, signal.SIG_DFL)
            os.kill(os.getpid(), received)
        has_stopped = True
        stop()
        _log.warning("stopping; waiting for %d %s", number(), noun)

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
