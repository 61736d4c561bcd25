"""The table of keys and values: how a snapshot reads it, and what a commit writes."""

from __future__ import annotations

import sqlite3

from fdbqueue.embedded.mutations import ATOMICS, CLEAR_RANGE, SET, Mutation, MutationType

GET = "SELECT value FROM kv WHERE key = ?"
FORWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
BACKWARD = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT ?"

_PUT = "REPLACE INTO kv VALUES (?, ?)"
_DELETE = "DELETE FROM kv WHERE key = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE key >= ? AND key < ?"


def apply(connection: sqlite3.Connection, mutations: list[Mutation], version: int) -> list[bytes]:
    """Write the mutations of a commit in order, within a transaction of SQLite, and each key once.

    Return the write conflict ranges of versionstamped keys, as `pack_ranges` takes them.
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
        elif kind == MutationType.SET_VERSIONSTAMPED_KEY:
            key = _stamped(key, version)
            stamped += (key, b"")
        elif kind == MutationType.SET_VERSIONSTAMPED_VALUE:
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
    return stamped


def _flush(connection: sqlite3.Connection, values: dict[bytes, bytes], gone: set[bytes]) -> None:
    if gone:
        connection.executemany(_DELETE, zip(gone))
    if values:
        connection.executemany(_PUT, values.items())
    gone.clear()
    values.clear()


def _stamped(template: bytes, version: int) -> bytes:
    """Insert the versionstamp at the offset in the template's last four bytes."""
    at = int.from_bytes(template[-4:], "little")
    return template[:at] + version.to_bytes(8, "big") + b"\0\0" + template[at + 10 : -4]
