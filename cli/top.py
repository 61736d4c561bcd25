"""The command `fdbq top`, which shows all queues live."""

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

from .common import Duration, command_options, json_line
from .signals import stop_on_signal
from .terminal import restoring_cursor

__all__ = ["top"]

_MAX_PRIORITIES = 6  # shown in a line
_OTHER_LINES = 3  # of the screen: titles, the number of queues that are not shown, the cursor


@click.command()
@click.option(
    "--interval",
    metavar="DURATION",
    default=1.0,
    show_default=True,
    type=Duration(0.1, 1_000_000),
    help="Time between updates.",
)
@click.option(
    "-n",
    "updates",
    metavar="N",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Number of updates; 0 to run until interrupted.",
)
@command_options()
def top(db: Database, interval: float, updates: int, as_json: bool) -> None:
    """Show all queues live, with sizes, rates and ages.

    Rates are items per second since the previous update, and the age is that of the oldest item.
    If the screen has no room for all queues, those with items or rates come first. With --json,
    each update prints one line per queue. Ctrl-C ends the command.

    \b
    Example:
      fdbq top --interval 5
      fdbq top -n 1 --json
    """
    console = Console(highlight=False, markup=False)
    previous: dict[str, QueueStatus] = {}
    updated_at = time.monotonic()
    update = 0
    signals: queues.SimpleQueue[int] = queues.SimpleQueue()
    with (
        restoring_cursor(console),
        stop_on_signal(lambda number, _: signals.put(number), max_signals=1),
        Live(console=console, auto_refresh=False, transient=updates == 0) as live,
    ):
        while True:
            statuses = overview(db)
            seconds = max(1e-9, time.monotonic() - updated_at)
            updated_at += seconds
            rows = [_row(status, previous.get(status.name), seconds) for status in statuses]
            previous = {status.name: status for status in statuses}
            update += 1
            if as_json:
                for row in rows:
                    click.echo(json_line(row))
            else:
                room = console.height - _OTHER_LINES if console.is_terminal else len(rows)
                live.update(_table(rows, room), refresh=True)
            if update == updates:
                return
            with suppress(queues.Empty):
                signals.get(timeout=interval)
                return


def _row(status: QueueStatus, previous: QueueStatus | None, seconds: float) -> dict[str, Any]:
    """Return the displayed values of a queue; its rates are `None` without a previous status."""
    rate_in = rate_out = None
    # The totals of a queue that was cleared or created again start from zero.
    if (
        previous is not None
        and previous.total_in <= status.total_in
        and previous.total_out <= status.total_out
    ):
        rate_in = round((status.total_in - previous.total_in) / seconds, 1)
        rate_out = round((status.total_out - previous.total_out) / seconds, 1)
    age = None
    if status.oldest is not None:
        age = max(0, round((datetime.now(timezone.utc) - status.oldest).total_seconds()))
    counts = {str(priority): count for priority, count in status.counts.items()}
    return {
        "queue": status.name,
        "items": status.size,
        "in": rate_in,
        "out": rate_out,
        "oldest": age,
        "counts": counts,
    }


def _table(rows: list[dict[str, Any]], room: int) -> Table:
    """Return a table of some rows; the first if there is room for all, else the busy ones first."""
    table = Table(box=None, pad_edge=False)
    if len(rows) > room:
        rows = sorted(rows, key=lambda row: not (row["items"] or row["in"] or row["out"]))
        table.caption = f"and {len(rows) - room:,} more"
        table.caption_justify = "left"
        rows = rows[:room]
    table.add_column("queue", overflow="fold")
    for title in ("items", "in/s", "out/s", "oldest"):
        table.add_column(title, justify="right")
    table.add_column("priority: items")
    for row in rows:
        counts = list(row["counts"].items())
        cells = [f"{priority}: {count:,}" for priority, count in counts[:_MAX_PRIORITIES]]
        if len(counts) > _MAX_PRIORITIES:
            cells.append("...")
        table.add_row(
            row["queue"],
            f"{row['items']:,}",
            "" if row["in"] is None else f"{row['in']:,.1f}",
            "" if row["out"] is None else f"{row['out']:,.1f}",
            "" if row["oldest"] is None else str(timedelta(seconds=row["oldest"])),
            "  ".join(cells),
        )
    return table
