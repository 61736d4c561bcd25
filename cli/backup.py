"""Commands that move whole queues and the keys beside them: backup, restore and copy."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import IO, BinaryIO

import click

import fdbqueue
from fdbqueue import embedded, existing_queue
from fdbqueue.admin import Copies, QueueCopy
from fdbqueue.queue.backup import distinct
from fdbqueue.types import Database

from .command import QUEUES, command
from .files import replacing
from .opening import check_integrity, open_database
from .options import argument, flag, option
from .output import count_noun, report, say, show, states_text

_ALL = "keys outside queues"
"""How a report calls the keys with the empty prefix."""


def prefix_text(prefix: bytes) -> str:
    r"""Return a prefix as text, with an escape for each byte that is no printable ASCII.

    >>> print(prefix_text(b"sold/\x00\\"))
    sold/\x00\\
    """
    text = prefix.replace(b"\\", b"\\\\").decode("latin-1")
    return "".join(char if " " <= char <= "~" else f"\\x{ord(char):02x}" for char in text)


def prefix_from(text: str) -> bytes:
    r"""Return the prefix that a text stands for, with `\xNN` for any byte and `\\` for a backslash.

    Raises:
        ValueError: The text has another backslash.

    Example:
        >>> prefix_from(r"sold/\x00\\")
        b'sold/\x00\\'
    """
    parts = re.split(rb"(\\(?:x[0-9a-fA-F]{2}|\\))", os.fsencode(text))
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = bytes.fromhex(part[2:].decode()) or b"\\"
        elif b"\\" in part:
            raise ValueError(f"write \\xNN for a byte and \\\\ for a backslash, not {text}")
    return b"".join(parts)


def report_copy(name: str, copy: QueueCopy, verb: str, to_stderr: bool = False) -> None:
    """Print what a queue has that was written or restored."""
    fields = {"queue": name, **dataclasses.asdict(copy)}
    _report(fields, f"{verb} {name}: {states_text(copy)}", to_stderr)


def _report_keys(copies: Copies, verb: str, to_stderr: bool = False) -> None:
    """Print how many keys of each prefix were written or restored."""
    for prefix, n in copies.prefixes.items():
        text = prefix_text(prefix)
        line = f"{verb} {text or _ALL}: {count_noun(n, 'key')}"
        _report({"prefix": text, "keys": n}, line, to_stderr)


def _report(fields: object, text: str, to_stderr: bool) -> None:
    show(fields, text, err=True) if to_stderr else report(fields, text)


def write_backup(
    db: Database,
    file: str,
    queues: list[str] | None,
    prefixes: Iterable[bytes] = (),
) -> None:
    """Write queues and keys to a file, and print what was written."""
    with replacing(file) as output:
        copies = fdbqueue.admin.backup(db, output, queues, prefixes=prefixes)
        check_integrity(db, seconds=None)
    for name, copied in copies.items():
        report_copy(name, copied, "backed up", to_stderr=file == "-")
    _report_keys(copies, "backed up", to_stderr=file == "-")
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


def _prefix_option(help: str) -> click.Option:
    return option(
        "--prefix", "prefixes", metavar="PREFIX", multiple=True, callback=_prefixes, help=help
    )


@command(
    argument("file", type=click.Path(dir_okay=False)),
    QUEUES,
    _prefix_option("Write also all other keys that begin with PREFIX. Can be repeated."),
    flag("--all", "is_all", help="Write all queues and all other keys."),
)
def backup(
    db: Database, file: str, queues: tuple[str, ...], prefixes: list[bytes], is_all: bool
) -> None:
    """Write each QUEUE, or all queues with a name, to FILE, with items in every state.

    `fdbq restore` creates the queues again, in any database: the items have the same ids, states,
    order and failed attempts, and the queues the same options. If FILE is `-`, the backup is
    written to standard output. An existing FILE is replaced only after all is written.

    Each queue is written as it was at one moment. A queue that takes longer than five seconds to
    read must not change meanwhile: pause it, and stop its clients. Write queues whose jobs wait for
    each other to one FILE.

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
    write_backup(db, file, list(queues) or None, own)


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


def _verify_new_name(new_name: str | None, queues: tuple[str, ...]) -> None:
    if new_name is not None and len(queues) != 1:
        raise click.UsageError("--as gives a name to one QUEUE; name it")


@command(
    argument("file", type=click.File("rb")),
    QUEUES,
    _prefix_option("Restore the keys that begin with PREFIX. Can be repeated."),
    option("--as", "new_name", metavar="NAME", help="Give the one QUEUE this name."),
    creates=True,
)
def restore(
    db: Database,
    file: BinaryIO,
    queues: tuple[str, ...],
    prefixes: list[bytes],
    new_name: str | None,
) -> None:
    """Create each QUEUE of the backup in FILE, or all of its queues and keys.

    If FILE is `-`, the backup is read from standard input. The whole file is verified first, and a
    damaged one changes nothing. No client sees a queue before it is complete. If a restore was
    interrupted, run it again, and it begins anew. If a queue already exists, nothing is restored.
    Restore queues together whose jobs wait for each other.

    If FILE has keys beside queues, all are restored, unless you name a QUEUE or a PREFIX. They are
    written before the queues appear. If the database has another value under one of the keys,
    nothing is restored. Keys that FILE does not have stay. PREFIX is text, with \\xNN for a byte.

    \b
    Example:
      fdbq restore queues.jsonl
      fdbq restore everything.jsonl --prefix sold/
      fdbq restore queues.jsonl jobs --as jobs-of-monday
    """
    _verify_new_name(new_name, queues)
    with seekable(file) as input_file:
        copies = fdbqueue.admin.restore(
            db, input_file, queues or None, prefixes=prefixes or None, new_name=new_name
        )
    for name, copied in copies.items():
        report_copy(name if new_name is None else new_name, copied, "restored")
    _report_keys(copies, "restored")


@command(
    QUEUES,
    option(
        *("--to", "target_url"),
        metavar="DATABASE",
        required=True,
        help="The database to copy to, in the forms of --from.",
    ),
    option("--as", "new_name", metavar="NAME", help="Give the copy another name."),
    database=("--from", "--db"),
)
def copy(db: Database, queues: tuple[str, ...], target_url: str, new_name: str | None) -> None:
    """Copy each QUEUE, or all queues with a name, to another database, with items in every state.

    A copy is a backup and its restore: the items keep their ids, states, order and failed attempts,
    and the queues their options. Each copy is checked as by `fdbq check`. QUEUE stays in its
    database. If a copy was interrupted, run it again, and it begins anew.

    To move QUEUE, pause it and stop its clients first: the copy does not have what they do
    meanwhile. Then start them with the other database, and `fdbq resume` the copy. If clients use
    both, each job runs twice.

    Copy queues whose jobs wait for each other together. Otherwise jobs go on whose jobs are left
    behind, as after `fdbq restore`.

    Exits with code 1 if the check finds problems. The original then has them as well.

    \b
    Example:
      fdbq copy jobs --from /var/lib/jobs --to /etc/foundationdb/fdb.cluster
    """
    _verify_new_name(new_name, queues)
    timeout = click.get_current_context().params["timeout"]
    for name in queues:
        existing_queue(db, name)  # before the other database is created
    target = open_database(target_url, True)
    try:
        target.options.set_transaction_timeout(math.ceil(timeout * 1000))
        copies = fdbqueue.admin.copy(db, target, queues or None, new_name=new_name)
        problems: list[str] = []
        for name, copied in copies.items():
            there = name if new_name is None else new_name
            report_copy(there, copied, "copied")
            problems += fdbqueue.admin.check(target, existing_queue(target, there)).problems
    finally:
        if isinstance(target, embedded.Database):
            target.close()
    for problem in problems:
        say(f"fdbq copy: {problem}", err=True)
    if problems:
        sys.exit(1)
