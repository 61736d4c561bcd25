"""Commands for items: push, pop, peek, items, rm, clear."""

from __future__ import annotations

import math
import sys
import time
from datetime import datetime
from typing import BinaryIO

import click

from fdbqueue import FdbqueueError, Item, PriorityQueue, Queue, error_classes, existing_queue
from fdbqueue.types import Database, PriorityJson

from .common import (
    PRIORITY,
    TIME,
    Duration,
    OutputError,
    PrintError,
    check_integrity,
    command_options,
    confirm,
    count_noun,
    create_option,
    echo,
    echo_results,
    found_queue,
    item_json,
    item_queue,
    json_line,
    json_queue,
    parse_json,
    print_items,
    priority_from_json,
    priority_line,
    queue_argument,
    read_value,
    reject_for_fifo,
)
from .signals import defer_signals

__all__ = ["clear", "items", "peek", "pop", "push", "rm"]

_count_option = click.option(
    "-n",
    "count",
    metavar="N",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum number of items.",
)


@click.command()
@queue_argument
@click.argument("value", required=False)
@click.option("--file", metavar="FILE", type=click.File("rb"), help="Read the value from FILE.")
@click.option(
    "-p",
    "--priority",
    default=0,
    show_default=True,
    type=PRIORITY,
    help="Integer, or a JSON list for a tuple; the lowest is popped first.",
)
@click.option(
    "--delay",
    metavar="DURATION",
    type=Duration(0),
    help="Time until the item is available, such as 90 for seconds, 5m or 1h30m.",
)
@click.option(
    "--at",
    metavar="TIME",
    type=TIME,
    help="Time from which the item is available, such as 2030-01-31T08:00+01:00.",
)
@click.option(
    "--ttl",
    metavar="DURATION",
    type=Duration(0, min_open=True),
    help="Time after which the item expires if it was not popped or claimed.",
)
@click.option("--unique", metavar="KEY", help="Push only if no unfinished item has this KEY.")
@command_options(creates=True)
def push(
    db: Database,
    queue: str,
    value: str | None,
    file: BinaryIO | None,
    priority: PriorityJson,
    delay: float | None,
    at: datetime | None,
    ttl: float | None,
    unique: str | None,
    as_json: bool,
) -> None:
    """Push a JSON VALUE to QUEUE and print the id of the item.

    If VALUE is `-`, it is read from standard input. With --unique, the id may be that of an
    existing item. The first push creates the queue.

    Exits with code 1 if the queue is full; `fdbq limit` shows and sets its maximum size.

    \b
    Example:
      fdbq push jobs '{"send": "ada@example.com"}' --priority 1
      echo '"hello"' | fdbq push jobs - --delay 60
    """
    if (value is None) == (file is None):
        raise click.UsageError(
            "give the value as VALUE, as `-` to read standard input, or with --file"
        )
    if file is not None:
        text: str | bytes = read_value(file)
    else:
        text = read_value(sys.stdin.buffer) if value == "-" else str(value)
    try:
        parsed = parse_json(text)
    except ValueError as error:
        hint = " (write a string in quotes: '\"text\"')" if isinstance(text, str) else ""
        raise click.UsageError(f"the value is not JSON: {error}{hint}") from error
    target = json_queue(db, queue)
    try:
        if isinstance(target, Queue):
            reject_for_fifo(
                queue, priority=priority, delay=delay, at=at, ttl=ttl, unique=unique is not None
            )
            item = target.enqueue(db, parsed, if_full="drop")
        else:
            item = target.push(
                db,
                parsed,
                priority_from_json(target, priority),
                delay=delay,
                at=at,
                ttl=ttl,
                unique=unique,
                if_full="drop",
            )
    except (TypeError, ValueError) as error:
        if isinstance(error, FdbqueueError):
            raise
        raise click.UsageError(str(error)) from error
    if item is None:
        click.echo(f"fdbq push: {queue} is full; nothing was stored", err=True)
        sys.exit(1)
    echo(item_json(item) if as_json else item.id)


@click.command()
@queue_argument
@click.option("--max", "highest", is_flag=True, help="Pop the highest priority first.")
@_count_option
@click.option(
    "--wait",
    metavar="[DURATION]",
    is_flag=False,
    flag_value=math.inf,
    default=0.0,
    type=Duration(0),
    help="Wait up to DURATION for an item; without it, forever (put --wait last).",
)
@create_option("the database")
@command_options()
def pop(
    db: Database,
    queue: str,
    highest: bool,
    count: int,
    wait: float,
    create: bool,
    as_json: bool,
) -> None:
    """Pop the first item of QUEUE and print its value.

    With -n, up to N items are popped in one transaction.

    Items are removed from the queue before they are printed, and put back if they cannot be
    printed. Ctrl-C, SIGTERM and SIGHUP take effect before items are popped or after they are
    printed; if printing takes long, the remaining items are put back.

    Exits with code 1 if the queue is empty, or still empty after --wait, and if there is no such
    queue.

    \b
    Example:
      while item=$(fdbq pop jobs); do echo "working on $item"; done
      while item=$(fdbq pop jobs --wait); do echo "working on $item"; done
    """
    deadline = time.monotonic() + wait
    target = found_queue(db, queue, "pop", wait)
    if target is None:
        sys.exit(1)
    if isinstance(target, Queue):
        reject_for_fifo(queue, max=highest)
    while not _pop_and_print(db, target, count, highest, as_json):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            sys.exit(1)
        target.wait(db, remaining)


def _pop_and_print(
    db: Database, queue: PriorityQueue | Queue, count: int, highest: bool, as_json: bool
) -> bool:
    """Pop and print items, with signals deferred; return false if the queue is empty."""
    with defer_signals():
        if isinstance(queue, Queue):
            items = queue.dequeue_many(db, count)
        else:
            items = queue.pop_many(db, count, max=highest)
        try:
            print_items(items, as_json)
        except PrintError as error:
            _put_back(db, queue, error.items)
            raise OutputError(f"{error} but put back") from error
        return bool(items)


def _put_back(db: Database, queue: PriorityQueue | Queue, items: list[Item]) -> None:
    failures: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
    try:
        queue.put_back(db, items)
    except failures as error:
        raise click.ClickException(
            f"cannot write to standard output, and cannot put back all of "
            f"{count_noun(len(items), 'item')} from {items[0].id} on: {error}"
        ) from error


@click.command()
@queue_argument
@click.option("--max", "highest", is_flag=True, help="Show the highest priority first.")
@_count_option
@command_options()
def peek(db: Database, queue: str, highest: bool, count: int, as_json: bool) -> None:
    """Print the first value of QUEUE without removing it.

    Exits with code 1 if the queue is empty, or if there is no such queue.

    \b
    Example:
      fdbq peek jobs -n 3
    """
    target = found_queue(db, queue, "peek")
    if target is None:
        sys.exit(1)
    if isinstance(target, Queue):
        reject_for_fifo(queue, max=highest)
        items = list(target.items(db, limit=count))
    else:
        items = target.peek_many(db, count, max=highest)
    print_items(items, as_json)
    if not items:
        sys.exit(1)


@click.command()
@queue_argument
@click.option("-p", "--priority", type=PRIORITY, help="List only items of this priority.")
@click.option(
    "--limit",
    metavar="N",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Maximum number of items; 0 for all.",
)
@click.option("--after", metavar="ID", help="List only items after this one.")
@click.option("--reverse", is_flag=True, help="List items in reverse order.")
@command_options()
def items(
    db: Database,
    queue: str,
    priority: PriorityJson | None,
    limit: int,
    after: str | None,
    reverse: bool,
    as_json: bool,
) -> None:
    """List the waiting items of QUEUE in order: id, priority, value.

    \b
    Example:
      fdbq items jobs --limit 20
    """
    target = json_queue(db, queue, must_exist=True)
    if isinstance(target, Queue):
        reject_for_fifo(queue, priority=priority is not None)
        listed = target.items(db, limit=limit, after=after, reverse=reverse)
    else:
        exact = None if priority is None else priority_from_json(target, priority)
        listed = target.items(db, priority=exact, limit=limit, after=after, reverse=reverse)
    for item in listed:
        priority_text = "-" if item.priority is None else priority_line(item.priority)
        line = f"{item.id}  {priority_text:>4}  {json_line(item.value)}"
        click.echo(item_json(item) if as_json else line)
    check_integrity(db)


@click.command()
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@command_options()
def rm(db: Database, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove waiting or delayed items from QUEUE by id.

    `fdbq push` and `fdbq items` print the ids. If an ID is not valid, nothing is removed.

    Exits with code 1 if an item is neither waiting nor delayed.

    \b
    Example:
      fdbq rm jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = item_queue(db, queue, must_exist=True)
    for item_id in ids:
        target.pushed_at(item_id)  # raises for an invalid id, before anything is removed
    removed = {item_id: target.remove(db, item_id) for item_id in ids}
    echo_results(removed, "removed", as_json, lambda _: "it is neither waiting nor delayed")


@click.command()
@queue_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@command_options()
def clear(db: Database, queue: str, yes: bool, as_json: bool) -> None:
    """Remove all items from QUEUE, after asking for confirmation.

    Claimed items and dead letters are removed too. The queue keeps its name and its options.

    \b
    Example:
      fdbq clear jobs --yes
    """
    target = existing_queue(db, queue)
    if not yes:
        confirm(f"Remove all items from {queue!r} ({target.size(db):,} now)?")
    target.clear(db)
    echo(json_line({"queue": queue, "cleared": True}) if as_json else f"cleared {queue}")
