"""The workers that `tests.benchmarks.tasks` compares, and the servers that they need.

Every queue is durable: a push that returned is on disk. None keeps jobs that are done.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import fdbqueue
from fdbqueue import PriorityQueue, Subspace
from tests.benchmarks.servers import (
    has_postgres,
    has_redis,
    postgres_address,
    postgres_server,
    redis_server,
)

SPACE = Subspace(("benchmark", "tasks"))

started_jobs: SimpleQueue[tuple[int, int]] = SimpleQueue()
"""For each job that this process started, the times of its push and its start, in nanoseconds."""


def handle(pushed: int) -> None:
    """Handle a job: note that it started, and nothing else."""
    started_jobs.put((pushed, time.monotonic_ns()))


class Contender(Protocol):
    """A queue with workers. It can be sent to another process, and connects there."""

    @property
    def name(self) -> str: ...

    @property
    def setting(self) -> str:
        """The settings of the queue and its workers, for the table."""

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """The numbers of jobs at a time in a worker process that are worth a try."""

    def load(self, jobs: int) -> None:
        """Empty the queue and push a number of jobs."""

    def pusher(self) -> Callable[[int], object]:
        """Connect; return a function that pushes a job, given the time."""

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        """Connect; return a function that does jobs until there are none, or forever."""


@dataclass(frozen=True)
class Library:
    """This library's worker, on either engine."""

    engine: str
    url: str
    in_transaction: bool
    concurrencies: tuple[int, ...] = (1, 10)

    @property
    def name(self) -> str:
        return f"{self.engine}, {'exactly' if self.in_transaction else 'at least'} once"

    @property
    def setting(self) -> str:
        return "handler(tr, item)" if self.in_transaction else "handler(item)"

    def open(self) -> tuple[Any, PriorityQueue]:
        db = fdbqueue.open(self.url)
        queue = PriorityQueue(SPACE)
        queue.is_empty(db)  # connects to a cluster
        return db, queue

    def load(self, jobs: int) -> None:
        db, queue = self.open()
        db.clear_range_startswith(SPACE.key())
        for begin in range(0, jobs, 1000):
            queue.push_many(db, [0] * min(1000, jobs - begin))

    def pusher(self) -> Callable[[int], object]:
        db, queue = self.open()
        return lambda now: queue.push(db, now)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        db, queue = self.open()

        def in_transaction(tr: Any, item: Any) -> None:
            handle(item.value)

        def plain(item: Any) -> None:
            handle(item.value)

        handler = in_transaction if self.in_transaction else plain
        worker = fdbqueue.Worker(db, queue, handler, concurrency=concurrency)
        return lambda: worker.run(drain=drain)


@dataclass(frozen=True)
class Huey:
    """huey, on SQLite."""

    path: Path
    poll_interval: float | None = None  # seconds
    concurrencies: tuple[int, ...] = (1, 10)

    @property
    def name(self) -> str:
        if self.poll_interval is None:
            return "huey"
        return f"huey, polls every {self.poll_interval * 1e3:.0f} ms"

    @property
    def setting(self) -> str:
        setting = "SqliteHuey(fsync=True), WAL, threads; a job is deleted before it is run"
        return setting if self.poll_interval else f"{setting}; polls after 100 ms or more"

    def open(self, durable: bool = True) -> tuple[Any, Any]:
        huey = import_module("huey").SqliteHuey(filename=str(self.path), fsync=durable)
        return huey, huey.task()(handle)

    def load(self, jobs: int) -> None:
        huey, task = self.open(durable=False)
        huey.flush()
        for _ in range(jobs):
            task(0)

    def pusher(self) -> Callable[[int], object]:
        _, task = self.open()
        return lambda now: task(now)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        huey, _ = self.open()
        consumer = import_module("huey.consumer")
        if not drain:
            interval = self.poll_interval
            delays = {"initial_delay": interval, "max_delay": interval} if interval else {}
            run: Callable[[], object] = consumer.Consumer(huey, concurrency, **delays).run
            return run
        over = threading.Event()
        worker = consumer.Worker(huey, over, default_delay=0.1, max_delay=0.1, backoff=1)
        worker.sleep = lambda: huey.pending_count() or over.set()  # stop when no job is left

        def work() -> None:
            while not over.is_set():
                worker.loop()

        def drained() -> None:
            with ThreadPoolExecutor(concurrency) as threads:
                for each in [threads.submit(work) for _ in range(concurrency)]:
                    each.result()

        return drained


@dataclass(frozen=True)
class Rq:
    """rq, on Redis."""

    port: int
    name: str = "rq"
    setting: str = "Redis: appendonly yes, appendfsync always; SimpleWorker, result_ttl=0"
    concurrencies: tuple[int, ...] = (1,)

    def open(self) -> tuple[Any, Any]:
        connection = import_module("redis").Redis("127.0.0.1", self.port)
        connection.ping()
        return connection, import_module("rq").Queue(connection=connection)

    def load(self, jobs: int) -> None:
        connection, queue = self.open()
        connection.flushall()
        job = queue.prepare_data(handle, args=[0], result_ttl=0)
        for begin in range(0, jobs, 500):
            queue.enqueue_many([job] * min(500, jobs - begin))

    def pusher(self) -> Callable[[int], object]:
        _, queue = self.open()
        return lambda now: queue.enqueue(handle, now, result_ttl=0)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        connection, queue = self.open()
        worker = import_module("rq").SimpleWorker([queue], connection=connection)
        return lambda: worker.work(burst=drain, logging_level=logging.WARNING)


@dataclass(frozen=True)
class Procrastinate:
    """procrastinate, on Postgres."""

    port: int
    name: str = "procrastinate"
    setting: str = "Postgres: synchronous_commit=on; async handler, delete_jobs=always"
    concurrencies: tuple[int, ...] = (1, 10)

    def app(self) -> tuple[Any, Any]:
        procrastinate = import_module("procrastinate")
        connector = procrastinate.PsycopgConnector(conninfo=postgres_address(self.port))
        app = procrastinate.App(connector=connector)

        async def job(pushed: int) -> None:
            handle(pushed)

        return app, app.task(name="job")(job)

    def make_tables(self) -> None:
        app, _ = self.app()
        with app.open():
            app.schema_manager.apply_schema()

    def load(self, jobs: int) -> None:
        with import_module("psycopg").connect(
            postgres_address(self.port), autocommit=True
        ) as connection:
            connection.execute("TRUNCATE procrastinate_jobs CASCADE")
        app, job = self.app()
        with app.open():
            for begin in range(0, jobs, 500):
                job.batch_defer(*[{"pushed": 0}] * min(500, jobs - begin))

    def pusher(self) -> Callable[[int], object]:
        app, job = self.app()
        app.open()
        return lambda now: job.defer(pushed=now)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        app, _ = self.app()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(app.open_async())
        loop.run_until_complete(app.check_connection_async())

        async def work() -> None:
            await app.run_worker_async(
                concurrency=concurrency, wait=not drain, delete_jobs="always"
            )
            await app.close_async()
            for left in asyncio.all_tasks() - {asyncio.current_task()}:
                left.cancel()

        return lambda: loop.run_until_complete(work())


@contextmanager
def procrastinate_peer(directory: Path) -> Iterator[Procrastinate]:
    """Run a Postgres server for procrastinate."""
    with postgres_server(directory) as port:
        peer = Procrastinate(port)
        peer.make_tables()
        yield peer


@contextmanager
def rq_peer(directory: Path) -> Iterator[Rq]:
    """Run a Redis server for rq."""
    with redis_server(directory) as port:
        yield Rq(port)


def peers(stack: ExitStack, report: Callable[[str], object]) -> Iterator[Contender]:
    """Yield the peers that are installed; their servers run until the stack is closed."""

    def directory() -> Path:
        name = tempfile.mkdtemp(prefix="fdbqueue-benchmark-peer-")
        stack.callback(shutil.rmtree, name)
        return Path(name)

    if find_spec("huey"):
        yield Huey(directory() / "huey.db")
    else:
        report("huey is skipped: pip install huey")
    if find_spec("rq") and has_redis():
        yield stack.enter_context(rq_peer(directory()))
    else:
        report("rq is skipped: pip install rq, apt-get install redis-server")
    if find_spec("procrastinate") and has_postgres():
        yield stack.enter_context(procrastinate_peer(directory()))
    else:
        report(
            "procrastinate is skipped: pip install procrastinate 'psycopg[binary]', "
            "apt-get install postgresql"
        )
