"""Signal handling: a signal ends `fdbq` at once, with one line.

The database is crash-safe, and the main thread may hold any lock: the handler calls `os._exit`.
While the main thread waits in C, `_watch` handles the signal.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = "fdbq: interrupted; committed changes are kept"

_GRACE = 0.7  # seconds for the main thread to handle a signal before the watching thread does

# Signals that do not end a process by default, and signals of a fault in the process itself, after
# which no Python code can run.
_NOT_ENDING = ("CHLD", "CONT", "URG", "WINCH", "INFO", "TSTP", "TTIN", "TTOU", "KILL", "STOP")
_FAULTS = ("SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS", "EMT")

_exit_lock = threading.Lock()  # held while signals are deferred, and by the thread that exits
_cleanups: list[Callable[[], object]] = []
_deferred: int | None = None  # the last signal that was deferred
_writer = -1  # the pipe in which the watching thread finds signals, and marks between them
_MARK = 128  # above all signals: how many SIGINTs end the process from here on; 0 without a `stop`


def install() -> None:
    """Handle each signal that ends a process by default, unless it is ignored (as by `nohup`)."""
    global _writer
    excluded = {getattr(signal, f"SIG{name}", None) for name in _NOT_ENDING + _FAULTS}
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    for number in sorted(signal.valid_signals() - excluded):
        if signal.getsignal(number) in defaults:
            signal.signal(number, _handle)
    reader, _writer = os.pipe()
    os.set_blocking(_writer, False)
    signal.set_wakeup_fd(_writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_uninstall)
    threading.Thread(target=_watch, args=(reader,), name="fdbq-signals", daemon=True).start()


def _uninstall() -> None:
    """Restore the default handlers in a forked child, which shares its parent's pipe."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) is _handle:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


def _handle(number: int, _: FrameType | None) -> None:
    global _deferred
    if _exit_lock.acquire(blocking=False):  # otherwise deferred, or the exit has begun
        exit_on(number)
    _deferred = number


def exit_on(number: int) -> NoReturn:
    """Exit because of a signal, from any thread."""
    for cleanup in reversed(_cleanups):
        with suppress(OSError):
            cleanup()
    # If standard error is closed, descriptor 2 may be a file of the database. The line is omitted
    # if standard error is a full pipe.
    if sys.stderr is not None and select.select([], [2], [], 0)[1]:
        with suppress(OSError):
            os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(128 + number)


def exit_code(default: int) -> int:
    """Return the exit code for a deferred signal, or the default."""
    return default if _deferred is None else 128 + _deferred


@contextmanager
def defer_signals() -> Generator[None]:
    """Defer signals: one that arrives during the block ends the process after it.

    If the block takes long, its output becomes a broken pipe, and it can put back unprinted items.
    An error of the block is reported first.
    """
    _exit_lock.acquire()
    try:
        yield
    finally:
        error = sys.exc_info()[1]
        if _deferred is None:
            _exit_lock.release()
        elif error is None or isinstance(error, SystemExit):
            exit_on(_deferred)


@contextmanager
def cleanup_on_signal(cleanup: Callable[[], object]) -> Generator[None]:
    """Call `cleanup`, which must not take a lock, if a signal ends the process in the block."""
    _cleanups.append(cleanup)
    try:
        yield
    finally:
        _cleanups.remove(cleanup)


@contextmanager
def restoring_cursor(console: Console) -> Generator[None]:
    """Show the cursor again if a signal ends a live display."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    terminal = console.file.fileno()
    with cleanup_on_signal(lambda: os.write(terminal, b"\x1b[?25h\n")):
        yield


@contextmanager
def stop_on_signal(stop: Callable[[int, FrameType | None], object]) -> Generator[None]:
    """Let signals call `stop`; the second SIGINT ends the process in any case."""
    numbers = [number for number in signal.valid_signals() if signal.getsignal(number) is _handle]
    _mark(numbers, 2)
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _handle)
        _mark(numbers, 0)


def _mark(numbers: list[signal.Signals], max_signals: int) -> None:
    if numbers:  # otherwise nothing is installed, and there is no pipe
        os.write(_writer, bytes([_MARK + max_signals]))


def _watch(reader: int) -> None:
    """Handle signals while the main thread waits in C or defers them."""
    received = max_signals = 0
    while True:
        ending = None
        for number in os.read(reader, 4096):
            if number >= _MARK:
                ending, received, max_signals = None, 0, number - _MARK
            # What `stop_on_signal` has stopped ends by itself; only SIGINTs hurry it.
            elif number == signal.SIGINT or (
                max_signals == 0 and signal.getsignal(number) is _handle
            ):
                received += 1
                ending = number if received >= max_signals else None
        if ending is None:
            continue
        time.sleep(_GRACE)
        if _exit_lock.acquire(blocking=False):
            exit_on(ending)
        _break_output(ending)


def _break_output(number: int) -> None:
    """Make standard output a broken pipe, and interrupt a blocked write."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    os.close(writer)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, number)  # Python restarts the write, which then fails
