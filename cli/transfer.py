"""The commands `fdbq import` and `fdbq export`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import BinaryIO

import click
from rich.progress import DownloadColumn

from fdbqueue import existing_queue
from fdbqueue.queue.base import store_of
from fdbqueue.queue.overview import open_queue
from fdbqueue.queue.repeatable import import_lines
from fdbqueue.types import Database, PriorityJson

from .command import QUEUE, command
from .files import progress_bar, replacing
from .opening import check_integrity, json_queue, priority_queue
from .options import argument, option, options_of
from .output import count_noun, item_fields, json_line, report, say, show, wants_json


def _source(file: BinaryIO) -> tuple[str | None, int | None]:
    if file.fileno() != 0 and os.path.isfile(file.name):
        # A path that is not valid UTF-8 is escaped, so that it can name the import.
        path = os.fsencode(os.path.realpath(file.name)).decode(errors="backslashreplace")
        return path, os.fstat(file.fileno()).st_size
    return None, None


@command(
    QUEUE,
    argument("file", type=click.File("rb"), default="-"),
    *options_of(import_lines, omit=("priority",)),
    option(
        "--source",
        metavar="NAME",
        show_default="the path of FILE",
        help="Name by which a repeated import is recognized.",
    ),
    name="import",
    creates=True,
)
def import_(
    db: Database,
    queue: str,
    file: BinaryIO,
    source: str | None,
    *,
    priority: PriorityJson = 0,
    **fields: str | None,
) -> None:
    """Push each line of FILE, a JSON value, to QUEUE.

    By default, FILE is standard input. An interrupted import continues when you run it again: a
    line with the same path or --source, number and content is stored once in four weeks. Standard
    input without --source is stored again each time.

    Exits with code 1 if the queue, or the group of a line, is full before all lines are stored.

    \b
    Example:
      fdbq import packages packages.jsonl --priority-field priority
      seq 100 | fdbq import numbers --source first-hundred

    Options:
        priority: Priority of all lines.
    """
    if source is not None and not source.isprintable():
        raise click.UsageError(f"--source must be printable text, not {source!a}")
    path, size = _source(file)
    target = json_queue(open_queue(db, queue), queue)
    target = priority_queue(target, queue, "`fdbq import`")
    with progress_bar(DownloadColumn()) as progress:
        shown = file if size is None else progress.wrap_file(file, size, description="import")
        done = import_lines(db, target, shown, source or path, priority=priority, **fields)
    skipped = f", skipped {done.skipped:,} that were stored before" if done.skipped else ""
    hint = " (another --source stores them again)" if done.skipped and not done.stored else ""
    if done.full:
        has_groups = fields["group"] is not None or fields["group_field"] is not None
        full = "the queue, or a group of it," if has_groups else "the queue"
        hint = f"; {full} is full and lines remain"
    summary = f"stored {count_noun(done.stored, 'line')}{skipped}{hint}"
    report(asdict(done), summary)
    if done.full:
        sys.exit(1)


@command(QUEUE, argument("file", type=click.Path(dir_okay=False), default="-"))
def export(db: Database, queue: str, file: str, *, after: str | None) -> None:
    """Write the ready items of QUEUE to FILE as lines of JSON, in order.

    By default, FILE is standard output. An existing FILE is replaced only after all items are
    written. A line has the fields id, priority, value and, if set, group.

    Standard error counts the delayed, claimed and dead items, which only `fdbq backup` writes.
    --json reports all numbers as JSON, on standard output if FILE is given.

    \b
    Example:
      fdbq export jobs jobs.jsonl
      fdbq import copy jobs.jsonl --priority-field priority --value-field value --group-field group

    Options:
        after: Export only items after this one.
    """
    try:
        target = json_queue(existing_queue(db, queue), queue)
    except click.ClickException as error:
        raise click.ClickException(f"{error.message}, or write it with `fdbq backup`") from error
    with progress_bar(DownloadColumn()) as progress, replacing(file) as output:
        task = progress.add_task("export", total=None)
        written = lines = 0
        level_of = store_of(target).levels.level_of
        for item in target.items(db, after=after):
            group = level_of(item.key).group
            more = {} if group is None else {"group": group}
            line = json_line(item_fields(item, **more)).encode() + b"\n"
            output.write(line)
            written += len(line)
            lines += 1
            progress.update(task, completed=written)
        check_integrity(db, seconds=None)
    stats = target.stats(db)
    left_out = {"delayed": stats.delayed, "claimed": stats.claimed, "dead": stats.dead}
    if wants_json():
        fields = {"exported": lines, "left_out": left_out}
        show(fields, "", err=True) if file == "-" else report(fields, "")
    elif any(left_out.values()):
        numbers = ", ".join(f"{number:,} {state}" for state, number in left_out.items() if number)
        say(f"fdbq export: left out {numbers}; only ready items are exported", err=True)
