"""A process that commits, closes and opens when it is told to, and marks what it knows.

It reads commands from its standard input and answers each with a line:

- `open PAGES`: open the database; SQLite makes a checkpoint after that many pages
- `push N`: each of two threads makes N commits, unless a sync fails
- `read`: read everything in one transaction
- `hold`: begin to read, which keeps SQLite from restarting its log
- `release`: end that
- `close`

Each thread is a client. Its commit number n sets a few keys to values that follow from n, adds an
item and removes an old one, and adds one to the sum of the commits of all clients. So the rows of a
database tell the number of each client, and whether all of its last commit is there.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fdbqueue.embedded import Database
from fdbqueue.embedded.directory import LOCK_FILE
from fdbqueue.embedded.storage import connection
from fdbqueue.embedded.transaction.transaction import Transaction
from fdbqueue.errors import CommitUnknownResult, StorageError, SyncFailed
from tests.long.hostile.disk.shim import mark

CLIENTS = 2
"""The number of clients of a process."""

_SLOTS = 4  # values that each commit of a client overwrites
_ITEMS = 3  # items of a client: each commit pushes one and removes the oldest
_SUM = b"sum"
_PAUSE = 0.01  # seconds between two attempts while the disk fails


class Torn(Exception):
    """The rows are not those after a whole number of commits."""


def _value(number: int, slot: int) -> bytes:
    """Return a value: short, of many pages, or something between."""
    size = 9_000 if (number + slot) % 16 == 0 else (number * 37 + slot) % 400
    return number.to_bytes(8, "big") + bytes([number % 251]) * size


def _rows(client: int, number: int) -> dict[bytes, bytes]:
    """Return the rows of a client after so many commits."""
    rows = {b"slot/%d/%d" % (client, slot): _value(number, slot) for slot in range(_SLOTS)}
    items = range(max(1, number - _ITEMS + 1), number + 1)
    rows |= {b"item/%d/%08d" % (client, item): b"%d" % item for item in items}
    return rows


def _write(tr: Transaction, client: int, number: int) -> None:
    for key, value in _rows(client, number).items():
        tr[key] = value
    del tr[b"item/%d/%08d" % (client, number - _ITEMS)]
    tr.add(_SUM, (1).to_bytes(8, "little"))


def numbers_of(rows: Iterable[tuple[bytes, bytes]]) -> dict[int, int]:
    """Return the number of the last commit of each client.

    Raises:
        Torn: A commit is there in part.
    """
    found = dict(rows)
    total = int.from_bytes(found.pop(_SUM, b""), "little")
    clients = {int(key.split(b"/")[1]) for key in found}
    numbers: dict[int, int] = {}
    expected: dict[bytes, bytes] = {}
    for client in clients:
        first = found.get(b"slot/%d/0" % client, b"")
        numbers[client] = int.from_bytes(first[:8], "big")
        expected |= _rows(client, numbers[client])
    if found != expected:
        wrong = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
        raise Torn(f"{numbers}: {len(wrong)} rows are wrong, {wrong[:4]}")
    if total != sum(numbers.values()):
        raise Torn(f"{numbers}, but the sum is {total}")
    return numbers


def _replace(module: Any, name: str, value: object) -> None:
    """Replace a constant of a module, which must have it."""
    getattr(module, name)
    setattr(module, name, value)


def _say(**knowledge: object) -> None:
    mark(json.dumps(knowledge).encode())


class _Process:
    def __init__(self, path: Path, first_client: int) -> None:
        self._path = path
        self._clients = range(first_client, first_client + CLIENTS)

    def open(self, pages: str) -> None:
        _replace(connection, "CHECKPOINT", int(pages))
        _say(moment="open" if (self._path / LOCK_FILE).exists() else "create")
        self._db = Database(self._path)
        numbers = self._read()
        self._numbers = {client: numbers.get(client, 0) for client in self._clients}

    def _read(self) -> dict[int, int]:
        tr = self._db.create_transaction()
        numbers = numbers_of(tr.get_range(b"", b"\xff"))
        tr.commit().wait()
        _say(seen=numbers)
        return numbers

    def read(self) -> None:
        with suppress(SyncFailed):
            self._read()

    def push(self, count: str) -> None:
        _say(moment="push")
        threads = [
            threading.Thread(target=self._push, args=(client, int(count)))
            for client in self._clients
        ]
        self._failure: Exception | None = None
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _push(self, client: int, count: int) -> None:
        try:
            with suppress(SyncFailed):  # from then on, the process refuses everything
                for _ in range(count):
                    number = self._numbers[client] + 1
                    while not self._commits(client, number):
                        threading.Event().wait(_PAUSE)
                    _say(acknowledged=[client, number])
                    self._numbers[client] = number
        except Exception as error:
            self._failure = error

    def _commits(self, client: int, number: int) -> bool:
        """Return whether a commit has taken effect; if the disk fails, look whether it has."""
        tr = self._db.create_transaction()
        _write(tr, client, number)
        _say(tried=[client, number])
        try:
            tr.commit().wait()
        except SyncFailed:
            raise
        except (StorageError, CommitUnknownResult):
            return self._read().get(client, 0) >= number
        return True

    def hold(self) -> None:
        self._held = self._db.create_transaction()
        self._held.get(_SUM).wait()

    def release(self) -> None:
        self._held.reset()

    def close(self) -> None:
        _say(moment="close")
        self._db.close()
        _say(closed=True)


def main() -> None:
    process = _Process(Path(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        command, *arguments = line.split()
        getattr(process, command)(*arguments)
        print("done", flush=True)


if __name__ == "__main__":
    main()
