"""The commands for queues: ls, counts, limit, pause, resume, rename, drop, check, info."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import click

from fdbqueue import (
    FdbqueueError,
    Queue,
    check,
    drop_queue,
    embedded,
    existing_queue,
    queue_names,
    queues,
    rename_queue,
)
from fdbqueue.layout import LAYOUT_VERSION
from fdbqueue.layout.priorities import priority_as_json
from fdbqueue.types import Database

from .common import (
    any_queue,
    as_line,
    command_options,
    confirm,
    look_for_damage,
    priority_line,
    queue_argument,
    tell,
)
from .terminal import print_table

__all__ = ["check_command", "counts", "drop", "info", "limit", "ls", "pause", "rename", "resume"]


@click.command()
@command_options()
def ls(db: Database, as_json: bool) -> None:
    """List the queues and how many items each has.

    \b
    Example:
      fdbq ls
    """
    sizes = list(queues(db).items())
    if as_json:
        for name, size in sizes:
            click.echo(as_line({"queue": name, "size": size}))
    elif sizes:
        print_table(("queue", "items"), [(name, f"{size:,}") for name, size in sizes])
    look_for_damage(db)


@click.command()
@queue_argument
@command_options()
def counts(db: Database, queue: str, as_json: bool) -> None:
    """Show how many items of each priority QUEUE has.

    \b
    Example:
      fdbq counts jobs
    """
    target = existing_queue(db, queue)
    by_priority: dict[Any, int]
    if isinstance(target, Queue):
        by_priority = {None: size} if (size := target.size(db)) else {}
    else:
        by_priority = dict(target.counts(db))
    if as_json:
        for priority, count in by_priority.items():
            click.echo(as_line({"priority": priority_as_json(priority), "count": count}))
    elif by_priority:
        rows = [(priority_line(priority), f"{n:,}") for priority, n in by_priority.items()]
        print_table(("priority", "items"), rows)
    look_for_damage(db)


@click.command()
@queue_argument
@click.argument("name")
@command_options()
def rename(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Give QUEUE the name NAME; its items stay as they are.

    \b
    Example:
      fdbq rename jobs old-jobs
    """
    rename_queue(db, queue, name)
    tell(as_line({"queue": name, "was": queue}) if as_json else f"{queue} is {name} now")


@click.command()
@queue_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@command_options()
def drop(db: Database, queue: str, yes: bool, as_json: bool) -> None:
    """Drop QUEUE with all its items and options; asks first.

    \b
    Example:
      fdbq drop jobs --yes
    """
    target = existing_queue(db, queue)
    if not yes:
        confirm(f"Drop {queue!r} with its items, {target.size(db):,} now?")
    drop_queue(db, queue)
    tell(as_line({"queue": queue, "dropped": True}) if as_json else f"{queue} is gone")


class _Bound(click.ParamType):  # type: ignore[type-arg]
    """A number from 1, or `none`, which comes out as 0."""

    name = "bound"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        if value == "none":
            return 0
        with suppress(ValueError):
            if int(value) > 0:
                return int(value)
        return self.fail(f"{value[:100]!r} is no number from 1, nor `none`", parameter, context)


_LIMITS = {
    "size": ("max_size", "How many items there are at most, with delayed and claimed ones."),
    "attempts": ("max_attempts", "How often an item is claimed before it is a dead letter."),
    "concurrency": ("concurrency", "How many items are claimed at a time."),
    "agent-concurrency": ("agent_concurrency", "The same, of each agent of a task queue."),
}
"""What can be limited: the option of `Options`, and what it is."""


def _limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, (option, text) in reversed(_LIMITS.items()):
        bound = click.option(f"--{name}", option, metavar="N", type=_Bound(), help=text)
        command = bound(command)
    return command


@click.command()
@queue_argument
@_limit_options
@command_options(creates=True)
def limit(db: Database, queue: str, as_json: bool, **given: int | None) -> None:
    """Show the limits of QUEUE, or set those that are given; `none` takes one away.

    A push to a queue that is full stores nothing. What is over a new limit stays. The queue is made
    if it is new.

    \b
    Example:
      fdbq limit jobs --size 10000 --concurrency 20
    """
    target = any_queue(db, queue, must_exist=False)
    try:
        for name, bound in given.items():
            if bound is not None:
                change = getattr(target, f"set_{name}", None)
                if change is None:
                    raise click.UsageError(f"{queue!r} is no task queue, and has no agents")
                change(db, bound or None)
    except ValueError as error:
        if isinstance(error, FdbqueueError):
            raise
        raise click.UsageError(str(error)) from error
    options = target.options(db)
    limits = {name: getattr(options, option) for name, (option, _) in _LIMITS.items()}
    if as_json:
        shown = {option: limits[name] for name, (option, _) in _LIMITS.items()}
        tell(as_line({"queue": queue, **shown, "paused": options.paused}))
        return
    lines = [(name, "none" if bound is None else f"{bound:,}") for name, bound in limits.items()]
    print_table(("limit", "is"), lines)
    if options.paused:
        tell(f"{queue} is paused")


@click.command()
@queue_argument
@command_options()
def pause(db: Database, queue: str, as_json: bool) -> None:
    """Hand out nothing of QUEUE until `fdbq resume`; pushes go on.

    What is claimed already stays with its worker.

    \b
    Example:
      fdbq pause jobs
    """
    existing_queue(db, queue).pause(db)
    tell(as_line({"queue": queue, "paused": True}) if as_json else f"{queue} is paused")


@click.command()
@queue_argument
@command_options()
def resume(db: Database, queue: str, as_json: bool) -> None:
    """Hand out items of QUEUE again.

    \b
    Example:
      fdbq resume jobs
    """
    existing_queue(db, queue).resume(db)
    tell(as_line({"queue": queue, "paused": False}) if as_json else f"{queue} goes on")


@click.command("check")
@click.argument("queue", required=False)
@click.option("--repair", is_flag=True, help="Count anew where a counter is wrong.")
@command_options()
def check_command(db: Database, queue: str | None, repair: bool, as_json: bool) -> None:
    """Check that counters and items agree in QUEUE, or in every queue.

    Exit code 1 if something is wrong and was not repaired. On the embedded engine the whole
    database file is checked first; damage ends the command with exit code 2 and is never repaired.
    A write that the disk lost can look like a wrong counter: compare a backup before `--repair`.

    \b
    Example:
      fdbq check jobs --repair
    """
    look_for_damage(db, seconds=None)
    failed = False
    for name in queue_names(db) if queue is None else [queue]:
        report = check(db, existing_queue(db, name), repair=repair)
        failed = failed or not (report.ok or report.repaired)
        if as_json:
            problems = list(report.problems)
            click.echo(
                as_line(
                    {
                        "queue": name,
                        "items": report.items,
                        "problems": problems,
                        "repaired": report.repaired,
                    }
                )
            )
            continue
        verdict = "ok" if report.ok else "repaired" if report.repaired else "wrong"
        click.echo(f"{name}: {report.items:,} items, {verdict}")
        for problem in report.problems:
            click.echo(f"  {problem}")
    if failed:
        sys.exit(1)


@click.command()
@command_options()
def info(db: Database, as_json: bool) -> None:
    """Show which engine is in use, where, and all versions.

    \b
    Example:
      fdbq info
    """
    tr = db.create_transaction()
    facts: dict[str, object] = {"read version": tr.get_read_version().wait()}
    if isinstance(db, embedded.Database):
        facts |= {"engine": "embedded", "where": str(db.path), "durability": db.durability}
    else:
        cluster_file = bytes(tr[b"\xff\xff/cluster_file_path"])
        facts |= {"engine": "foundationdb", "where": cluster_file.decode(errors="replace")}
    facts |= {
        "layout": LAYOUT_VERSION,
        "fdbqueue": version("fdbqueue"),
        "foundationdb binding": version("foundationdb"),
        "sqlite": sqlite3.sqlite_version,
        "python": platform.python_version(),
    }
    if as_json:
        click.echo(as_line(facts))
        return
    width = max(map(len, facts))
    for name, fact in facts.items():
        click.echo(f"{name:<{width}}  {fact}")
