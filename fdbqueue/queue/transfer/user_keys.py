"""The user's own keys: read in chunks, and written where no other value is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fdbqueue.database.binding import loaded_binding
from fdbqueue.database.retrying import read, run
from fdbqueue.errors import FdbqueueError
from fdbqueue.layout.names import ROOT
from fdbqueue.queue.transfer.rows import Moment, Row, batches
from fdbqueue.types import Database, ReadTransaction, Transaction

_OURS: bytes = ROOT.key()  # begins the keys of named queues, and of what the library notes of them
ALL = "keys outside queues"
"""How a report calls the keys with the empty prefix."""


class KeyExists(FdbqueueError):
    """A key of a backup that the database has with another value, which stays."""

    key: bytes

    _template = (
        "the database has another value than the backup under the key {self.key!r}; clear the key, "
        "or restore only the queues and prefixes that you name"
    )


def distinct(prefixes: Iterable[bytes]) -> list[bytes]:
    r"""Return prefixes in order, without repetitions and those that begin with another one.

    Raises:
        ValueError: A prefix begins only keys that are not the user's.

    Example:
        >>> distinct([b"stock/", b"sold/2026/", b"sold/", b"sold/"])
        [b'sold/', b'stock/']
    """
    if isinstance(prefixes, (bytes, str)):
        raise TypeError(f"prefixes is a list of prefixes, not {prefixes!r} alone")
    chosen: list[bytes] = []
    for prefix in sorted(prefixes):
        if not isinstance(prefix, bytes):
            raise TypeError(f"a prefix is of bytes, not {prefix!r}")
        if prefix.startswith(b"\xff"):
            raise ValueError(f"the keys with the prefix {prefix!r} belong to the database")
        if prefix.startswith(_OURS):
            raise ValueError(f"the keys with the prefix {prefix!r} belong to queues; name these")
        if not chosen or not prefix.startswith(chosen[-1]):
            chosen.append(prefix)
    return chosen


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


def key_rows(prefix: bytes, moment: Moment) -> Iterator[Row]:
    """Yield the rows whose keys begin with a prefix, without those of named queues."""
    strinc = loaded_binding().strinc
    begin, end = prefix, strinc(prefix) if prefix else b"\xff"
    if _OURS.startswith(prefix):
        yield from moment.rows(begin, _OURS)
        begin = strinc(_OURS)
    yield from moment.rows(begin, end)


def count_missing(db: Database, rows: Iterable[Row]) -> int:
    """Return how many of the rows a database does not have.

    Raises:
        KeyExists: It has another value under one of the keys.
    """
    bodies = (partial(_missing, rows=batch) for batch in batches(iter(rows)))
    return sum(len(read(db, body)) for body in bodies)


def store_keys(db: Database, rows: Iterable[Row], progress: Callable[[int], object]) -> None:
    """Write the rows that a database does not have.

    Raises:
        KeyExists: It has another value under one of the keys. The rows before it may be stored.
    """
    n = 0
    for batch in batches(iter(rows)):

        def body(tr: Transaction, batch: list[Row] = batch) -> None:
            for key, value in _missing(tr, batch):
                tr[key] = value

        run(db, body)
        n += len(batch)
        progress(n)


def _missing(tr: ReadTransaction, rows: list[Row]) -> list[Row]:
    missing: list[Row] = []
    for row, found in [(row, tr[row.key]) for row in rows]:
        if not found.present():
            missing.append(row)
        elif found.value != row.value:
            raise KeyExists(row.key)
    return missing
