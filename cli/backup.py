"""Commands that move whole queues: backup, restore and copy."""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, BinaryIO

import click
from rich.progress import TaskID, TextColumn

import fdbqueue
from fdbqueue import embedded, existing_queue
from fdbqueue.admin import QueueCopy
from fdbqueue.types import Database

from .common import (
    check_integrity,
    command_options,
    echo,
    json_line,
    open_database,
    queue_argument,
    queues_argument,
    say,
    states_text,
)
from .files import replacing
from .terminal import progress_bar


@contextmanager
def _counting(verb: str) -> Generator[Callable[[str, int], object]]:
    """Show how many rows of a queue are done."""
    with progress_bar(TextColumn("{task.completed:,} rows")) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, rows: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"{verb} {name}", total=None)
            bar.update(tasks[name], completed=rows)

        yield progress


def report(name: str, copy: QueueCopy, verb: str, as_json: bool, to_stderr: bool = False) -> None:
    """Print what a queue has that was written or restored."""
    line = f"{verb} {name}: {states_text(copy)}"
    if as_json:
        line = json_line({"queue": name, **dataclasses.asdict(copy)})
    say(line, err=True) if to_stderr else echo(line)
    for note in copy.notes:
        say(f"fdbq: {verb} {name}: {note}", err=True)


def write_backup(db: Database, file: str, queues: list[str] | None, as_json: bool) -> None:
    """Write queues to a file, and print what they have."""
    with _counting("backup") as progress, replacing(file) as output:
        copies = fdbqueue.admin.backup(db, output, queues, progress=progress)
        check_integrity(db, seconds=None)
    for name, copied in copies.items():
        report(name, copied, "backed up", as_json, to_stderr=file == "-")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@queues_argument
@command_options()
def backup(db: Database, file: str, queues: tuple[str, ...], as_json: bool) -> None:
    """Write each QUEUE, or all queues, to FILE, with items in every state.

    `fdbq restore` creates the queues again, in any database: the items have the same ids, states,
    order and failed attempts, and the queues the same options. If FILE is `-`, the backup is
    written to standard output. An existing FILE is replaced only after all is written.

    Each queue is written as it was at one moment. A queue that takes longer than four seconds to
    read must not change meanwhile: pause it, and stop its clients. If jobs of a QUEUE
    wait for jobs of a queue that is not in FILE, or the reverse, standard error says so.

    \b
    Example:
      fdbq backup queues.jsonl
      fdbq backup - jobs | gzip > jobs.jsonl.gz
    """
    write_backup(db, file, list(queues) or None, as_json)


@contextmanager
def seekable(file: BinaryIO) -> Generator[IO[bytes]]:
    """Return a file that can be read twice: a copy, if the file is a stream."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile() as spooled:
        while block := file.read(1 << 20):
            spooled.write(block)
        yield spooled


@click.command()
@click.argument("file", type=click.File("rb"))
@queues_argument
@click.option("--as", "new_name", metavar="NAME", help="Give the one QUEUE this name.")
@command_options(creates=True)
def restore(
    db: Database, file: BinaryIO, queues: tuple[str, ...], new_name: str | None, as_json: bool
) -> None:
    """Create each QUEUE of the backup in FILE, or all of its queues.

    If FILE is `-`, the backup is read from standard input. The whole file is verified first, and a
    damaged one changes nothing. No client sees a queue before it is complete. If a restore was
    interrupted, run it again, and it continues where it stopped. A queue that already exists is
    left alone if it equals the one in the file. If it differs, nothing is restored. A job that
    waits for jobs that are not restored goes on as if they were cancelled.

    \b
    Example:
      fdbq restore queues.jsonl
      fdbq restore queues.jsonl jobs --as jobs-of-monday
    """
    if new_name is not None and len(queues) != 1:
        raise click.UsageError("--as gives a name to one QUEUE; name it")
    with _counting("restore") as progress, seekable(file) as input_file:
        copies = fdbqueue.admin.restore(
            db, input_file, queues or None, new_name=new_name, progress=progress
        )
    for name, copied in copies.items():
        report(name if new_name is None else new_name, copied, "restored", as_json)
    if not copies and not as_json:
        echo("nothing to restore: the queues already exist")


@click.command()
@queue_argument
@click.option(
    "--to",
    "target_url",
    metavar="DATABASE",
    required=True,
    help="The database to copy to, in the forms of --from.",
)
@click.option("--as", "new_name", metavar="NAME", help="Give the copy another name.")
@command_options(db_names=("--from", "--db"))
def copy(db: Database, queue: str, target_url: str, new_name: str | None, as_json: bool) -> None:
    """Copy QUEUE to another database, with items in every state.

    The items keep their ids, states, order and failed attempts, and the queue its options. Both
    sides are read again and compared, and the copy is checked as by `fdbq check`. QUEUE stays in
    its database. If a copy was interrupted, run it again, and it continues where it stopped.

    If QUEUE changes during the copy, the command fails and makes no copy. Pause QUEUE and stop its
    clients first. Then start them with the other database, and `fdbq resume` the copy. If clients
    use both, each job runs twice.

    Exits with code 1 if the check finds problems. The original then has them as well.

    \b
    Example:
      fdbq copy jobs --from /var/lib/jobs --to /etc/foundationdb/fdb.cluster
    """
    timeout = click.get_current_context().params["timeout"]
    name = queue if new_name is None else new_name
    existing_queue(db, queue)  # before the other database is created
    target = open_database(target_url, None, True)
    try:
        target.options.set_transaction_timeout(math.ceil(timeout * 1000))
        with _counting("copy") as progress:
            copied = fdbqueue.admin.copy(
                db, target, queue, name, progress=lambda rows: progress(queue, rows)
            )
        problems = fdbqueue.admin.check(target, existing_queue(target, name)).problems
    finally:
        if isinstance(target, embedded.Database):
            target.close()
    report(name, copied, "copied", as_json)
    for problem in problems:
        say(f"fdbq copy: {problem}", err=True)
    if problems:
        sys.exit(1)
