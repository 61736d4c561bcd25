"""Terminal output: tables, progress bars, and a cursor that is restored at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
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

from .signals import at_end

__all__ = ["print_table", "progress_bar", "showing_cursor_at_end"]


def print_table(columns: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    """Print names and numbers."""
    table = Table(box=None, pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    table.add_column(columns[1], justify="right")
    for name, number in rows:
        table.add_row(name, number)
    Console(highlight=False, markup=False).print(table)


@contextmanager
def progress_bar(amount: ProgressColumn | None = None) -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount or MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with showing_cursor_at_end(console), progress:
        yield progress


@contextmanager
def showing_cursor_at_end(console: Console) -> Iterator[None]:
    """Show the cursor, which a live display hides, if a signal ends the process meanwhile."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    terminal = console.file.fileno()
    with at_end(lambda: os.write(terminal, b"\x1b[?25h\n")):
        yield
