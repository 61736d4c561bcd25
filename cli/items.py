"""The commands for items: push, pop, peek, items, rm, clear."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import datetime
from typing import Any, BinaryIO

import click

from fdbqueue import FdbqueueError, Item, PriorityQueue, Queue, error_classes, existing_queue
from fdbqueue.layout.codecs import with_stack
from fdbqueue.types import Database

from .common import (
    PRIORITY,
    TIME,
    PrintFailed,
    Seconds,
    as_line,
    command_options,
    confirm,
    item_line,
    item_queue,
    json_queue,
    look_for_damage,
    print_items,
    priority_from_json,
    priority_line,
    queue_argument,
    read_value,
    refuse_for_fifo,
    tell,
    tell_each,
)
from .signals import held_back

__all__ = ["clear", "items", "peek", "pop", "push", "rm"]

_count_option = click.option(
    "-n", "count", default=1, show_default=True, type=click.IntRange(min=1), help="How many items."
)


@click.command()
@queue_argument
@click.argument("value", required=False)
@click.option("--file", type=click.File("rb"), help="Read the value from a file.")
@click.option(
    "-p",
    "--priority",
    default=0,
    show_default=True,
    type=PRIORITY,
    help="The lowest comes out first; a queue of tuples takes lists.",
)
@click.option("--delay", metavar="SECONDS", type=Seconds(0), help="Nobody gets it before.")
@click.option("--at", metavar="TIME", type=TIME, help="The same, as in 2030-01-31T08:00+01:00.")
@click.option(
    "--ttl", metavar="SECONDS", type=Seconds(0), help="Drop it if nobody took it by then."
)
@click.option("--unique", metavar="KEY", help="Only if none of this key is unfinished.")
@command_options(creates=True)
def push(
    db: Database,
    queue: str,
    value: str | None,
    file: BinaryIO | None,
    priority: Any,
    delay: float | None,
    at: datetime | None,
    ttl: float | None,
    unique: str | None,
    as_json: bool,
) -> None:
    """Put VALUE, a JSON value, into QUEUE; `-` reads it from standard input.

    Prints the id of the new item, with --unique of the one that is there already. The queue is made
    by its first push. Exit code 1 and no output if the queue is full (`fdbq limit` shows and sets
    how many items it takes).

    \b
    Example:
      fdbq push jobs '{"send": "ada@example.com"}' --priority 1
    """
    if (value is None) == (file is None):
        raise click.UsageError("give the value as an argument, as `-`, or by --file")
    if file is not None:
        text: str | bytes = read_value(file)
    else:
        text = read_value(sys.stdin.buffer) if value == "-" else str(value)
    try:
        parsed = with_stack(json.loads, text)
    except ValueError as error:
        hint = " (text needs quotes of its own: '\"text\"')" if isinstance(text, str) else ""
        raise click.UsageError(f"the value is not JSON: {error}{hint}") from error
    target = json_queue(db, queue)
    try:
        if isinstance(target, Queue):
            refuse_for_fifo(
                queue, priority=priority, delay=delay, at=at, ttl=ttl, unique=unique is not None
            )
            item = target.enqueue(db, parsed)
        else:
            rank = priority_from_json(target, priority)
            item = target.push(db, parsed, rank, delay=delay, at=at, ttl=ttl, unique=unique)
    except (TypeError, ValueError) as error:
        if isinstance(error, FdbqueueError):
            raise
        raise click.UsageError(str(error)) from error
    if item is None:
        click.echo(f"fdbq push: {queue} is full; nothing was stored", err=True)
        sys.exit(1)
    tell(item_line(item) if as_json else item.id)


@click.command()
@queue_argument
@click.option("--max", "highest", is_flag=True, help="Take the highest priority first.")
@_count_option
@click.option(
    "--wait",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value=math.inf,
    default=0.0,
    type=Seconds(0),
    help="Wait for an item if there is none: for ever, or so long. Without SECONDS it comes last.",
)
@command_options(creates=True)
def pop(db: Database, queue: str, highest: bool, count: int, wait: float, as_json: bool) -> None:
    """Take the first item out of QUEUE and print its value.

    Exit code 1 and no output if the queue is empty, with --wait if it stays so. The items (with
    -n, all in one transaction) are gone from the queue before they are printed; those that cannot
    be printed are put back. A signal that ends the command (Ctrl-C, SIGTERM, SIGHUP) takes effect
    before items are taken or after they are printed; if printing takes long, the rest is put back.

    \b
    Example:
      while item=$(fdbq pop jobs); do echo "working on $item"; done
      while item=$(fdbq pop jobs --wait); do echo "working on $item"; done
    """
    target = json_queue(db, queue)
    if isinstance(target, Queue):
        refuse_for_fifo(queue, max=highest)
    deadline = time.monotonic() + wait
    while not _take_and_print(db, target, count, highest, as_json):
        left = deadline - time.monotonic()
        if left <= 0:
            sys.exit(1)
        target.wait(db, left)


def _take_and_print(
    db: Database, queue: PriorityQueue | Queue, count: int, highest: bool, as_json: bool
) -> bool:
    """Pop and print; whether there was something. A signal takes effect before or after that."""
    with held_back():
        if isinstance(queue, Queue):
            items = queue.dequeue_many(db, count)
        else:
            items = queue.pop_many(db, count, max=highest)
        try:
            print_items(items, as_json)
        except PrintFailed as error:
            _put_back(db, queue, error.left)
            raise
        return bool(items)


def _put_back(db: Database, queue: PriorityQueue | Queue, items: list[Item]) -> None:
    failures: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
    try:
        queue.put_back(db, items)
    except failures as error:
        raise click.ClickException(
            f"the output cannot be written, and {len(items):,} items, from {items[0].id} on, could "
            f"not all be put back: {error}"
        ) from error


@click.command()
@queue_argument
@click.option("--max", "highest", is_flag=True, help="Show the highest priority first.")
@_count_option
@command_options(creates=True)
def peek(db: Database, queue: str, highest: bool, count: int, as_json: bool) -> None:
    """Print the value that `pop` would take, and leave it.

    Exit code 1 and no output if the queue is empty.

    \b
    Example:
      fdbq peek jobs -n 3
    """
    target = json_queue(db, queue)
    if isinstance(target, Queue):
        refuse_for_fifo(queue, max=highest)
        items = list(target.items(db, limit=count))
    else:
        items = target.peek_many(db, count, max=highest)
    print_items(items, as_json)
    if not items:
        sys.exit(1)


@click.command()
@queue_argument
@click.option("-p", "--priority", type=PRIORITY, help="Only the items of this priority.")
@click.option("--limit", default=0, type=click.IntRange(min=0), help="At most so many.")
@click.option("--after", metavar="ID", help="Only what comes behind this item.")
@click.option("--reverse", is_flag=True, help="The last ones first.")
@command_options()
def items(
    db: Database,
    queue: str,
    priority: Any,
    limit: int,
    after: str | None,
    reverse: bool,
    as_json: bool,
) -> None:
    """List the items of QUEUE in order: id, priority, value.

    \b
    Example:
      fdbq items jobs --limit 20
    """
    target = json_queue(db, queue, must_exist=True)
    if isinstance(target, Queue):
        refuse_for_fifo(queue, priority=priority is not None)
        found = target.items(db, limit=limit, after=after, reverse=reverse)
    else:
        only = None if priority is None else priority_from_json(target, priority)
        found = target.items(db, priority=only, limit=limit, after=after, reverse=reverse)
    for item in found:
        shown = "-" if item.priority is None else priority_line(item.priority)
        line = f"{item.id}  {shown:>4}  {as_line(item.value)}"
        click.echo(item_line(item) if as_json else line)
    look_for_damage(db)


@click.command()
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@command_options()
def rm(db: Database, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Take items out of QUEUE by their ids, which `fdbq items` shows.

    Exit code 1 if one of them was not there.

    \b
    Example:
      fdbq rm jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = item_queue(db, queue, must_exist=True)
    for item_id in ids:
        target.pushed_at(item_id)  # a bad one is an error before anything is removed
    removed = {item_id: target.remove(db, item_id) for item_id in ids}
    tell_each(removed, "removed", as_json, lambda _: "it is not in the queue")


@click.command()
@queue_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@command_options()
def clear(db: Database, queue: str, yes: bool, as_json: bool) -> None:
    """Take all items out of QUEUE; asks first.

    \b
    Example:
      fdbq clear jobs --yes
    """
    target = existing_queue(db, queue)
    if not yes:
        confirm(f"Drop all items of {queue!r}, {target.size(db):,} now?")
    target.clear(db)
    tell(as_line({"queue": queue, "cleared": True}) if as_json else f"{queue} is empty now")
