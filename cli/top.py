"""The command `fdbq top`."""

from __future__ import annotations

import sys
import time
from itertools import count
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fdbqueue.admin import overview
from fdbqueue.queue.overview import stats_as_json
from fdbqueue.types import STATES, Database, QueueStats

from .arguments import Duration
from .command import command
from .interrupts import restoring_cursor
from .options import integer, option
from .output import json_line, notes_text, say, table_lines, wait_text, wants_json

_BUSY = (*(state for state in STATES if state != "done"), "in", "out")
"""A queue with any of these is busy."""
_OTHER_LINES = 3  # of the screen: titles, the number of queues that are not shown, the cursor
_WIDE = 1_000  # columns of an output that is not a terminal
_TITLES: tuple[str, ...] = ("queue", *STATES, "in/s", "out/s", "oldest")
_OMITTED = ("done", "out/s", "in/s", "oldest", "delayed", "dead")
"""Columns that a narrow terminal omits, in this order."""


@command(
    option("--interval", default=1.0, type=Duration(0.1, 1_000_000), help="Time between updates."),
    integer(
        *("-n", "updates"),
        lowest=0,
        default=0,
        help="Number of updates; 0 to run until Ctrl-C.",
    ),
)
def top(db: Database, interval: float, updates: int) -> None:
    """Show all queues live, with the items in each state, rates and ages.

    Rates are items pushed and completed per second since the previous update; the age is that of
    the oldest ready item. With --json, each update prints a line per queue, with the numbers of
    `fdbq stats`, without limits. If a queue's numbers are unknown, `fdbq ls` says why.

    \b
    Example:
      fdbq top --interval 5
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    previous: dict[str, QueueStats] = {}
    updated_at = time.monotonic()
    live = Live(console=console, auto_refresh=False, transient=updates == 0)
    with restoring_cursor(console), live:
        for update in count(1):
            found = overview(db)
            seconds = max(1e-9, time.monotonic() - updated_at)
            updated_at += seconds
            rows = [_row(name, stats, previous.get(name), seconds) for name, stats in found.items()]
            previous = found
            if wants_json():
                for row in rows:
                    say(json_line(row))
            else:
                height = console.height if console.is_terminal else len(rows) + _OTHER_LINES
                lines = screen(rows, console.width, height)
                live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            if update == updates:
                return
            time.sleep(interval)


def _row(
    name: str, stats: QueueStats, previous: QueueStats | None, seconds: float
) -> dict[str, Any]:
    row = {"queue": name, **stats_as_json(stats), "in": None, "out": None}
    if previous is not None and previous.error is None and stats.error is None:
        row["in"] = _rate(stats.total_pushed - previous.total_pushed, seconds)
        row["out"] = _rate(stats.total_completed - previous.total_completed, seconds)
    return {**row, "age": wait_text(stats)}


def _rate(number: int, seconds: float) -> float | None:
    # The totals of a queue that was cleared or created again start from zero.
    return round(number / seconds, 1) if number >= 0 else None


def screen(rows: list[dict[str, Any]], columns: int, lines: int) -> list[str]:
    """Return a table of the columns and queues that fit, busy queues first."""
    room, more = lines - _OTHER_LINES, list[str]()
    if len(rows) > room:
        more = [f"and {len(rows) - room:,} more"]
        rows = sorted(rows, key=lambda row: not any(row.get(field) for field in _BUSY))[:room]
    found = [dict(zip(_TITLES, _cells(row))) for row in rows]
    titles, omitted = [*_TITLES], [*_OMITTED]
    while True:
        cells = [[each[title] for title in titles] for each in found]
        table = table_lines(titles, cells)
        if not omitted or max(map(cell_len, table)) <= columns:
            return table + more
        titles.remove(omitted.pop(0))


def _cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["queue"] + " (unknown)", *["-"] * len(STATES), "", "", ""]
    notes = notes_text(row)
    return [
        row["queue"] + (f" ({notes})" if notes else ""),
        *(f"{row[state]:,}" for state in STATES),
        *("" if rate is None else f"{rate:,.1f}" for rate in (row["in"], row["out"])),
        row["age"] or "",
    ]
