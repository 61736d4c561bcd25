"""What the commands share: the database, the output, the errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

import fdbqueue
from fdbqueue import Item, PriorityQueue, queue_names
from fdbqueue.errors import FdbqueueError

__all__ = ["PrintFailed", "as_line", "command_options", "print_items", "queue_argument"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _open(context: click.Context, _: click.Parameter, url: str | None) -> Any:
    """Open the database that the command line names; closed when the command ends."""
    if context.resilient_parsing:
        return None
    try:
        db = fdbqueue.open(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if hasattr(db, "close"):
        context.call_on_close(db.close)
    return db


def command_options(command: _F) -> _F:
    """The options of every command: `--db`, and `--json`."""
    command = click.option(
        "--db",
        callback=_open,
        metavar="DATABASE",
        help="A directory, 'embedded:/path', or the cluster file of a FoundationDB. Without it: "
        "$FDBQ_DB, else the cluster of $FDB_CLUSTER_FILE, else the user's data directory.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print lines of JSON.")(command)


def _complete_queue(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    try:
        db = fdbqueue.open(context.params.get("db"))
        return [name for name in queue_names(db) if name.startswith(incomplete)]
    except (FdbqueueError, ValueError):
        return []  # no suggestion is better than an error in the middle of a command line


queue_argument = click.argument("queue", shell_complete=_complete_queue)


def as_line(value: Any) -> str:
    """A JSON value on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def item_line(item: Item) -> str:
    """An item as a line of JSON."""
    return as_line({"id": item.id, "priority": item.priority, "value": item.value})


def print_items(items: list[Item], as_json: bool) -> None:
    """The values of items, one a line; with `--json`, their ids and priorities too.

    Each line is out before the next one; `PrintFailed` tells which items are not.
    """
    for number, item in enumerate(items):
        try:
            click.echo(item_line(item) if as_json else as_line(item.value))
            sys.stdout.flush()
        except BaseException as error:
            raise PrintFailed(items[number:]) from error


class PrintFailed(Exception):
    """Standard output did not take these items."""

    def __init__(self, left: list[Item]) -> None:
        self.left = left
        super().__init__(f"the output cannot be written; {len(left):,} items are not in it")


def named(db: Any, name: str) -> PriorityQueue:
    """The queue that the command line names."""
    return PriorityQueue.named(db, name)
