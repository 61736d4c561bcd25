"""The command `fdbq top`, which shows all queues live."""

from __future__ import annotations

import queue as queues
import time
from contextlib import suppress
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fdbqueue import QueueStats, overview
from fdbqueue.types import Database

from .common import STATES, Duration, age_text, command_options, json_line, stats_as_json
from .signals import stop_on_signal
from .terminal import restoring_cursor

__all__ = ["top"]

_MAX_PRIORITIES = 6  # shown in a line
_MAX_NAME = 24  # columns that a name has at least, if it needs them
_BUSY = (*STATES[:-1], "in", "out")  # the fields of a queue that has something to show
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
    """Show all queues live, with the items in each state, rates and ages.

    Rates are items pushed and completed per second since the previous update, and the age is that
    of the oldest ready item. If the screen has no room for all queues, those with items or rates
    come first. With --json, each update prints one line per queue, with the numbers of `fdbq
    stats`, without the limits. A queue that another release stored is unknown, and `fdbq ls` says
    why. Ctrl-C ends the command.

    \b
    Example:
      fdbq top --interval 5
      fdbq top -n 1 --json
    """
    console = Console(highlight=False, markup=False)
    previous: dict[str, QueueStats] = {}
    updated_at = time.monotonic()
    update = 0
    signals: queues.SimpleQueue[int] = queues.SimpleQueue()
    with (
        restoring_cursor(console),
        stop_on_signal(lambda number, _: signals.put(number), max_signals=1),
        Live(console=console, auto_refresh=False, transient=updates == 0) as live,
    ):
        while True:
            found = overview(db)
            seconds = max(1e-9, time.monotonic() - updated_at)
            updated_at += seconds
            rows = [_row(name, stats, previous.get(name), seconds) for name, stats in found.items()]
            previous = found
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


def _row(
    name: str, stats: QueueStats, previous: QueueStats | None, seconds: float
) -> dict[str, Any]:
    """Return the displayed values of a queue; its rates are `None` without previous ones."""
    rates: list[float | None] = [None, None]
    if previous is not None and previous.error is None and stats.error is None:
        rates = [
            # The totals of a queue that was cleared or created again start from zero.
            round((now - before) / seconds, 1) if now >= before else None
            for now, before in (
                (stats.total_pushed, previous.total_pushed),
                (stats.total_completed, previous.total_completed),
            )
        ]
    return {
        "queue": name,
        **stats_as_json(stats),
        "in": rates[0],
        "out": rates[1],
        "age": age_text(stats.oldest),
    }


def _table(rows: list[dict[str, Any]], room: int) -> Table:
    """Return a table of some rows; the first if there is room for all, else the busy ones first."""
    table = Table(box=None, pad_edge=False)
    if len(rows) > room:
        rows = sorted(rows, key=lambda row: not any(row.get(field) for field in _BUSY))
        table.caption = f"and {len(rows) - room:,} more"
        table.caption_justify = "left"
        rows = rows[:room]
    names = [len(row["queue"]) for row in rows]
    table.add_column("queue", overflow="fold", min_width=min(_MAX_NAME, max(names, default=0)))
    for title in (*STATES, "in/s", "out/s", "oldest"):
        table.add_column(title, justify="right")
    table.add_column("priority: ready")
    for row in rows:
        if "error" in row:
            table.add_row(row["queue"] + " (unknown)", *["-"] * len(STATES))
            continue
        counts = list(row["by_priority"].items())
        cells = [f"{priority}: {count:,}" for priority, count in counts[:_MAX_PRIORITIES]]
        if len(counts) > _MAX_PRIORITIES:
            cells.append("...")
        table.add_row(
            row["queue"] + (" (paused)" if row["paused"] else ""),
            *(f"{row[state]:,}" for state in STATES),
            "" if row["in"] is None else f"{row['in']:,.1f}",
            "" if row["out"] is None else f"{row['out']:,.1f}",
            row["age"] or "",
            "  ".join(cells),
        )
    return table
