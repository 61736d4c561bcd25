"""The commands that move many items: import and export."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import IO, Any, BinaryIO

import click
from rich.progress import DownloadColumn

from fdbqueue import Queue
from fdbqueue.operations.items import State
from fdbqueue.queue.base import store_of
from fdbqueue.queue.importing import import_lines
from fdbqueue.queue.overview import count_not_waiting
from fdbqueue.types import Database

from .common import (
    PRIORITY,
    OutputFailed,
    as_line,
    command_options,
    item_line,
    json_queue,
    look_for_damage,
    queue_argument,
    tell,
)
from .signals import at_end, held_back
from .terminal import progress_bar

__all__ = ["export_command", "import_command"]


def _source(file: BinaryIO) -> tuple[str | None, int | None]:
    """The path and the size of a file; a stream has neither."""
    if file.fileno() != 0 and os.path.isfile(file.name):
        # A name that is no text in UTF-8 is one all the same.
        path = os.fsencode(os.path.realpath(file.name)).decode(errors="backslashreplace")
        return path, os.fstat(file.fileno()).st_size
    return None, None


@click.command("import")
@queue_argument
@click.argument("file", type=click.File("rb"), default="-")
@click.option("-p", "--priority", default=0, type=PRIORITY, help="The priority of every line.")
@click.option("--priority-field", metavar="FIELD", help="The field that has a line's priority.")
@click.option("--value-field", metavar="FIELD", help="Push this field instead of the whole line.")
@click.option("--source", metavar="NAME", help="What to know the input by; a file: its path.")
@click.option("--again", is_flag=True, help="Store the lines even if they were imported before.")
@command_options(creates=True)
def import_command(
    db: Database,
    queue: str,
    file: BinaryIO,
    priority: Any,
    priority_field: str | None,
    value_field: str | None,
    source: str | None,
    again: bool,
    as_json: bool,
) -> None:
    """Push each line of FILE, a JSON value, into QUEUE; `-` is standard input.

    An import of a file that was killed can be run again, without --again: each line is stored
    once. The file is known by its path; standard input is stored anew each time, unless --source
    gives it a name. Exit code 1 if the queue is full before all lines are stored: run it again to
    go on when some were popped.

    \b
    Example:
      fdbq import packages packages.jsonl --priority-field priority
    """
    if source is not None and not source.isprintable():
        raise click.UsageError(f"a source is named by printable text, not {source!a}")
    path, size = _source(file)
    target = json_queue(db, queue)
    if isinstance(target, Queue):
        raise click.ClickException(f"{queue!r} is a FIFO queue; `fdbq import` is for priorities")
    with progress_bar(DownloadColumn()) as progress:
        task = progress.add_task("import", total=size)
        report = import_lines(
            db,
            target,
            file,
            source or path,
            priority=priority,
            priority_field=priority_field,
            value_field=value_field,
            again=again,
            progress=lambda lines, read: progress.update(task, completed=read),
        )
    earlier = f", {report.skipped:,} were stored before" if report.skipped else ""
    hint = " (--again stores them once more)" if report.skipped and not report.stored else ""
    if report.full:
        hint = "; the queue is full, and lines are left"
    shown = f"stored {report.stored:,} lines{earlier}{hint}"
    tell(as_line(asdict(report)) if as_json else shown)
    if report.full:
        sys.exit(1)


@click.command("export")
@queue_argument
@click.argument("file", type=click.Path(dir_okay=False), default="-")
@click.option("--after", metavar="ID", help="Only what comes behind this item: go on from there.")
@command_options()
def export_command(db: Database, queue: str, file: str, after: str | None, as_json: bool) -> None:
    """Write the items of QUEUE to FILE as JSON lines, in order, and leave them in the queue.

    Items that are delayed, claimed or dead are left out; a line on standard error says how many
    there were. With --json it is JSON with all numbers, and on standard output if FILE is given.
    `fdbq import` reads them back with --priority-field priority --value-field value. A FILE that is
    there is replaced once all items are written, and stays if they are not.

    \b
    Example:
      fdbq export jobs jobs.jsonl
    """
    target = json_queue(db, queue, must_exist=True)
    with progress_bar(DownloadColumn()) as progress, _replacing(file) as output:
        task = progress.add_task("export", total=None)
        written = lines = 0
        for item in target.items(db, after=after):
            line = item_line(item).encode() + b"\n"
            output.write(line)
            written += len(line)
            lines += 1
            progress.update(task, completed=written)
        look_for_damage(db, seconds=None)
    _tell_left_out(
        count_not_waiting(db, store_of(target).layout), lines, as_json, on_error=file == "-"
    )


def _tell_left_out(
    left_out: dict[State, int], exported: int, as_json: bool, on_error: bool
) -> None:
    if as_json:
        report = as_line({"exported": exported, "left_out": left_out})
        click.echo(report, err=True) if on_error else tell(report)
    elif any(left_out.values()):
        numbers = ", ".join(f"{number:,} {state}" for state, number in left_out.items() if number)
        click.echo(f"fdbq export: left out {numbers}; only items that wait are exported", err=True)


@contextmanager
def _replacing(path: str) -> Iterator[IO[bytes]]:
    """A file that takes the place of the one at this path when all went well; `-`: the output."""
    try:
        with _opened(path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        if path == "-":
            raise OutputFailed(f"the output cannot be written: {error.strerror}") from error
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe, for example
        with open(path, "wb") as file:
            yield file
        return
    if not path:
        raise click.UsageError("FILE is empty")
    target = os.path.realpath(path)
    if not os.path.isdir(os.path.dirname(target)):
        raise click.ClickException(f"there is no directory {os.path.dirname(target)}")
    with ExitStack() as stack:
        with held_back():
            file = stack.enter_context(_temporary_file(target))
            stack.enter_context(at_end(lambda: os.unlink(file.name)))
        try:
            yield file
            file.flush()
            os.chmod(file.name, _mode(target))
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def _temporary_file(target: str) -> Any:
    """A file beside the one that it is to replace."""
    directory, name = os.path.split(target)
    return tempfile.NamedTemporaryFile(dir=directory, prefix=f".{name}.", delete=False)


def _mode(path: str) -> int:
    """The permissions of a file, or those that a new one would have."""
    if os.path.exists(path):
        return stat.S_IMODE(os.stat(path).st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
