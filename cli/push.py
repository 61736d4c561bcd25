"""The command `fdbq push`."""

from __future__ import annotations

from typing import Any, BinaryIO

import click

from fdbqueue.errors import QueueFull
from fdbqueue.options import PushOptions
from fdbqueue.queue.overview import open_queue
from fdbqueue.types import Database, PriorityJson

from .arguments import read_value
from .command import QUEUE, command
from .opening import exact_priority, json_queue
from .options import argument, chosen, option, options_of
from .output import fail, item_fields, report, say


@command(
    QUEUE,
    argument("value", required=False),
    option("--file", metavar="FILE", type=click.File("rb"), help="Read the value from FILE."),
    *options_of(PushOptions),
    creates=True,
)
def push(
    db: Database,
    queue: str,
    value: str | None,
    file: BinaryIO | None,
    *,
    priority: PriorityJson = 0,
    **options: Any,
) -> None:
    """Push a JSON VALUE to QUEUE and print the id of the item.

    VALUE can be `-` for standard input. With --unique, the id may belong to an existing item;
    standard error then says so. The first push creates the queue.

    Exits with code 1 if the queue is full (see `fdbq limit`).

    \b
    Example:
      fdbq push jobs '{"send": "ada@example.com"}' --priority 1
      echo '"hello"' | fdbq push jobs - --delay 60

    Options:
        priority: Integer, or a JSON list for a tuple; the lowest is popped first.
    """
    text = value if file is None else file
    if text is None or (value is not None and file is not None):
        raise click.UsageError(
            "give the value as VALUE, as `-` to read standard input, or with --file"
        )
    parsed = read_value(text)
    given = chosen(options)
    target = json_queue(open_queue(db, queue), queue)
    if target.kind == "priority" or priority:
        given["priority"] = exact_priority(target, queue, priority)
    try:
        item: Any = target.push(db, parsed, **given)
    except QueueFull as error:
        full = queue if error.group is None else f"the group {error.group!r} of {queue}"
        fail(f"{full} is full; nothing was stored")
    if not item.is_new:
        done = "it was replaced" if given.get("replace") else "nothing was stored"
        say(f"fdbq push: {done}; item {item.id} has this key", err=True)
    stored = {"stored": item.is_new} if "unique" in given else {}
    report(item_fields(item, **stored), item.id)
