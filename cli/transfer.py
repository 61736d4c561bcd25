"""Commands for files: import and export."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import IO, BinaryIO

import click
from rich.progress import DownloadColumn

from fdbqueue import Queue
from fdbqueue.queue.importing import import_lines
from fdbqueue.types import Database, PriorityJson

from .common import (
    PRIORITY,
    OutputError,
    check_integrity,
    command_options,
    count_noun,
    echo,
    item_json,
    json_line,
    json_queue,
    queue_argument,
)
from .signals import cleanup_on_signal, defer_signals
from .terminal import progress_bar

__all__ = ["export_command", "import_command"]


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
    source: str | None,
    again: bool,
    as_json: bool,
) -> None:
    """Push each line of FILE, a JSON value, to QUEUE.

    Without FILE, or if it is `-`, lines are read from standard input.

    Each line is stored once: an import that was interrupted continues where it stopped when you
    run it again. An import is recognized by the path of FILE or by --source. Standard input without
    --source is stored again each time.

    Exits with code 1 if the queue is full before all lines are stored. Run the import again when
    the queue has room.

    \b
    Example:
      fdbq import packages packages.jsonl --priority-field priority
      seq 100 | fdbq import numbers --source first-hundred
    """
    if source is not None and not source.isprintable():
        raise click.UsageError(f"--source must be printable text, not {source!a}")
    path, size = _source(file)
    target = json_queue(db, queue)
    if isinstance(target, Queue):
        raise click.ClickException(f"{queue!r} is a FIFO queue and does not support import")
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
    skipped = f", skipped {report.skipped:,} that were stored before" if report.skipped else ""
    hint = " (--again stores them again)" if report.skipped and not report.stored else ""
    if report.full:
        hint = "; the queue is full and lines remain"
    summary = f"stored {count_noun(report.stored, 'line')}{skipped}{hint}"
    echo(json_line(asdict(report)) if as_json else summary)
    if report.full:
        sys.exit(1)


@click.command("export")
@queue_argument
@click.argument("file", type=click.Path(dir_okay=False), default="-")
@click.option("--after", metavar="ID", help="Export only items after this one.")
@command_options()
def export_command(db: Database, queue: str, file: str, after: str | None, as_json: bool) -> None:
    """Write the ready items of QUEUE to FILE as lines of JSON.

    The items are written in order and stay in the queue. Without FILE, or if it is `-`, they are
    written to standard output. An existing FILE is replaced only after all items are written.

    Delayed and claimed items and dead letters are not exported. A line on standard error says how
    many there are. With --json, a JSON report has all numbers, on standard output if FILE is given.

    \b
    Example:
      fdbq export jobs jobs.jsonl
      fdbq import copy jobs.jsonl --priority-field priority --value-field value
    """
    target = json_queue(db, queue, must_exist=True)
    with progress_bar(DownloadColumn()) as progress, _replacing(file) as output:
        task = progress.add_task("export", total=None)
        written = lines = 0
        for item in target.items(db, after=after):
            line = item_json(item).encode() + b"\n"
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
        click.echo(report, err=True) if to_stderr else echo(report)
    elif any(left_out.values()):
        numbers = ", ".join(f"{number:,} {state}" for state, number in left_out.items() if number)
        click.echo(f"fdbq export: left out {numbers}; only ready items are exported", err=True)


@contextmanager
def _replacing(path: str) -> Generator[IO[bytes]]:
    """Open a file that replaces the one at `path` if the block succeeds; `-` is standard output."""
    try:
        with _open(path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        if path == "-":
            raise OutputError(f"cannot write to standard output: {error.strerror}") from error
        raise click.ClickException(f"cannot write to {path}: {error.strerror}") from error


@contextmanager
def _open(path: str) -> Generator[IO[bytes]]:
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe, for example
        with open(path, "wb") as file:
            yield file
        return
    if not path:
        raise click.UsageError("FILE is an empty path")
    target = os.path.realpath(path)
    if not os.path.isdir(os.path.dirname(target)):
        raise click.ClickException(f"no such directory: {os.path.dirname(target)}")
    with ExitStack() as stack:
        with defer_signals():
            temporary = stack.enter_context(_temporary_file(target))
            stack.enter_context(cleanup_on_signal(lambda: os.unlink(temporary.name)))
        try:
            yield temporary
            temporary.flush()
            os.chmod(temporary.name, _mode(target))
            os.replace(temporary.name, target)
        except BaseException:
            os.unlink(temporary.name)
            raise


def _temporary_file(target: str) -> IO[bytes]:
    """Create a file in the directory of the file that it will replace."""
    directory, name = os.path.split(target)
    return tempfile.NamedTemporaryFile(dir=directory, prefix=f".{name}.", delete=False)


def _mode(path: str) -> int:
    """Return the permissions of a file, or those that a new file would have."""
    if os.path.exists(path):
        return stat.S_IMODE(os.stat(path).st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
