"""Writing of mutations into SQLite, each key once."""

from __future__ import annotations

import sqlite3

from fdbqueue.embedded.mutations import ATOMICS, Mutation, MutationType
from fdbqueue.embedded.storage.snapshot import GET

_PUT = "REPLACE INTO kv VALUES (?, ?)"
_DELETE = "DELETE FROM kv WHERE key = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE key >= ? AND key < ?"
_SET, _CLEAR_RANGE = int(MutationType.SET), int(MutationType.CLEAR_RANGE)


def apply(connection: sqlite3.Connection, mutations: list[Mutation], version: int) -> list[bytes]:
    """Write the mutations of a commit in order, within a transaction of SQLite.

    Return the write conflict ranges of versionstamped keys, as `pack_ranges` takes them.
    """
    pending: dict[bytes, bytes | None] = {}
    stamped: list[bytes] = []
    for kind, key, param in mutations:
        if kind == _SET:
            pending[key] = param
        elif kind == _CLEAR_RANGE:
            if param == key + b"\0":
                pending[key] = None
            else:
                _flush(connection, pending)
                connection.execute(_DELETE_RANGE, (key, param))
        elif kind == MutationType.SET_VERSIONSTAMPED_KEY:
            final = _stamped(key, version)
            pending[final] = param
            stamped += (final, b"")
        elif kind == MutationType.SET_VERSIONSTAMPED_VALUE:
            pending[key] = _stamped(param, version)
        else:
            if key in pending:
                value = pending[key]
            else:
                row = connection.execute(GET, (key,)).fetchone()
                value = None if row is None else row[0]
            pending[key] = ATOMICS[kind](value, param)
    _flush(connection, pending)
    return stamped


def _flush(connection: sqlite3.Connection, pending: dict[bytes, bytes | None]) -> None:
    gone = [(key,) for key, value in pending.items() if value is None]
    if gone:
        connection.executemany(_DELETE, gone)
    connection.executemany(_PUT, [row for row in pending.items() if row[1] is not None])
    pending.clear()


def _stamped(template: bytes, version: int) -> bytes:
    """Insert the versionstamp at the offset in the template's last four bytes."""
    at = int.from_bytes(template[-4:], "little")
    return template[:at] + version.to_bytes(8, "big") + b"\0\0" + template[at + 10 : -4]
