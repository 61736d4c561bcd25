"""The terminal: progress bars, and restoring the cursor."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from .interrupts import cleanup_on_signal


@contextmanager
def progress_bar(unit: ProgressColumn) -> Generator[Progress]:
    """Show a progress bar on standard error, if that is a terminal; `unit` shows the number."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        unit,
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
