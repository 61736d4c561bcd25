"""Commands that move whole queues and the keys beside them: backup, restore and copy."""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

import click
from rich.progress import TaskID, TextColumn

import fdbqueue
from fdbqueue import embedded, existing_queue
from fdbqueue.admin import Copies, QueueCopy
from fdbqueue.queue.transfer.user_keys import ALL, distinct, prefix_from, prefix_text
from fdbqueue.types import Database

from .common import (
    check_integrity,
    command_options,
    count_noun,
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


def _report_keys(copies: Copies, verb: str, as_json: bool, to_stderr: bool = False) -> None:
    """Print how many keys of each prefix were written or restored."""
    for prefix, n in copies.prefixes.items():
        line = f"{verb} {prefix_text(prefix) or ALL}: {count_noun(n, 'key')}"
        if as_json:
            line = json_line({"prefix": prefix_text(prefix), "keys": n})
        say(line, err=True) if to_stderr else echo(line)


def write_backup(
    db: Database,
    file: str,
    queues: list[str] | None,
    as_json: bool,
    prefixes: Iterable[bytes] = (),
) -> None:
    """Write queues and keys to a file, and print what was written."""
    with _counting("backup") as progress, replacing(file) as output:
        copies = fdbqueue.admin.backup(db, output, queues, prefixes=prefixes, progress=progress)
        check_integrity(db, seconds=None)
    for name, copied in copies.items():
        report(name, copied, "backed up", as_json, to_stderr=file == "-")
    _report_keys(copies, "backed up", as_json, to_stderr=file == "-")
    if copies.prefixes and copies.moments > 1:
        say(
            f"fdbq: {file} shows {copies.moments:,} moments: it may have a part of what one "
            "transaction changed in several queues or keys",
            err=True,
        )


def _prefixes(_: object, __: object, texts: tuple[str, ...]) -> list[bytes]:
    try:
        return distinct(map(prefix_from, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _prefix_option(help: str) -> Callable[[Any], Any]:
    return click.option(
        "--prefix", "prefixes", metavar="PREFIX", multiple=True, callback=_prefixes, help=help
    )


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@queues_argument
@_prefix_option("Write also all other keys that begin with PREFIX. Can be repeated.")
@click.option("--all", "is_all", is_flag=True, help="Write all queues and all other keys.")
@command_options()
def backup(
    db: Database,
    file: str,
    queues: tuple[str, ...],
    prefixes: list[bytes],
    is_all: bool,
    as_json: bool,
) -> None:
    """Write each QUEUE, or all queues with a name, to FILE, with items in every state.

    `fdbq restore` creates the queues again, in any database: the items have the same ids, states,
    order and failed attempts, and the queues the same options. If FILE is `-`, the backup is
    written to standard output. An existing FILE is replaced only after all is written.

    Each queue is written as it was at one moment. A queue that takes longer than four seconds to
    read must not change meanwhile: pause it, and stop its clients. If jobs of a QUEUE
    wait for jobs of a queue that is not in FILE, or the reverse, standard error says so.

    With --prefix or --all, FILE also has the keys that you keep beside the queues. PREFIX is text,
    with \\xNN for a byte. All of FILE shows one moment if the backup takes less than a second or,
    without large queues, less than five. Otherwise, keys are written in chunks, each as it was at
    one moment, and standard error says so: FILE may have a part of what one transaction changed in
    two chunks, or in a chunk and a queue. Stop all clients to have one moment. The rows of queues
    without a name are such keys.

    \b
    Example:
      fdbq backup queues.jsonl
      fdbq backup shop.jsonl --prefix sold/ --prefix stock/
      fdbq backup --all everything.jsonl
      fdbq backup - jobs | gzip > jobs.jsonl.gz
    """
    if is_all and queues:
        raise click.UsageError("--all writes all queues; omit QUEUE, or write --prefix '' instead")
    own = [*prefixes, b""] if is_all else prefixes
    write_backup(db, file, list(queues) or None, as_json, own)


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
@_prefix_option("Restore the keys that begin with PREFIX. Can be repeated.")
@click.option("--as", "new_name", metavar="NAME", help="Give the one QUEUE this name.")
@command_options(creates=True)
def restore(
    db: Database,
    file: BinaryIO,
    queues: tuple[str, ...],
    prefixes: list[bytes],
    new_name: str | None,
    as_json: bool,
) -> None:
    """Create each QUEUE of the backup in FILE, or all of its queues and keys.

    If FILE is `-`, the backup is read from standard input. The whole file is verified first, and a
    damaged one changes nothing. No client sees a queue before it is complete. If a restore was
    interrupted, run it again, and it continues where it stopped. A queue that already exists is
    left alone if it equals the one in the file. If it differs, nothing is restored. A job that
    waits for jobs that are not restored goes on as if they were cancelled.

    If FILE has keys beside queues, all are restored, unless you name a QUEUE or a PREFIX. They are
    written before the queues appear. If the database has another value under one of the keys,
    nothing is restored. Keys that FILE does not have stay. PREFIX is text, with \\xNN for a byte.

    \b
    Example:
      fdbq restore queues.jsonl
      fdbq restore everything.jsonl --prefix sold/
      fdbq restore queues.jsonl jobs --as jobs-of-monday
    """
    if new_name is not None and len(queues) != 1:
        raise click.UsageError("--as gives a name to one QUEUE; name it")
    with _counting("restore") as progress, seekable(file) as input_file:
        copies = fdbqueue.admin.restore(
            db,
            input_file,
            queues or None,
            prefixes=prefixes or None,
            new_name=new_name,
            progress=progress,
        )
    for name, copied in copies.items():
        report(name if new_name is None else new_name, copied, "restored", as_json)
    _report_keys(copies, "restored", as_json)
    if not copies and not copies.prefixes and not as_json:
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
