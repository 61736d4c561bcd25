"""Commands for queues, from `ls` and `stats` to `check`."""

from __future__ import annotations

import dataclasses
import math
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import click
from click.types import FuncParamType

from fdbqueue import admin, embedded, existing_queue
from fdbqueue.admin import LAYOUT_VERSION, check, overview, queue_names, workers
from fdbqueue.errors import error_classes
from fdbqueue.queue.arguments import text_of_seconds
from fdbqueue.queue.overview import (
    STATES,
    by_state,
    history_as_json,
    priority_as_json,
    stats_as_json,
)
from fdbqueue.queue.settings import LIMITS
from fdbqueue.types import Database, HistoryWindow, QueueStats
from fdbqueue.worker.presence import worker_as_json

from .common import (
    Duration,
    age_text,
    any_queue,
    bound_or_none,
    check_integrity,
    command_options,
    confirm,
    count_noun,
    create_option,
    deleted_text,
    echo,
    json_line,
    notes_text,
    priority_line,
    queue_argument,
    rate_or_none,
    say,
    states_text,
    usage_errors,
    with_options,
)
from .terminal import print_table

_PAGE = 1000  # queues

_HISTORY = ("pushed", "taken", "completed", "failed", "died")


@click.command()
@command_options()
def ls(db: Database, as_json: bool) -> None:
    """List all queues, the number of items in each state, and the age of the oldest ready item.

    A queue without a name, which a program has opened by its subspace, is not listed.
    A line ends with what else to know: the queue is paused, or has jobs that no worker knows.
    Queues are printed as they are read, 1,000 at a time. With --json, each line has the numbers of
    `fdbq stats`, without the limits. A queue that another release stored has an error instead.

    \b
    Example:
      fdbq ls
    """
    if as_json:
        for page in _pages(db):
            for name, stats in page.items():
                say(json_line({"queue": name, **stats_as_json(stats)}))
    else:
        rows = ([_row(name, stats) for name, stats in page.items()] for page in _pages(db))
        print_table(("queue", *STATES, "oldest", ""), rows, "no queues")
    check_integrity(db)


def _row(name: str, stats: QueueStats) -> list[str]:
    if stats.error is not None:
        return [name, *["-"] * (len(STATES) + 1), stats.error]
    numbers = [f"{number:,}" for number in by_state(stats).values()]
    return [name, *numbers, age_text(stats.oldest) or "-", notes_text(stats_as_json(stats))]


def _pages(db: Database) -> Iterator[dict[str, QueueStats]]:
    """Yield the numbers of all queues by name, page by page."""
    after: str | None = None
    while page := overview(db, after=after, limit=_PAGE):
        yield page
        if len(page) < _PAGE:
            return
        after = next(reversed(page))


@click.command()
@queue_argument
@command_options()
def counts(db: Database, queue: str, as_json: bool) -> None:
    """Show the number of ready items of each priority in QUEUE.

    \b
    Example:
      fdbq counts jobs
    """
    target = existing_queue(db, queue)
    by_priority: dict[Any, int] = {**target.counts(db)}
    if target.kind == "fifo" and (size := target.size(db)):
        by_priority = {None: size}
    if as_json:
        for priority, count in by_priority.items():
            say(json_line({"priority": priority_as_json(priority), "count": count}))
    else:
        rows = [(priority_line(priority), f"{count:,}") for priority, count in by_priority.items()]
        print_table(("priority", "items"), [rows])
    check_integrity(db)


@click.command()
@queue_argument
@command_options()
def stats(db: Database, queue: str, as_json: bool) -> None:
    """Show how many items of QUEUE are in each state, its limits and its totals.

    An item counts as ready as soon as its lease or its delay is over, even if no worker runs.

    \b
    Example:
      fdbq stats jobs
    """
    fields = stats_as_json(existing_queue(db, queue).stats(db))
    if as_json:
        say(json_line({"queue": queue, **fields}))
        return
    rows = [(name, _value_text(value)) for name, value in fields.items()]
    print_table(("number", "value"), [rows])
    check_integrity(db)


@click.command()
@queue_argument
@command_options()
def history(db: Database, queue: str, as_json: bool) -> None:
    """Show the activity of QUEUE in the last 5 minutes, hour and day.

    An item waits from the moment it becomes ready until a pop or a claim takes it. The table has
    the median wait and the wait that 95 % of the items do not exceed, and the same for the run
    times of attempts. With --json, each window is a line, with its periods.

    \b
    Example:
      fdbq history jobs
    """
    windows = existing_queue(db, queue).history(db)
    if as_json:
        for window in windows:
            say(json_line({"queue": queue, **history_as_json(window)}))
        return
    rows = [
        [name, *(f"{getattr(window, number):,}" for number in _HISTORY), *_times(window)]
        for name, window in zip(("5 minutes", "hour", "day"), windows)
    ]
    print_table(("last", *_HISTORY, "median wait", "95 % wait", "median run", "95 % run"), [rows])
    check_integrity(db)


def _times(window: HistoryWindow) -> Iterator[str]:
    waits = window.waiting_median, window.waiting_p95
    for time in (*waits, window.running_median, window.running_p95):
        if time is None:
            yield "-"
        else:
            yield f"{time:.2f} s" if time < 60 else str(timedelta(seconds=round(time)))


def _value_text(value: dict[str, int] | str | int | tuple[int, float] | None) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{priority}: {number:,}" for priority, number in value.items()) or "-"
    if isinstance(value, tuple):
        return _rate_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else value


def _rate_text(rate: tuple[int, float]) -> str:
    return f"{rate[0]:,} in {text_of_seconds(rate[1])}"


@click.command()
@queue_argument
@click.argument("name")
@command_options()
def rename(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Rename QUEUE to NAME.

    Items, claims, dead letters and options are kept.

    \b
    Example:
      fdbq rename jobs old-jobs
    """
    admin.rename(db, queue, name)
    result = json_line({"queue": name, "was": queue})
    echo(result if as_json else f"renamed {queue} to {name}")


@click.command()
@queue_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@command_options()
def drop(db: Database, queue: str, yes: bool, as_json: bool) -> None:
    """Drop QUEUE and all its items, after asking for confirmation.

    Jobs of other queues that wait for jobs of QUEUE go on as if these were cancelled. Standard
    error says how many there are, also before you confirm.

    \b
    Example:
      fdbq drop jobs --yes
    """
    # Without numbers, perhaps a restore of it has not finished.
    numbers = overview(db, prefix=queue, limit=1).get(queue)
    if numbers is not None and not yes:
        items = states_text(numbers) if numbers.error is None else numbers.error
        with suppress(*error_classes()):  # of a transaction that is too long for the queue
            _say_all(admin.drop(db.create_transaction(), queue))  # which does not commit
        confirm(f"Drop {queue!r} with all its items ({items})?")
    notes = admin.drop(db, queue)
    is_known = numbers is not None and numbers.error is None
    echo(deleted_text(queue, "dropped", numbers if is_known else None, as_json))
    _say_all(notes)


def _say_all(notes: Iterable[str]) -> None:
    for note in notes:
        say(f"fdbq drop: {note}", err=True)


class _Time(Duration):
    """A length of time from one second, or `none`, which is converted to 0."""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = 0.0 if value == "none" else super().convert(value, param, ctx)
        if 0 < seconds < 1 or (seconds == 0 and value != "none"):
            self.fail(f"{value!r} is shorter than a second", param, ctx)
        return seconds


_KINDS: dict[str, tuple[str, Any]] = {
    "keep_seconds": ("DURATION|none", _Time(0, 10_000_000_000)),
    "kept_attempts": ("N", click.INT),
    "traceback_bytes": ("BYTES", click.INT),
}
"""The types of the options that are not numbers of items or `none`."""


def _limit_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    limit = LIMITS[name]
    metavar, kind = _KINDS.get(name, ("N|none", bound_or_none(limit.highest)))
    return click.option(f"--{limit.flag}", name, metavar=metavar, type=kind, help=limit.help)


@click.command()
@queue_argument
@with_options(*map(_limit_option, LIMITS))
@click.option(
    "--rate",
    metavar="N/DURATION|none",
    type=FuncParamType(rate_or_none),
    help="Maximum number of items started in any window of this time, such as 100/1m.",
)
@create_option("the queue, and the database,")
@command_options()
def limit(
    db: Database,
    queue: str,
    create: bool,
    as_json: bool,
    rate: tuple[int, str] | tuple[()] | None,
    **bounds: Any,
) -> None:
    """Set limits of QUEUE; without options, show them.

    N is an integer from 1; `none` removes a limit. An item starts when it is claimed or popped. A
    push to a full queue stores nothing. Items beyond a new limit stay in the queue.

    --keep-last and --keep-for keep acknowledged items as done. If both are set, an item stays only
    while both apply. If neither is set, no items are kept. --keep-attempts and --keep-traceback
    set how much of the failed attempts is stored for `fdbq show`.

    \b
    Example:
      fdbq limit jobs
      fdbq limit jobs --size 10000 --concurrency 20 --create
      fdbq limit jobs --size none
      fdbq limit jobs --rate 100/1m
    """
    target = any_queue(db, queue, must_exist=not create)
    with usage_errors({name: f"--{limit.flag}" for name, limit in LIMITS.items()}):
        changes = _settings(bounds)
        if rate is not None:
            changes["rate"] = rate or None
        target.configure(db, **changes)
    options = target.options(db)
    limits = {name: getattr(options, name) for name in LIMITS}
    if as_json:
        echo(json_line({"queue": queue, **limits, "rate": options.rate, "paused": options.paused}))
        return
    rows = [(LIMITS[name].flag, _limit_text(name, bound)) for name, bound in limits.items()]
    shown = "none" if options.rate is None else _rate_text(options.rate)
    print_table(("limit", "value"), [[*rows, ("rate", shown)]])
    if options.paused:
        echo(f"{queue} is paused")


def _settings(bounds: dict[str, float | None]) -> dict[str, Any]:
    """Return the settings to change, by their names in Python; 0 stands for no bound."""
    given = {name: math.ceil(bound) for name, bound in bounds.items() if bound is not None}
    return {
        name: bound or None if LIMITS[name].can_be_none else bound for name, bound in given.items()
    }


def _limit_text(name: str, bound: int | None) -> str:
    if bound is None or (bound == 0 and name != "traceback_bytes"):
        return "none"
    return str(timedelta(seconds=bound)) if name == "keep_seconds" else f"{bound:,}"


@click.command("workers")
@command_options()
def workers_command(db: Database, as_json: bool) -> None:
    """List the workers of all queues: queues, jobs, concurrency, running time and name.

    A worker is listed while it runs. If it was killed, it stays listed until the leases of its jobs
    are over, or for up to two and a half minutes if it had none. "jobs" is the number of jobs that
    it holds. That number is up to 20 seconds old; the first job is shown after a second.

    A worker runs up to "concurrency" jobs at a time. If it runs fewer jobs of one of its queues,
    the limit follows the name of that queue, as in "mail images=2".

    \b
    Example:
      fdbq workers
    """
    found = workers(db)
    if as_json:
        for worker in found:
            say(json_line(worker_as_json(worker)))
        return
    rows = [
        (
            " ".join(
                name if most >= each.concurrency else f"{name}={most}"
                for name, most in each.queues.items()
            ),
            *map(str, (each.jobs, each.concurrency)),
            *(age_text(each.since) or "", each.name),
        )
        for each in found
    ]
    titles = ("queues", "jobs", "concurrency", "runs for", "name")
    print_table(titles, [rows], "no workers")


@click.command()
@queue_argument
@command_options()
def pause(db: Database, queue: str, as_json: bool) -> None:
    """Stop handing out items of QUEUE until `fdbq resume`.

    Pushes are still accepted, and claimed items stay with their workers.

    \b
    Example:
      fdbq pause jobs
    """
    existing_queue(db, queue).configure(db, paused=True)
    echo(json_line({"queue": queue, "paused": True}) if as_json else f"paused {queue}")


@click.command()
@queue_argument
@command_options()
def resume(db: Database, queue: str, as_json: bool) -> None:
    """Hand out items of QUEUE again after `fdbq pause`.

    \b
    Example:
      fdbq resume jobs
    """
    existing_queue(db, queue).configure(db, paused=False)
    echo(json_line({"queue": queue, "paused": False}) if as_json else f"resumed {queue}")


@click.command("check")
@click.argument("queue", required=False)
@click.option("--repair", is_flag=True, help="Correct counters and indexes.")
@command_options()
def check_command(db: Database, queue: str | None, repair: bool, as_json: bool) -> None:
    """Check the counters and indexes of QUEUE, or of all queues with a name.

    On the embedded engine, the whole database file is checked first. Damage to it is never
    repaired: the command exits with code 2. A write that the disk lost can look like a wrong
    counter, so compare with a backup before you use --repair.

    Exits with code 1 if there are problems that were not repaired.

    \b
    Example:
      fdbq check
      fdbq check jobs --repair
    """
    check_integrity(db, seconds=None)
    failed = False
    for name in queue_names(db) if queue is None else [queue]:
        report = check(db, existing_queue(db, name), repair=repair)
        failed = failed or not (report.ok or report.repaired)
        if as_json:
            say(json_line({"queue": name, **dataclasses.asdict(report)}))
            continue
        problems = count_noun(len(report.problems), "problem")
        verdict = "ok" if report.ok else "repaired" if report.repaired else problems
        say(f"{name}: {states_text(report)}, {verdict}")
        for problem in report.problems:
            say(f"  {problem}")
    if failed:
        sys.exit(1)


@click.command()
@command_options()
def info(db: Database, as_json: bool) -> None:
    """Show the engine, the database location and all versions.

    \b
    Example:
      fdbq info
    """
    tr = db.create_transaction()
    fields: dict[str, object] = {"read version": tr.get_read_version().wait()}
    if isinstance(db, embedded.Database):
        fields |= {"engine": "embedded", "where": str(db.path), "durability": db.durability}
    else:
        cluster_file = bytes(tr[b"\xff\xff/cluster_file_path"])
        fields |= {"engine": "foundationdb", "where": cluster_file.decode(errors="replace")}
    fields |= {
        "layout": LAYOUT_VERSION,
        "fdbqueue": version("fdbqueue"),
        "foundationdb binding": version("foundationdb"),
        "sqlite": sqlite3.sqlite_version,
        "python": platform.python_version(),
    }
    if as_json:
        say(json_line(fields))
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        say(f"{name:<{width}}  {value}")
