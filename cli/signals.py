"""Signals end `fdbq` at once, with one line and without waiting for a lock.

The database is crash-safe, so an interrupted command needs no orderly way out. A signal raises no
exception in the main thread, which may hold any lock at that moment: its handler prints one line
and calls `os._exit`. Commands with something to lose hold signals back for a moment (`held_back`),
clean up (`at_end`) or stop in their own way (`stopped_by`).

Python runs a handler only once the main thread is back in the interpreter. While that waits in C
(for a lock of a file, for a pipe that nobody reads), a thread sees to the signal.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

__all__ = ["INTERRUPTED", "at_end", "end", "exit_code", "held_back", "install", "stopped_by"]

INTERRUPTED = "fdbq: interrupted; what was done before that is done"

_GRACE = 0.7  # seconds that the main thread has before the watching thread acts for it

# Signals that do not end a process by default, and those of a fault in the process itself, after
# which nothing can be done in Python.
_OTHERS = ("CHLD", "CONT", "URG", "WINCH", "INFO", "TSTP", "TTIN", "TTOU", "KILL", "STOP")
_FAULTS = ("SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS", "EMT")

_ending = threading.Lock()  # held while signals are held back, and by the end of the process
_last_acts: list[Callable[[], object]] = []
_held: int | None = None  # the last signal that was held back
_patience = 1  # how many SIGINT it takes until the watching thread ends the process


def install() -> None:
    """See to every signal that ends a process by default, unless it is ignored (as by `nohup`)."""
    excluded = {getattr(signal, f"SIG{name}", None) for name in _OTHERS + _FAULTS}
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    for number in sorted(signal.valid_signals() - excluded):
        if signal.getsignal(number) in defaults:
            signal.signal(number, _handle)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_uninstall)
    threading.Thread(target=_watch, args=(reader,), name="fdbq-signals", daemon=True).start()


def _uninstall() -> None:
    """Leave signals to a forked child; the pipe is its parent's."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) is _handle:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


def _handle(number: int, _: FrameType | None) -> None:
    global _held
    if _ending.acquire(blocking=False):  # and a second signal, while this one is told, is held
        end(number)
    _held = number


def end(number: int) -> NoReturn:
    """End the process because of this signal, from any thread, without waiting for a lock."""
    for act in reversed(_last_acts):
        with suppress(OSError):
            act()
    # Without standard error, 2 may be a file of the database. A pipe that is full stays unwritten.
    if sys.stderr is not None and select.select([], [2], [], 0)[1]:
        with suppress(OSError):
            os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(128 + number)


def exit_code(otherwise: int) -> int:
    """The exit code of a command that a signal has ended, or the other one."""
    return otherwise if _held is None else 128 + _held


@contextmanager
def held_back() -> Iterator[None]:
    """Let a signal that comes meanwhile end the process afterwards.

    If the block takes long, for example because nobody reads the output, the output is cut off:
    the block finds a broken pipe, and can put back what it could not print. An error of the block
    is told before the process ends.
    """
    _ending.acquire()
    try:
        yield
    finally:
        error = sys.exc_info()[1]
        if _held is None:
            _ending.release()
        elif error is None or isinstance(error, SystemExit):
            end(_held)


@contextmanager
def at_end(act: Callable[[], object]) -> Iterator[None]:
    """Call this if a signal ends the process meanwhile; it must not take a lock."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


@contextmanager
def stopped_by(stop: Callable[[int, FrameType | None], Any], patience: int) -> Iterator[None]:
    """Let signals call `stop` instead.

    So many SIGINT end a process that does not stop by itself.
    """
    global _patience
    numbers = [each for each in signal.valid_signals() if signal.getsignal(each) is _handle]
    _patience = patience
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _handle)
        _patience = 1


def _watch(reader: int) -> None:
    """See to signals that the main thread does not: it stands in C, or holds them back."""
    came = 0
    while True:
        numbers = os.read(reader, 4096)
        time.sleep(_GRACE)
        # A handler of `fdbq work` may have taken other signals for itself.
        own = [n for n in numbers if n == signal.SIGINT or signal.getsignal(n) is _handle]
        came += len(own)
        if own and came >= _patience:
            if _ending.acquire(blocking=False):
                end(own[-1])
            _cut_output(own[-1])


def _cut_output(number: int) -> None:
    """Let standard output be a pipe that nobody reads, also for a write that waits already."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    os.close(writer)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, number)  # a call that it interrupts is begun again
