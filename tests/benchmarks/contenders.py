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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
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


class Storage(Protocol):
    """A queue that several processes open in the same directory, with a transaction a call."""

    name: ClassVar[str]

    def __init__(self, path: Path, durable: bool) -> None: ...
    def push(self) -> object: ...
    def pop(self) -> object: ...
    def peek(self) -> object: ...

    def fill(self, n: int) -> None:
        """Push many items, as fast as possible."""

    def close(self) -> None: ...


class Library:
    """This library, given the database."""

    name: ClassVar[str] = "fdbqueue"

    def __init__(self, path: Path, durable: bool) -> None:
        durability = "full" if durable else "os"
        self.db: Any = fdbqueue.open(f"embedded:{path}", durability=durability)
        self.queue = PriorityQueue.named(self.db, "q")

    def push(self) -> object:
        return self.queue.push(self.db, VALUE, 1)

    def pop(self) -> object:
        return self.queue.pop(self.db)

    def peek(self) -> object:
        return self.queue.peek(self.db)

    def fill(self, n: int) -> None:
        self.queue.push_many(self.db, [VALUE] * n, 1)

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

    def _items(self, order: str) -> list[tuple[bytes, bytes]]:
        """Return the first item in an order."""
        return self._run(
            f"SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT 1",
            (self._PREFIX, self._PREFIX + b"\xff"),
        ).fetchall()

    def push(self) -> object:
        self._run("BEGIN IMMEDIATE")
        last = self._items("DESC")
        count = int(last[0][0][len(self._PREFIX) : -len(self._SUFFIX)]) + 1 if last else 0
        key = b"%b%08d%b" % (self._PREFIX, count, self._SUFFIX)
        item = [key, json.dumps(VALUE, separators=(",", ":")).encode()]
        self._run("REPLACE INTO kv VALUES (?, ?), (?, ?), (?, ?)", [*item, *self._counters(1)])
        return self._run("COMMIT")

    def pop(self) -> object:
        self._run("BEGIN IMMEDIATE")
        items = self._items("")
        for key, _ in items:
            self._run("DELETE FROM kv WHERE key = ?", (key,))
            self._run("REPLACE INTO kv VALUES (?, ?), (?, ?)", self._counters(-1))
        self._run("COMMIT")
        return [json.loads(value) for _, value in items]

    def peek(self) -> object:
        self._run("BEGIN")
        items = self._items("")
        self._run("COMMIT")
        return items

    def fill(self, n: int) -> None:
        for _ in range(n):
            self.push()

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

    def push(self) -> object:
        return self._storage.enqueue(json.dumps(VALUE).encode(), 1)

    def pop(self) -> object:
        value = self._storage.dequeue()
        return json.loads(value) if value else None

    def peek(self) -> object:
        return self._storage.enqueued_items(1)

    def fill(self, n: int) -> None:
        for _ in range(n):
            self.push()

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
