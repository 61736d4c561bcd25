"""SIGTERM and SIGINT stop the workers of a process."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

_log = logging.getLogger("fdbqueue.worker")


@contextmanager
def stopping_on_signals(stop: Callable[[], object], jobs: Callable[[], int]) -> Generator[None]:
    """Call `stop` on SIGTERM and SIGINT; the second signal ends the process.

    Only the main thread can handle signals: in another one, this does nothing.

    Args:
        stop: Lets running jobs finish and starts no others. It interrupts the main thread anywhere.
        jobs: Returns the number of jobs that are claimed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    has_stopped = False

    def handle(number: int, _: object) -> None:
        nonlocal has_stopped
        if has_stopped:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        has_stopped = True
        stop()
        _log.warning("stopping after the running jobs; claimed jobs: %d", jobs())

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
