"""The commands `fdbq backup`, `restore` and `copy`."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

import click

import fdbqueue
from fdbqueue import embedded, existing_queue
from fdbqueue.admin import Copies
from fdbqueue.queue.backup import distinct
from fdbqueue.types import Database

from .command import QUEUES, command
from .files import replacing
from .opening import check_integrity, open_database
from .options import argument, flag, option
from .output import count_noun, report, say, show, states_text

_ALL = "keys outside queues"
"""The name of the empty prefix in reports."""


def prefix_text(prefix: bytes) -> str:
    r"""Return a prefix as text, in which `\xNN` stands for an unprintable byte.

    >>> print(prefix_text(b"sold/\x00\\"))
    sold/\x00\\
    """
    text = prefix.replace(b"\\", b"\\\\").decode("latin-1")
    return "".join(char if " " <= char <= "~" else f"\\x{ord(char):02x}" for char in text)


def prefix_from(text: str) -> bytes:
    r"""Return the prefix of such a text."""
    parts = re.split(rb"(\\(?:x[0-9a-fA-F]{2}|\\))", os.fsencode(text))
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = bytes.fromhex(part[2:].decode()) or b"\\"
        elif b"\\" in part:
            raise ValueError(f"write \\xNN for a byte and \\\\ for a backslash, not {text}")
    return b"".join(parts)


def _report(copies: Copies, verb: str, new_name: str | None = None, err: bool = False) -> None:
    lines: list[tuple[dict[str, Any], str]] = []
    for name, copied in copies.items():
        queue = name if new_name is None else new_name
        fields = {"queue": queue, **dataclasses.asdict(copied)}
        lines.append((fields, f"{verb} {queue}: {states_text(copied)}"))
    for prefix, n in copies.prefixes.items():
        text = prefix_text(prefix)
        fields = {"prefix": text, "keys": n}
        lines.append((fields, f"{verb} {text or _ALL}: {count_noun(n, 'key')}"))
    for fields, text in lines:
        show(fields, text, err=True) if err else report(fields, text)


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

    FILE can be `-` for standard output. An existing FILE is replaced only after all is written.

    Each queue is written as it was at one moment. A queue that takes over five seconds to read must
    not change meanwhile: pause it, and stop its clients. Write queues whose jobs wait for each
    other to one FILE.

    With --prefix or --all, FILE also has keys beside the queues, including queues without a name.
    PREFIX is text, with \\xNN for a byte. All of FILE shows one moment if the backup takes under a
    second or, without large queues, under five. Otherwise standard error says that chunks of keys
    show others; stop all clients to avoid this.

    \b
    Example:
      fdbq backup shop.jsonl --prefix sold/ --prefix stock/
    """
    if is_all and queues:
        raise click.UsageError("--all writes all queues; omit QUEUE, or write --prefix '' instead")
    own = [*prefixes, b""] if is_all else prefixes
    with replacing(file) as output:
        copies = fdbqueue.admin.backup(db, output, list(queues) or None, prefixes=own)
        check_integrity(db, seconds=None)
    _report(copies, "backed up", err=file == "-")
    if copies.prefixes and copies.moments > 1:
        say(
            f"fdbq: {file} shows {copies.moments:,} moments: it may have a part of what one "
            "transaction changed in several queues or keys",
            err=True,
        )


@contextmanager
def seekable(file: BinaryIO) -> Generator[IO[bytes]]:
    """Yield a file that can be read twice; copy a stream."""
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

    FILE can be `-` for standard input. Nothing is restored if FILE is damaged, a queue already
    exists, or the database has another value for a key. No client sees an incomplete queue. After
    an interruption, run it again. Restore queues together if their jobs wait for each other.

    Unless you name a QUEUE or a PREFIX, all keys beside queues are restored before the queues
    appear. PREFIX is text, with \\xNN for a byte.

    \b
    Example:
      fdbq restore queues.jsonl jobs --as jobs-of-monday
    """
    _verify_new_name(new_name, queues)
    with seekable(file) as input_file:
        copies = fdbqueue.admin.restore(
            db, input_file, queues or None, prefixes=prefixes or None, new_name=new_name
        )
    _report(copies, "restored", new_name)


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

    `fdbq check` runs on each copy. After an interruption, run it again. Copy queues together if
    their jobs wait for each other; a job does not wait for jobs left behind.

    To move QUEUE, pause it and stop its clients first. If clients use both, each job runs twice.

    Exits with code 1 if the check finds problems, which the original also has.

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
        _report(copies, "copied", new_name)
        names = copies if new_name is None else (new_name,)
        queues_there = [existing_queue(target, name) for name in names]
        reports = [fdbqueue.admin.check(target, queue) for queue in queues_there]
    finally:
        if isinstance(target, embedded.Database):
            target.close()
    problems = [problem for report in reports for problem in report.problems]
    for problem in problems:
        say(f"fdbq copy: {problem}", err=True)
    if problems:
        sys.exit(1)
