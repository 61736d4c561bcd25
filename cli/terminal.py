"""Terminal output: tables, progress bars, and restoring the cursor."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from .signals import cleanup_on_signal

__all__ = ["print_table", "progress_bar", "restoring_cursor"]


def print_table(columns: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    """Print rows of a name and a number below the titles of their columns."""
    table = Table(box=None, pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    table.add_column(columns[1], justify="right")
    for name, number in rows:
        table.add_row(name, number)
    Console(highlight=False, markup=False).print(table)


@contextmanager
def progress_bar(unit: ProgressColumn | None = None) -> Generator[Progress]:
    """Show a progress bar on standard error if that is a terminal.

    Args:
        unit: The column that shows the progress as a number; by default it counts steps.
    """
    console = Console(stderr=True)
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
