"""Peers on SQLite and on Postgres that `tests.benchmarks.tasks` compares with this library."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from tests.benchmarks.redis_peers import REDIS_PEERS, drained
from tests.benchmarks.servers import (
    has_postgres,
    has_redis,
    postgres_address,
    postgres_server,
    redis_server,
)
from tests.benchmarks.task_contender import Contender, handle


@dataclass(frozen=True)
class Huey:
    """huey, on SQLite."""

    path: Path
    poll_interval: float | None = None  # seconds
    concurrencies: tuple[int, ...] = (1, 10)
    storage: ClassVar[str] = "SQLite"

    @property
    def name(self) -> str:
        if self.poll_interval is None:
            return f"huey, {self.storage}"
        return f"huey, {self.storage}, polls every {self.poll_interval * 1e3:.0f} ms"

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
        return drained(huey, concurrency)


@dataclass(frozen=True)
class Ballast:
    """ballast, on SQLite."""

    path: Path
    poll_interval: float | None = None  # seconds
    concurrencies: tuple[int, ...] = (1,)

    @property
    def name(self) -> str:
        if self.poll_interval is None:
            return "ballast"
        return f"ballast, polls every {self.poll_interval * 1e3:.0f} ms"

    @property
    def setting(self) -> str:
        return "SQLite, WAL, synchronous=FULL (its default is NORMAL); done jobs are kept"

    def open(self, durable: bool = True) -> tuple[Any, Any]:
        ballast = import_module("ballast")

        class Durable(ballast.Database):  # type: ignore[name-defined, misc]
            def connect(self) -> Any:
                connection = super().connect()
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
                return connection

        db = Durable(self.path, busy_timeout_ms=60_000)
        ballast.install(db)
        return ballast, db

    def load(self, jobs: int) -> None:
        ballast, db = self.open(durable=False)
        with db.transaction() as connection:
            connection.execute("DELETE FROM ballast_jobs")
            for _ in range(jobs):
                ballast.queue.enqueue(connection, "job", {"pushed": 0})

    def pusher(self) -> Callable[[int], object]:
        ballast, db = self.open()
        connection = db.connect()

        def push(now: int) -> None:
            with db.transaction(connection):
                ballast.queue.enqueue(connection, "job", {"pushed": now})

        return push

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        ballast, db = self.open()
        handlers = {"job": lambda _, payload: handle(payload["pushed"])}
        worker = ballast.JobWorker(db, handlers, poll_seconds=self.poll_interval or 1.0)

        def forever() -> None:
            worker.start()
            threading.Event().wait()

        return worker.drain if drain else forever


_DBOS_JOB = {"queue_name": "jobs", "workflow_name": "job"}


@dataclass(frozen=True)
class Dbos:
    """DBOS, on SQLite."""

    path: Path
    poll_interval: float | None = None  # seconds
    concurrencies: tuple[int, ...] = (1,)

    @property
    def name(self) -> str:
        if self.poll_interval is None:
            return "DBOS"
        return f"DBOS, polls every {self.poll_interval * 1e3:.0f} ms"

    @property
    def setting(self) -> str:
        return "SQLite with its defaults, a queue without limits; workflows are kept"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def client(self) -> Any:
        return import_module("dbos").DBOSClient(system_database_url=self.url)

    def clear(self) -> None:
        """Delete the database, and create it anew if it has to be created."""
        self.path.unlink(missing_ok=True)

    def workflow(self, dbos: Any) -> Callable[[int], object]:
        """Return the function of the workflow."""
        return handle

    def load(self, jobs: int) -> None:
        self.clear()
        self.launch()()
        client = self.client()
        engine = import_module("sqlalchemy").create_engine(self.url)
        with engine.begin() as connection:
            for _ in range(jobs):
                client.enqueue_in_transaction(connection, _DBOS_JOB, 0)
        engine.dispose()

    def pusher(self) -> Callable[[int], object]:
        client = self.client()
        return lambda now: client.enqueue(_DBOS_JOB, now)

    def launch(self) -> Callable[[], object]:
        """Begin to work; return a function that ends it."""
        dbos = import_module("dbos")
        config = {"name": "jobs", "system_database_url": self.url, "application_version": "1"}
        dbos.DBOS(config={**config, "log_level": "ERROR"})
        dbos.DBOS.workflow(name="job")(self.workflow(dbos.DBOS))
        dbos.DBOS.launch()
        polls = {} if self.poll_interval is None else {"polling_interval_sec": self.poll_interval}
        dbos.DBOS.register_queue("jobs", **polls)
        end: Callable[[], object] = dbos.DBOS.destroy
        return end

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        client = self.client()

        def work() -> None:
            end = self.launch()
            while not drain or client.list_queued_workflows(limit=1):
                time.sleep(0.2)
            end()

        return work


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


def peers(stack: ExitStack, report: Callable[[str], object]) -> Iterator[Contender]:
    """Yield the peers that are installed; their servers run until the stack is closed."""

    def directory() -> Path:
        name = tempfile.mkdtemp(prefix="fdbqueue-benchmark-peer-")
        stack.callback(shutil.rmtree, name)
        return Path(name)

    for module, peer, file in (
        ("huey", Huey, "huey.db"),
        ("ballast", Ballast, "ballast.db"),
        ("dbos", Dbos, "dbos.sqlite"),
    ):
        if find_spec(module):
            yield peer(directory() / file)
        else:
            report(f"{module} is skipped: pip install huey ballast-py dbos")
    if has_redis():
        port = stack.enter_context(redis_server(directory()))
        for module, redis_peer in REDIS_PEERS.items():
            if find_spec(module):
                yield redis_peer(port)
            else:
                report(f"{module} is skipped: pip install huey rq dramatiq celery redis")
    else:
        report("peers on Redis are skipped: pip install redis, apt-get install redis-server")
    if find_spec("procrastinate") and has_postgres():
        yield stack.enter_context(procrastinate_peer(directory()))
    else:
        report(
            "procrastinate is skipped: pip install procrastinate 'psycopg[binary]', "
            "apt-get install postgresql"
        )
