"""The commands for queues: ls, counts, check, info."""

from __future__ import annotations

import platform
import sqlite3
import sys
from importlib.metadata import version
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fdbqueue import check, drop_queue, existing_queue, queue_names, queues, rename_queue
from fdbqueue.embedded import Database
from fdbqueue.layout import LAYOUT_VERSION
from fdbqueue.priorities import priority_as_json

from .common import (
    any_queue,
    as_line,
    command_options,
    confirm,
    priority_line,
    queue_argument,
    tell,
)

__all__ = ["check_command", "counts", "drop", "info", "limit", "ls", "rename"]


def _print_table(columns: tuple[str, str], rows: list[tuple[str, int]]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    table.add_column(columns[1], justify="right")
    for name, number in rows:
        table.add_row(name, f"{number:,}")
    Console(highlight=False, markup=False).print(table)


@click.command()
@command_options()
def ls(db: Any, as_json: bool) -> None:
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
        _print_table(("queue", "items"), sizes)


@click.command()
@queue_argument
@command_options()
def counts(db: Any, queue: str, as_json: bool) -> None:
    """Show how many items of each priority QUEUE has.

    \b
    Example:
      fdbq counts jobs
    """
    by_priority = existing_queue(db, queue).counts(db)
    if as_json:
        for priority, count in by_priority.items():
            click.echo(as_line({"priority": priority_as_json(priority), "count": count}))
    elif by_priority:
        rows = [(priority_line(priority), count) for priority, count in by_priority.items()]
        _print_table(("priority", "items"), rows)


@click.command()
@queue_argument
@click.argument("name")
@command_options()
def rename(db: Any, queue: str, name: str, as_json: bool) -> None:
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
def drop(db: Any, queue: str, yes: bool, as_json: bool) -> None:
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


@click.command()
@queue_argument
@click.argument("size", type=click.IntRange(1, 2**63 - 1), required=False)
@click.option("--none", "unbounded", is_flag=True, help="Take the bound away.")
@command_options(creates=True)
def limit(db: Any, queue: str, size: int | None, unbounded: bool, as_json: bool) -> None:
    """Show how many items QUEUE has at most, or make it SIZE; QUEUE is made if it is new.

    A push to a queue that is full stores nothing. Items that are over a new bound stay.

    \b
    Example:
      fdbq limit jobs 10000
    """
    if size is not None and unbounded:
        raise click.UsageError("give a SIZE or --none, not both")
    target = any_queue(db, queue, must_exist=False)
    if size is not None or unbounded:
        target.set_max_size(db, size)
    bound = target.options(db).max_size
    shown = "none" if bound is None else f"{bound:,}"
    tell(as_line({"queue": queue, "max_size": bound}) if as_json else shown)


@click.command("check")
@click.argument("queue", required=False)
@click.option("--repair", is_flag=True, help="Count anew where a counter is wrong.")
@command_options()
def check_command(db: Any, queue: str | None, repair: bool, as_json: bool) -> None:
    """Check that counters and items agree in QUEUE, or in every queue.

    Exit code 1 if something is wrong and was not repaired.

    \b
    Example:
      fdbq check jobs --repair
    """
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
def info(db: Any, as_json: bool) -> None:
    """Show which engine is in use, where, and all versions.

    \b
    Example:
      fdbq info
    """
    tr = db.create_transaction()
    facts = {"read version": tr.get_read_version().wait()}
    if isinstance(db, Database):
        facts |= {"engine": "embedded", "where": str(db.path), "durability": db.durability}
    else:
        cluster_file = tr[b"\xff\xff/cluster_file_path"].value
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
