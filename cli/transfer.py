"""Commands for files: import and export."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import BinaryIO

import click
from rich.progress import DownloadColumn

from fdbqueue.admin import restore
from fdbqueue.errors import FdbqueueError
from fdbqueue.queue.base import store_of
from fdbqueue.queue.transfer.backup import is_backup
from fdbqueue.queue.transfer.importing import import_lines
from fdbqueue.types import Database, PriorityJson

from .backup import report, seekable, write_backup
from .common import (
    PRIORITY,
    check_integrity,
    command_options,
    count_noun,
    echo,
    item_json,
    json_line,
    json_queue,
    queue_argument,
    say,
    usage_errors,
    with_priorities,
)
from .files import replacing
from .terminal import progress_bar


def _source(file: BinaryIO) -> tuple[str | None, int | None]:
    """Return the path and the size of a file; a stream has neither."""
    if file.fileno() != 0 and os.path.isfile(file.name):
        # A path that is not valid UTF-8 is escaped, so that it can name the import.
        path = os.fsencode(os.path.realpath(file.name)).decode(errors="backslashreplace")
        return path, os.fstat(file.fileno()).st_size
    return None, None


@click.command("import")
@queue_argument
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "-p", "--priority", default=0, type=PRIORITY, show_default=True, help="Priority of all lines."
)
@click.option("--priority-field", metavar="FIELD", help="Field with the priority of each line.")
@click.option("--value-field", metavar="FIELD", help="Push only this field of each line.")
@click.option("--group", metavar="NAME", help="Group of the lines that have none.")
@click.option("--group-field", metavar="FIELD", help="Field with the group of a line, if any.")
@click.option(
    "--source",
    metavar="NAME",
    show_default="the path of FILE",
    help="Name by which a repeated import is recognized.",
)
@click.option("--again", is_flag=True, help="Push all lines, even if they were imported before.")
@command_options(creates=True)
def import_command(
    db: Database,
    queue: str,
    file: BinaryIO,
    priority: PriorityJson,
    priority_field: str | None,
    value_field: str | None,
    group: str | None,
    group_field: str | None,
    source: str | None,
    again: bool,
    as_json: bool,
) -> None:
    """Push each line of FILE, a JSON value, to QUEUE.

    Without FILE, or if it is `-`, lines are read from standard input. A file that `fdbq export
    --all` has written becomes a new queue with the name QUEUE.

    Each line is stored once: an import that was interrupted continues where it stopped when you
    run it again. An import is recognized by the path of FILE or by --source. Standard input without
    --source is stored again each time.

    Exits with code 1 if the queue, or the group of a line, is full before all lines are stored. Run
    the import again when there is room.

    \b
    Example:
      fdbq import packages packages.jsonl --priority-field priority
      fdbq import jobs lines.jsonl --group "customer 7"
      seq 100 | fdbq import numbers --source first-hundred
    """
    if source is not None and not source.isprintable():
        raise click.UsageError(f"--source must be printable text, not {source!a}")
    path, size = _source(file)
    if _is_backup(file):
        if any((source, priority_field, value_field, priority, group, group_field, again)):
            raise click.UsageError(
                "a file of `fdbq export --all` is imported without options; omit --source, "
                "--priority, --priority-field, --value-field, --group, --group-field and --again"
            )
        _import_backup(db, queue, file, as_json)
        return
    target = with_priorities(json_queue(db, queue), queue, "`fdbq import`")
    with usage_errors(), progress_bar(DownloadColumn()) as progress:
        task = progress.add_task("import", total=size)
        report = import_lines(
            db,
            target,
            file,
            source or path,
            priority=priority,
            priority_field=priority_field,
            value_field=value_field,
            group=group,
            group_field=group_field,
            again=again,
            progress=lambda lines, read: progress.update(task, completed=read),
        )
    skipped = f", skipped {report.skipped:,} that were stored before" if report.skipped else ""
    hint = " (--again stores them again)" if report.skipped and not report.stored else ""
    if report.full:
        has_groups = group is not None or group_field is not None
        full = "the queue, or a group of it," if has_groups else "the queue"
        hint = f"; {full} is full and lines remain"
    summary = f"stored {count_noun(report.stored, 'line')}{skipped}{hint}"
    echo(json_line(asdict(report)) if as_json else summary)
    if report.full:
        sys.exit(1)


def _is_backup(file: BinaryIO) -> bool:
    """Return whether a file is a backup, without reading on."""
    peek = getattr(file, "peek", None)
    return peek is not None and is_backup(peek(100))


def _import_backup(db: Database, queue: str, file: BinaryIO, as_json: bool) -> None:
    with seekable(file) as input_file:
        try:
            copies = restore(db, input_file, new_name=queue)
        except ValueError as error:
            if isinstance(error, FdbqueueError):  # the file is damaged, for example
                raise
            raise click.UsageError(f"{error}; use `fdbq restore`") from error
    for copied in copies.values():
        report(queue, copied, "imported", as_json)
    if not copies and not as_json:
        echo(f"nothing to import: {queue} already exists")


@click.command("export")
@queue_argument
@click.argument("file", type=click.Path(dir_okay=False), default="-")
@click.option("--after", metavar="ID", help="Export only items after this one.")
@click.option(
    "--all",
    "is_whole",
    is_flag=True,
    help="Write items in every state and the options, as `fdbq backup` does.",
)
@command_options()
def export_command(
    db: Database, queue: str, file: str, after: str | None, is_whole: bool, as_json: bool
) -> None:
    """Write the ready items of QUEUE to FILE as lines of JSON.

    The items are written in order and stay in the queue. Without FILE, or if it is `-`, they are
    written to standard output. An existing FILE is replaced only after all items are written. A
    line has the fields id, priority and value, and group if the item has one.

    Delayed and claimed items and dead letters are exported only with --all. Without it, a line on
    standard error says how many there are. With --json, a JSON report has all numbers, on standard
    output if FILE is given.

    With --all, the file is a backup of the queue. `fdbq import` and `fdbq restore` create the queue
    again, with the same ids, states, order, failed attempts and options.

    \b
    Example:
      fdbq export jobs jobs.jsonl
      fdbq import copy jobs.jsonl --priority-field priority --value-field value --group-field group
      fdbq export jobs --all jobs.backup
      fdbq import copy jobs.backup
    """
    if is_whole:
        if after is not None:
            raise click.UsageError("--all exports all items; omit --after")
        write_backup(db, file, [queue], as_json)
        return
    try:
        target = json_queue(db, queue, must_exist=True)
    except click.ClickException as error:
        raise click.ClickException(f"{error.message}, or export it with --all") from error
    with progress_bar(DownloadColumn()) as progress, replacing(file) as output:
        task = progress.add_task("export", total=None)
        written = lines = 0
        level_of = store_of(target).levels.level_of
        for item in target.items(db, after=after):
            group = level_of(item.key).group
            more = {} if group is None else {"group": group}
            line = item_json(item, **more).encode() + b"\n"
            output.write(line)
            written += len(line)
            lines += 1
            progress.update(task, completed=written)
        check_integrity(db, seconds=None)
    stats = target.stats(db)
    left_out = {"delayed": stats.delayed, "claimed": stats.claimed, "dead": stats.dead}
    _echo_report(lines, left_out, as_json, to_stderr=file == "-")


def _echo_report(exported: int, left_out: dict[str, int], as_json: bool, to_stderr: bool) -> None:
    """Print how many items were left out; with `as_json`, print a report in any case."""
    if as_json:
        report = json_line({"exported": exported, "left_out": left_out})
        say(report, err=True) if to_stderr else echo(report)
    elif any(left_out.values()):
        numbers = ", ".join(f"{number:,} {state}" for state, number in left_out.items() if number)
        say(f"fdbq export: left out {numbers}; only ready items are exported", err=True)
