"""The terminal: progress bars, keys, and restoring the cursor."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from .interrupts import cleanup_on_signal


@contextmanager
def progress_bar(unit: ProgressColumn | None = None, *, shown: bool = True) -> Generator[Progress]:
    """Show a progress bar on standard error if that is a terminal.

    Args:
        unit: The column that shows the progress as a number; by default it counts steps.
        shown: Whether to show it at all: it is drawn ten times a second, even without a task.
    """
    console = Console(stderr=True, force_terminal=None if shown else False)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        unit or MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with restoring_cursor(console), progress:
        yield progress


@contextmanager
def restoring_cursor(console: Console) -> Generator[None]:
    """Show the cursor again, which a live display hides, if a signal ends the process."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    terminal = console.file.fileno()
    with cleanup_on_signal(lambda: os.write(terminal, b"\x1b[?25h\n")):
        yield


def is_in_foreground() -> bool:
    """Return whether the terminal of standard input is that of this process at the moment."""
    with suppress(OSError, ValueError):
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False


@contextmanager
def reading_keys() -> Generator[None]:
    """Let the process read each key at once, if it has a terminal, and do not show the keys."""
    if not is_in_foreground():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def restore() -> None:
        termios.tcsetattr(terminal, termios.TCSANOW, before)

    with cleanup_on_signal(restore):
        try:
            tty.setcbreak(terminal)
            yield
        finally:
            restore()
