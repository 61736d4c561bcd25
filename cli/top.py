"""The command that shows all queues live."""

from __future__ import annotations

import queue as queues
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fdbqueue import QueueStatus, overview
from fdbqueue.types import Database

from .common import Seconds, as_line, command_options
from .signals import stopped_by
from .terminal import showing_cursor_at_end

__all__ = ["top"]

_MAX_PRIORITIES = 6  # of which a line has room


@click.command()
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=Seconds(0.1, 1_000_000),
    help="Seconds from one look to the next.",
)
@click.option("-n", "looks", default=0, type=click.IntRange(0), help="How many looks; 0: for ever.")
@command_options()
def top(db: Database, interval: float, looks: int, as_json: bool) -> None:
    """Show all queues live: items by priority, what comes in and goes out, the age of the oldest.

    Until it is interrupted; with --json a line for each queue and look.

    \b
    Example:
      fdbq top --interval 5
    """
    console = Console(highlight=False, markup=False)
    before: dict[str, QueueStatus] = {}
    then = time.monotonic()
    look = 0
    signals: queues.SimpleQueue[int] = queues.SimpleQueue()
    with (
        showing_cursor_at_end(console),
        stopped_by(lambda number, _: signals.put(number), patience=1),
        Live(console=console, auto_refresh=False, transient=looks == 0) as live,
    ):
        while True:
            now = overview(db)
            seconds = max(1e-9, time.monotonic() - then)
            then += seconds
            rows = [_row(status, before.get(status.name), seconds) for status in now]
            before = {status.name: status for status in now}
            look += 1
            if as_json:
                for row in rows:
                    console.print(as_line(row), soft_wrap=True)
            else:
                live.update(_table(rows), refresh=True)
            if look == looks:
                return
            with suppress(queues.Empty):
                signals.get(timeout=interval)
                return


def _row(status: QueueStatus, before: QueueStatus | None, seconds: float) -> dict[str, Any]:
    """Return the displayed values of a queue; rates need an earlier status."""
    pushed = popped = None
    # After a clear or a drop, the totals start from zero again.
    if (
        before is not None
        and before.total_in <= status.total_in
        and before.total_out <= status.total_out
    ):
        pushed = round((status.total_in - before.total_in) / seconds, 1)
        popped = round((status.total_out - before.total_out) / seconds, 1)
    age = None
    if status.oldest is not None:
        age = max(0, round((datetime.now(timezone.utc) - status.oldest).total_seconds()))
    counts = {str(priority): count for priority, count in status.counts.items()}
    return {
        "queue": status.name,
        "items": status.size,
        "in": pushed,
        "out": popped,
        "oldest": age,
        "counts": counts,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("queue", overflow="fold")
    for title in ("items", "in/s", "out/s", "oldest"):
        table.add_column(title, justify="right")
    table.add_column("priority: items")
    for row in rows:
        shown = list(row["counts"].items())
        counts = "  ".join(f"{priority}: {count:,}" for priority, count in shown[:_MAX_PRIORITIES])
        table.add_row(
            row["queue"],
            f"{row['items']:,}",
            "" if row["in"] is None else f"{row['in']:,.1f}",
            "" if row["out"] is None else f"{row['out']:,.1f}",
            "" if row["oldest"] is None else str(timedelta(seconds=row["oldest"])),
            counts + (" ..." if len(shown) > _MAX_PRIORITIES else ""),
        )
    return table
