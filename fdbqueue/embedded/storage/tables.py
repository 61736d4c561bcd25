"""The tables: keys and values, the commits, and the clock of versions.

Versions are a million a second, on the machine's monotonic clock plus a stored shift.
"""

from __future__ import annotations

import sqlite3
import time

from fdbqueue.embedded.arguments import TRANSACTION_LIFETIME, VERSIONS_PER_SECOND
from fdbqueue.embedded.mutations import (
    ATOMICS,
    CLEAR_RANGE,
    SET,
    STAMPED_KEY,
    STAMPED_VALUE,
    Mutation,
)
from fdbqueue.embedded.ranges import Range, RangeSet, pack_ranges, unpack_ranges
from fdbqueue.errors import FDBError

GET = "SELECT value FROM kv WHERE key = ?"
FORWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
BACKWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"

_PUT = "REPLACE INTO kv VALUES (?, ?)"
_DELETE = "DELETE FROM kv WHERE key = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE key >= ? AND key < ?"

LIFETIME = int(TRANSACTION_LIFETIME * VERSIONS_PER_SECOND)
"""Versions between a transaction's first read and its latest possible commit."""

NEWEST = "SELECT max(version) FROM commits"
FOLLOWING = "SELECT min(version) FROM commits WHERE version > ?"
_SINCE = "SELECT version, writes FROM commits WHERE version >= ? ORDER BY version"
_NOTE = "INSERT INTO commits VALUES (?, ?)"
# The newest of the rows that are too old stays: a snapshot at it may have begun a moment ago.
_FORGET = "DELETE FROM commits WHERE version < (SELECT max(version) FROM commits WHERE version < ?)"
_FORGET_EVERY = 64  # commits, on average: the last bits of the time are as good as random ones


def apply(
    connection: sqlite3.Connection, mutations: list[Mutation], version: int, writes: list[bytes]
) -> None:
    """Write a commit within SQLite's transaction; now and then delete old rows.

    `writes` are the packed write conflict ranges, without versionstamped keys.
    """
    values: dict[bytes, bytes] = {}
    gone: set[bytes] = set()
    stamped: list[bytes] = []
    for kind, key, param in mutations:
        value: bytes | None = param
        if kind == CLEAR_RANGE:
            if param != key + b"\0":
                _flush(connection, values, gone)
                connection.execute(_DELETE_RANGE, (key, param))
                continue
            value = None
        elif kind == STAMPED_KEY:
            key = _stamped(key, version)
            stamped += (key, b"")
        elif kind == STAMPED_VALUE:
            value = _stamped(param, version)
        elif kind != SET:
            value = values.get(key)
            if value is None and key not in gone:
                row = connection.execute(GET, (key,)).fetchone()
                value = None if row is None else row[0]
            value = ATOMICS[kind](value, param)
        if value is None:
            values.pop(key, None)
            gone.add(key)
        else:
            values[key] = value
    _flush(connection, values, gone)
    connection.execute(_NOTE, (version, pack_ranges(writes + stamped)))
    if version % _FORGET_EVERY == 0:
        connection.execute(_FORGET, (version - LIFETIME,))


def _flush(connection: sqlite3.Connection, values: dict[bytes, bytes], gone: set[bytes]) -> None:
    if gone:
        connection.executemany(_DELETE, zip(gone))
    if values:
        connection.executemany(_PUT, values.items())
    gone.clear()
    values.clear()


def _stamped(template: bytes, version: int) -> bytes:
    at = int.from_bytes(template[-4:], "little")
    return template[:at] + version.to_bytes(8, "big") + b"\0\0" + template[at + 10 : -4]


def compare(connection: sqlite3.Connection, seen: int, reads: list[Range]) -> None:
    """Compare a transaction's reads with the commits after version `seen`.

    Raises:
        FDBError: 1020, a commit wrote a key of `reads`. 1007, rows may have been deleted.
    """
    lowest, highest = min(reads)[0], max(end for _, end in reads)
    keys: RangeSet | None = None
    # All rows at once: a statement that is not finished would outlive a rollback.
    (first, _), *rows = connection.execute(_SINCE, (seen,)).fetchall()
    if first != seen:
        raise FDBError(1007)
    for _, writes in rows:
        for begin, end in unpack_ranges(writes):
            # Compare with all reads at once: most commits write elsewhere.
            if begin < highest and lowest < end:
                keys = keys or RangeSet(reads)
                if keys.within(begin, end):
                    raise FDBError(1020)


def begin_clock(connection: sqlite3.Connection) -> None:
    """Let versions continue from the newest commit after a restart; for the first process."""
    (newest,) = connection.execute(NEWEST).fetchone()
    shift = newest + 1 - time.monotonic_ns() // 1000
    connection.execute("UPDATE clock SET shift = ? WHERE shift < ?", (shift, shift))


def shift_of_versions(connection: sqlite3.Connection) -> int:
    """Return what to add to the clock to get versions."""
    return int(connection.execute("SELECT shift FROM clock").fetchone()[0])
