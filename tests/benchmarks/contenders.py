"""What the benchmarks compare with this library.

`Storage` is a queue on one machine, whose operations `tests.benchmarks.embedded` measures one by
one. `Peer` is a queue with workers, for `tests.benchmarks.tasks`. Every queue of a
`Peer` is durable: a push that returned is on disk. None keeps jobs that are done, unless its
setting says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol

import fdbqueue
from fdbqueue import PriorityQueue

# Operations on one machine

VALUE: dict[str, Any] = {
    "id": 12345678,
    "to": "ada@example.com",
    "subject": "a hundred bytes of JSON",
    "n": [1, 2, 3],
    "x": "abc",
}
LOCK_TIMEOUT = 60  # seconds that a process may wait for SQLite's lock


def value_of(number: int) -> dict[str, Any]:
    return {**VALUE, "id": number}


class Storage(Protocol):
    """A queue that several processes open in the same directory, with a transaction a call."""

    name: ClassVar[str]

    def __init__(self, path: Path, durable: bool) -> None: ...
    def push(self, number: int) -> object: ...
    def pop(self) -> int | None: ...
    def peek(self) -> object: ...

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


class BareSqlite:
    """The SQL statements that this library cannot do without, and nothing else.

    A push reads the last item of the priority and two counters, and writes the item and the
    counters in one statement. A pop reads the first item, deletes it and writes the counters.
    """

    name: ClassVar[str] = "bare SQLite"

    _COUNTERS = (b"\x02q\x00\x15\x01\x15\x01", b"\x02q\x00\x15\x02")
    _PREFIX = b"\x02q\x00\x14\x15\x01\x18"
    _SUFFIX = b"\x01................\x00"
    _HEAD, _TAIL = json.dumps(VALUE, separators=(",", ":")).encode().split(b"%d" % VALUE["id"])

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


class HueyStorage:
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


def storages() -> list[type[Storage]]:
    """Return this library, bare SQLite, and huey if it is installed."""
    return [Library, BareSqlite, *([HueyStorage] if find_spec("huey") else [])]


# Servers

REDIS = int(os.environ.get("FDBQ_BENCHMARK_REDIS", "0"))
"""The port of a server without data: `redis-server --appendonly yes --appendfsync always`."""
POSTGRES = os.environ.get("FDBQ_BENCHMARK_POSTGRES", "")
"""The connection string of a server without data and with its defaults."""

# Workers

started_jobs: SimpleQueue[tuple[int, int]] = SimpleQueue()
"""For each job that this process started, the times of its push and its start, in nanoseconds."""


def handle(pushed: int) -> None:
    """Handle a job: note that it started, and nothing else."""
    started_jobs.put((pushed, time.monotonic_ns()))


class Peer:
    """A queue with workers. It can be sent to another process, and connects there."""

    name: str
    setting: str
    """The settings of the queue and its workers, for the table."""
    concurrencies: tuple[int, ...] = (1, 10)
    """The numbers of jobs at a time in a worker process that are worth a try."""

    def clear(self) -> None:
        """Empty the queue."""
        raise NotImplementedError

    def pusher(self) -> Callable[[int], object]:
        """Connect; return a function that pushes a job, given the time."""
        raise NotImplementedError

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        """Connect; return a function that does jobs until there are none, or forever."""
        raise NotImplementedError

    def load(self, jobs: int) -> None:
        """Empty the queue and push a number of jobs."""
        self.clear()
        push = self.pusher()
        for _ in range(jobs):
            push(0)


@dataclass(frozen=True)
class Huey(Peer):
    """huey, on SQLite."""

    path: Path
    name: str = "huey, SQLite"
    setting: str = "SqliteHuey(fsync=True), WAL, threads; a job is deleted before it is run"

    def open(self) -> tuple[Any, Any]:
        huey = import_module("huey").SqliteHuey(filename=str(self.path), fsync=True)
        return huey, huey.task()(handle)

    def clear(self) -> None:
        self.open()[0].flush()

    def pusher(self) -> Callable[[int], object]:
        return self.open()[1]  # type: ignore[no-any-return]

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        huey, _ = self.open()
        consumer = import_module("huey.consumer")
        if not drain:
            run: Callable[[], object] = consumer.Consumer(huey, concurrency).run
            return run
        over = threading.Event()
        worker = consumer.Worker(huey, over, default_delay=0.1, max_delay=0.1, backoff=1)
        worker.sleep = lambda: huey.pending_count() or over.set()  # stop when no job is left

        def work() -> None:
            while not over.is_set():
                worker.loop()

        def run_all() -> None:
            with ThreadPoolExecutor(concurrency) as threads:
                for each in [threads.submit(work) for _ in range(concurrency)]:
                    each.result()

        return run_all


@dataclass(frozen=True)
class Procrastinate(Peer):
    """procrastinate, on Postgres."""

    address: str
    name: str = "procrastinate"
    setting: str = "Postgres: synchronous_commit=on; async handler, delete_jobs=always"

    def app(self) -> tuple[Any, Any]:
        procrastinate = import_module("procrastinate")
        connector = procrastinate.PsycopgConnector(conninfo=self.address)
        app = procrastinate.App(connector=connector)

        async def job(pushed: int) -> None:
            handle(pushed)

        return app, app.task(name="job")(job)

    def clear(self) -> None:
        with import_module("psycopg").connect(self.address, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        with self.app()[0].open() as app:
            app.schema_manager.apply_schema()

    def pusher(self) -> Callable[[int], object]:
        app, job = self.app()
        app.open()
        return lambda now: job.defer(pushed=now)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        app, _ = self.app()

        async def work() -> None:
            async with app.open_async():
                await app.run_worker_async(
                    concurrency=concurrency, wait=not drain, delete_jobs="always"
                )

        return lambda: asyncio.run(work())


@dataclass(frozen=True)
class Rq(Peer):
    """rq, on Redis."""

    port: int
    name: str = "rq"
    setting: str = "Redis: appendonly yes, appendfsync always; SimpleWorker, result_ttl=0"
    concurrencies: tuple[int, ...] = (1,)

    def clear(self) -> None:
        self.open().connection.flushall()

    def open(self) -> Any:
        return import_module("rq").Queue(
            connection=import_module("redis").Redis("127.0.0.1", self.port)
        )

    def pusher(self) -> Callable[[int], object]:
        queue = self.open()
        return lambda now: queue.enqueue(handle, now, result_ttl=0)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        queue = self.open()
        worker = import_module("rq").SimpleWorker([queue], connection=queue.connection)
        return lambda: worker.work(burst=drain, logging_level=logging.WARNING)


# Which peers there are


def task_peers(directory: Path) -> Iterator[Peer]:
    """Yield the peers of workers that are installed, and whose servers run."""
    if find_spec("huey"):
        yield Huey(directory / "huey.db")
    if REDIS and find_spec("rq"):
        yield Rq(REDIS)
    if POSTGRES and find_spec("procrastinate"):
        yield Procrastinate(POSTGRES)
