"""SIGTERM and SIGINT stop the workers of a process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")


@contextmanager
def stopping_on_signals(
    stop: Callable[[], object],
    noun: str,
    number: Callable[[], int],
    kill: Callable[[], object] = lambda: None,
) -> Generator[None]:
    """Call `stop` on SIGTERM and SIGINT; the second signal ends the process.

    Only the main thread can handle signals: in another one, this does nothing.

    Args:
        stop: Lets running jobs finish and starts no others. It interrupts the main thread anywhere.
        noun: What the log counts then.
        number: Returns its number.
        kill: Called before the second signal ends the process.
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
        _log.warning("stopping after the running jobs; %s: %d", noun, number())

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
