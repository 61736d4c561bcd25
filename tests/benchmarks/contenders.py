"""The queues that `tests.benchmarks.embedded` compares, in one form.

An item is a number, which is stored as the id in some 90 bytes of JSON.
"""

from __future__ import annotations

import heapq
import json
import os
import sqlite3
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol

import fdbqueue
from fdbqueue import PriorityQueue, Subspace

VALUE = {
    "id": 12345678,
    "to": "ada@example.com",
    "subject": "a hundred bytes of JSON",
    "n": [1, 2, 3],
    "x": "abc",
}
ID: int = VALUE["id"]
LOCK_TIMEOUT = 60  # seconds that a process may wait for SQLite's lock


def value_of(number: int) -> dict[str, Any]:
    return {**VALUE, "id": number}


class Contender(Protocol):
    """A queue on one machine. Each operation is a transaction of its own."""

    def push(self, number: int) -> object: ...
    def pop(self) -> int | None: ...
    def peek(self) -> object: ...


class SharedContender(Contender, Protocol):
    """A queue that several processes open in the same directory."""

    name: ClassVar[str]

    def __init__(self, path: Path, durable: bool) -> None: ...

    def fill(self, numbers: Iterable[int]) -> None:
        """Push many items, as fast as possible."""

    def drain(self) -> list[int]:
        """Remove and return all items."""

    def close(self) -> None: ...


class Library:
    """This library, given the database."""

    name: ClassVar[str] = "fdbqueue"

    def __init__(self, path: Path, durable: bool) -> None:
        durability = "full" if durable else "os"
        self.db: Any = fdbqueue.open(f"embedded:{path}", durability=durability)
        self.queue = PriorityQueue.named(self.db, "q")

    def push(self, number: int) -> object:
        return self.queue.push(self.db, value_of(number), 1)

    def pop(self) -> int | None:
        item = self.queue.pop(self.db)
        return item.value["id"] if item else None

    def peek(self) -> object:
        return self.queue.peek(self.db)

    def fill(self, numbers: Iterable[int]) -> None:
        values = map(value_of, numbers)
        while batch := list(islice(values, 1000)):
            self.queue.push_many(self.db, batch, 1)

    def drain(self) -> list[int]:
        numbers = []
        while items := self.queue.pop_many(self.db, 1000):
            numbers += [item.value["id"] for item in items]
        report = fdbqueue.admin.check(self.db, self.queue)
        if not report.ok:
            raise RuntimeError(str(report))
        return numbers

    def close(self) -> None:
        self.db.close()


class LibraryInTransactions(Library):
    """This library, in transactions that the program runs itself."""

    def __init__(self, path: Path, durable: bool) -> None:
        super().__init__(path, durable)
        queue = self.queue
        own = Subspace(("own",)).pack((os.getpid(),))

        @fdbqueue.transactional
        def push(tr: Any, number: int) -> object:
            return queue.push(tr, value_of(number), 1)

        @fdbqueue.transactional
        def pop(tr: Any) -> int | None:
            item = queue.pop(tr)
            return item.value["id"] if item else None

        @fdbqueue.transactional
        def write(tr: Any) -> None:
            tr[own] = bytes(90)

        @fdbqueue.transactional
        def read_and_write(tr: Any) -> None:
            tr[own] = bytes(tr[own].value or bytes(90))

        self._push, self._pop, self._write, self._read_and_write = push, pop, write, read_and_write

    def push(self, number: int) -> object:
        return self._push(self.db, number)

    def pop(self) -> int | None:
        return self._pop(self.db)

    def write(self) -> object:
        return self._write(self.db)

    def read_and_write(self) -> object:
        return self._read_and_write(self.db)


class BareSqlite:
    """The SQL statements that this library cannot do without, and nothing else.

    A push reads the last item of the priority and two counters, and writes the item and the
    counters in one statement. A pop reads the first item, deletes it and writes the counters.
    """

    name: ClassVar[str] = "bare SQLite"

    _COUNTERS = (b"\x02q\x00\x15\x01\x15\x01", b"\x02q\x00\x15\x02")
    _PREFIX = b"\x02q\x00\x14\x15\x01\x18"
    _SUFFIX = b"\x01................\x00"
    _HEAD, _TAIL = json.dumps(VALUE, separators=(",", ":")).encode().split(b"%d" % ID)

    def __init__(self, path: Path, durable: bool) -> None:
        path.mkdir(exist_ok=True)
        self._connection = sqlite3.connect(
            path / "bare.sqlite", isolation_level=None, timeout=LOCK_TIMEOUT
        )
        self._run = self._connection.execute
        self._run("PRAGMA journal_mode=WAL")
        self._run(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self._run("PRAGMA wal_autocheckpoint=2000")
        self._run(
            "CREATE TABLE IF NOT EXISTS kv (key BLOB PRIMARY KEY, value BLOB NOT NULL) "
            "WITHOUT ROWID"
        )

    def _counters(self, change: int) -> list[bytes]:
        """Return the parameters that write both counters, changed."""
        parameters = []
        for key in self._COUNTERS:
            row = self._run("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
            value = int.from_bytes(row[0], "little") if row else 0
            parameters += [key, (value + change).to_bytes(8, "little")]
        return parameters

    def _items(self, order: str, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first items in an order."""
        return self._run(
            f"SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT ?",
            (self._PREFIX, self._PREFIX + b"\xff", limit),
        ).fetchall()

    def push(self, number: int) -> object:
        self._run("BEGIN IMMEDIATE")
        last = self._items("DESC", 1)
        count = int(last[0][0][len(self._PREFIX) : -len(self._SUFFIX)]) + 1 if last else 0
        item = self._row(count, number)
        self._run("REPLACE INTO kv VALUES (?, ?), (?, ?), (?, ?)", [*item, *self._counters(1)])
        return self._run("COMMIT")

    def _row(self, count: int, number: int) -> tuple[bytes, bytes]:
        """Return the key and the value of an item."""
        key = b"%b%08d%b" % (self._PREFIX, count, self._SUFFIX)
        return key, b"%b%d%b" % (self._HEAD, number, self._TAIL)

    def pop(self) -> int | None:
        self._run("BEGIN IMMEDIATE")
        items = self._items("", 1)
        for key, _ in items:
            self._run("DELETE FROM kv WHERE key = ?", (key,))
            self._run("REPLACE INTO kv VALUES (?, ?), (?, ?)", self._counters(-1))
        self._run("COMMIT")
        return self._number(items[0][1]) if items else None

    def _number(self, value: bytes) -> int:
        """Return the number in the value of an item."""
        return int(value[len(self._HEAD) : -len(self._TAIL)])

    def peek(self) -> object:
        self._run("BEGIN")
        items = self._items("", 1)
        self._run("COMMIT")
        return items

    def fill(self, numbers: Iterable[int]) -> None:
        rows = [self._row(count, number) for count, number in enumerate(numbers)]
        self._run("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO kv VALUES (?, ?)", rows)
        parameters = self._counters(len(rows))
        self._run("REPLACE INTO kv VALUES (?, ?), (?, ?)", parameters)
        self._run("COMMIT")

    def drain(self) -> list[int]:
        items = self._items("", -1)
        self._run("DELETE FROM kv")
        return [self._number(value) for _, value in items]

    def close(self) -> None:
        self._connection.close()


class Huey:
    """huey's SqliteStorage: a priority queue in SQLite."""

    name: ClassVar[str] = "huey"

    def __init__(self, path: Path, durable: bool) -> None:
        path.mkdir(exist_ok=True)
        self._storage = import_module("huey.storage").SqliteStorage(
            filename=str(path / "huey.db"), fsync=durable, timeout=LOCK_TIMEOUT
        )

    def push(self, number: int) -> object:
        return self._storage.enqueue(json.dumps(value_of(number)).encode(), 1)

    def pop(self) -> int | None:
        value = self._storage.dequeue()
        return json.loads(value)["id"] if value else None

    def peek(self) -> object:
        return self._storage.enqueued_items(1)

    def fill(self, numbers: Iterable[int]) -> None:
        statement = "INSERT INTO task (queue, data, priority) VALUES (?, ?, 1)"
        name = self._storage.name
        with self._storage.db(commit=True) as cursor:
            cursor.executemany(
                statement, ((name, json.dumps(value_of(number)).encode()) for number in numbers)
            )

    def drain(self) -> list[int]:
        values = self._storage.enqueued_items()
        self._storage.flush_queue()
        return [json.loads(value)["id"] for value in values]

    def close(self) -> None:
        self._storage.close()


class DiskCache:
    """diskcache's Deque, which has no priorities."""

    name: ClassVar[str] = "diskcache"

    def __init__(self, path: Path, durable: bool) -> None:
        diskcache = import_module("diskcache")
        self._cache = diskcache.Cache(
            str(path),
            timeout=LOCK_TIMEOUT,
            eviction_policy="none",
            sqlite_synchronous=2 if durable else 1,
        )
        self._deque = diskcache.Deque.fromcache(self._cache)

    def push(self, number: int) -> object:
        return self._deque.append(json.dumps(value_of(number)))

    def pop(self) -> int | None:
        try:
            value = self._deque.popleft()
        except IndexError:
            return None
        number: int = json.loads(value)["id"]
        return number

    def peek(self) -> object:
        return json.loads(self._deque.peekleft())

    def fill(self, numbers: Iterable[int]) -> None:
        with self._cache.transact():
            for number in numbers:
                self.push(number)

    def drain(self) -> list[int]:
        with self._cache.transact():
            return list(iter(self.pop, None))

    def close(self) -> None:
        self._cache.close()


class PersistQueue:
    """persist-queue's FIFOSQLiteQueue, which always syncs and serves one process."""

    name: ClassVar[str] = "persist-queue"

    def __init__(self, path: Path) -> None:
        serializer = import_module("persistqueue.serializers.json")
        self._queue = import_module("persistqueue").FIFOSQLiteQueue(
            str(path), multithreading=True, auto_commit=True, serializer=serializer
        )

    def push(self, number: int) -> object:
        return self._queue.put(value_of(number))

    def pop(self) -> int | None:
        number: int = self._queue.get(block=False)["id"]
        return number

    def peek(self) -> object:
        return self._queue.size  # it has no peek


class Heap:
    """The standard library's heap: not durable, and for one process."""

    name: ClassVar[str] = "heapq"

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, bytes]] = []
        self._count = 0

    def push(self, number: int) -> object:
        self._count += 1
        heapq.heappush(self._heap, (1, self._count, json.dumps(value_of(number)).encode()))
        return self._count

    def pop(self) -> int | None:
        number: int = json.loads(heapq.heappop(self._heap)[2])["id"]
        return number

    def peek(self) -> object:
        return json.loads(self._heap[0][2])


def shared_contenders(with_peers: bool) -> list[type[SharedContender]]:
    """Return this library and, if wanted, bare SQLite and the peers that are installed."""
    if not with_peers:
        return [Library]
    peers: dict[str, type[SharedContender]] = {"huey": Huey, "diskcache": DiskCache}
    installed = [peer for module, peer in peers.items() if find_spec(module)]
    return [Library, BareSqlite, *installed]
