"""The command `fdbq top`, which shows all queues live."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fdbqueue.admin import overview
from fdbqueue.queue.overview import STATES, stats_as_json
from fdbqueue.types import Database, QueueStats

from .arguments import Duration
from .command import command
from .options import integer, option
from .output import age_text, escaped, json_line, notes_text, say, wants_json
from .terminal import restoring_cursor

_MAX_PRIORITIES = 6  # shown in a line
_MAX_NAME = 24  # columns that a name has at least, if it needs them
_BUSY = (*STATES[:-1], "in", "out")  # the fields of a queue that has something to show
_OTHER_LINES = 3  # of the screen: titles, the number of queues that are not shown, the cursor
_WIDE = 1_000  # columns of an output that is not a terminal
_PRIORITIES = "priority: ready"
_TITLES: tuple[str, ...] = (*STATES, "in/s", "out/s", "oldest", _PRIORITIES)
_OMITTED = (_PRIORITIES, "done", "out/s", "in/s", "oldest", "delayed", "dead")
"""The columns that a narrow terminal does not show, in the order in which they go."""


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

    Rates are items pushed and completed per second since the previous update. The age is the age of
    the oldest ready item. On a small screen, queues with items or rates come first, and columns
    are omitted, the priorities first. With --json, each update prints one line per queue, with the
    numbers of `fdbq stats`, without the limits. A queue whose numbers cannot be decoded is unknown;
    `fdbq ls` says why. Ctrl-C ends the command.

    \b
    Example:
      fdbq top --interval 5
      fdbq top -n 1 --json
    """
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(width=width, highlight=False, markup=False)
    previous: dict[str, QueueStats] = {}
    updated_at = time.monotonic()
    update = 0
    live = Live(console=console, auto_refresh=False, transient=updates == 0)
    with restoring_cursor(console), live:
        while True:
            found = overview(db)
            seconds = max(1e-9, time.monotonic() - updated_at)
            updated_at += seconds
            rows = [_row(name, stats, previous.get(name), seconds) for name, stats in found.items()]
            previous = found
            update += 1
            if wants_json():
                for row in rows:
                    say(json_line(row))
            else:
                room = console.height - _OTHER_LINES if console.is_terminal else len(rows)
                live.update(_fitting_table(console, rows, room), refresh=True)
            if update == updates:
                return
            time.sleep(interval)


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


def _fitting_table(console: Console, rows: list[dict[str, Any]], room: int) -> Table:
    """Return a table with as many rows and columns as the screen has room for."""
    unlimited = console.options.update(width=_WIDE)
    for number in range(len(_OMITTED)):
        table = _table(rows, room, _OMITTED[:number])
        if console.measure(table, options=unlimited).minimum <= console.width:
            return table
    return _table(rows, room, _OMITTED)


def _table(rows: list[dict[str, Any]], room: int, omitted: Sequence[str] = ()) -> Table:
    """Return a table of some rows; the first if there is room for all, else the busy ones first."""
    table = Table(box=None, pad_edge=False)
    if len(rows) > room:
        rows = sorted(rows, key=lambda row: not any(row.get(field) for field in _BUSY))
        table.caption = f"and {len(rows) - room:,} more"
        table.caption_justify = "left"
        rows = rows[:room]
    names = [len(row["queue"]) for row in rows]
    table.add_column("queue", overflow="fold", min_width=min(_MAX_NAME, max(names, default=0)))
    for title in (title for title in _TITLES if title not in omitted):
        is_text = title == _PRIORITIES
        table.add_column(title, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        name, cells = _cells(row)
        table.add_row(
            escaped(name), *(escaped(cells[title]) for title in _TITLES if title not in omitted)
        )
    return table


def _cells(row: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return what the table shows of a queue: its name, and the cells by the title of a column."""
    if "error" in row:
        return row["queue"] + " (unknown)", dict.fromkeys(_TITLES, "") | dict.fromkeys(STATES, "-")
    counts = list(row["by_priority"].items())
    priorities = [f"{priority}: {count:,}" for priority, count in counts[:_MAX_PRIORITIES]]
    if len(counts) > _MAX_PRIORITIES:
        priorities.append("...")
    cells: dict[str, str] = {state: f"{row[state]:,}" for state in STATES}
    for title, rate in (("in/s", row["in"]), ("out/s", row["out"])):
        cells[title] = "" if rate is None else f"{rate:,.1f}"
    cells |= {"oldest": row["age"] or "", _PRIORITIES: "  ".join(priorities)}
    notes = notes_text(row)
    return row["queue"] + (f" ({notes})" if notes else ""), cells
