"""Writing of mutations into SQLite: each key once, several rows per statement."""

from __future__ import annotations

import sqlite3

from fdbqueue.embedded.mutations import ATOMICS, Mutation, MutationType

GET = "SELECT value FROM kv WHERE key = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE key >= ? AND key < ?"
# A statement for several rows costs little more than one for a single row.
_ROWS_AT_ONCE = 8
_PUT = ["REPLACE INTO kv VALUES " + ", ".join(["(?, ?)"] * n) for n in range(_ROWS_AT_ONCE + 1)]
_DELETE = [
    "DELETE FROM kv WHERE key IN (" + ", ".join("?" * n) + ")" for n in range(_ROWS_AT_ONCE + 1)
]
_SET, _CLEAR_RANGE = int(MutationType.SET), int(MutationType.CLEAR_RANGE)
_KNOWN_AT_MOST = 1000  # keys


class Writer:
    """A writer of mutations that remembers the counters it wrote. Requires the writers' lock.

    While only this process commits, the value under an atomic operation is the result of the last
    one, so it need not be read.
    """

    version: int | None
    """The version of the commit that the writer remembers. The caller sets it after the commit."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes | None] = {}
        self.version = None

    def apply(
        self, connection: sqlite3.Connection, mutations: list[Mutation], version: int, last: int
    ) -> list[bytes]:
        """Write mutations in order.

        Return the write conflict ranges of versionstamped keys, as `pack_ranges` takes them.

        Args:
            connection: A connection within a transaction.
            mutations: The mutations.
            version: The version of this commit.
            last: The version of the commit before it.
        """
        known = self._known
        if last != self.version or len(known) > _KNOWN_AT_MOST:
            known.clear()
        self.version = None
        pending: dict[bytes, bytes | None] = {}
        stamped: list[bytes] = []
        for kind, key, param in mutations:
            if kind == _SET:
                pending[key] = param
            elif kind == _CLEAR_RANGE:
                if param == key + b"\0":
                    pending[key] = None
                else:
                    self._flush(connection, pending)
                    connection.execute(_DELETE_RANGE, (key, param))
                    known.clear()
            elif kind == MutationType.SET_VERSIONSTAMPED_KEY:
                final = _stamped(key, version)
                pending[final] = param
                stamped += (final, b"")
            elif kind == MutationType.SET_VERSIONSTAMPED_VALUE:
                pending[key] = _stamped(param, version)
            else:
                if key in pending:
                    value = pending[key]
                elif key in known:
                    value = known[key]
                else:
                    row = connection.execute(GET, (key,)).fetchone()
                    value = None if row is None else row[0]
                pending[key] = known[key] = ATOMICS[kind](value, param)
        self._flush(connection, pending)
        return stamped

    def _flush(self, connection: sqlite3.Connection, pending: dict[bytes, bytes | None]) -> None:
        gone: list[bytes] = []
        kept: list[bytes] = []
        for key, value in pending.items():
            if key in self._known:
                self._known[key] = value
            if value is None:
                gone.append(key)
            else:
                kept += (key, value)
        for at in range(0, len(gone), _ROWS_AT_ONCE):
            keys = gone[at : at + _ROWS_AT_ONCE]
            connection.execute(_DELETE[len(keys)], keys)
        for at in range(0, len(kept), 2 * _ROWS_AT_ONCE):
            parts = kept[at : at + 2 * _ROWS_AT_ONCE]
            connection.execute(_PUT[len(parts) // 2], parts)
        pending.clear()


def _stamped(template: bytes, version: int) -> bytes:
    """Insert the versionstamp at the offset in the template's last four bytes."""
    at = int.from_bytes(template[-4:], "little")
    return template[:at] + version.to_bytes(8, "big") + b"\0\0" + template[at + 10 : -4]
