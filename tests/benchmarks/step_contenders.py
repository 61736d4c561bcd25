"""What `tests.benchmarks.steps` compares: jobs of ten steps, in this library and in others.

The function of each step is `handle`, so `Contender` counts steps. The result of each step is on
disk before the next one begins. Done jobs and their steps are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import App, Transaction
from fdbqueue.errors import QueueNotFound
from fdbqueue.jobs import Context
from tests.benchmarks.servers import has_postgres, postgres_address, postgres_server
from tests.benchmarks.task_contender import Contender, handle
from tests.benchmarks.task_peers import Dbos

STEPS = 10  # of each job
QUEUE = "benchmark-steps"

app = App(keep=1_000_000)


@app.job(name="steps", queue=QUEUE)
def steps(context: Context) -> None:
    for number in range(STEPS):
        context.step(f"step {number}", handle, 0)


def handle_in(tr: Transaction) -> None:
    handle(0)


@app.job(name="commits", queue=QUEUE)
def commits(context: Context) -> None:
    for number in range(STEPS):
        context.commit(f"step {number}", handle_in)


def jobs_of(steps: int) -> int:
    """Return how many jobs have so many steps."""
    return -(-steps // STEPS)


@dataclass(frozen=True)
class Steps:
    """This library, on either engine."""

    engine: str
    url: str
    commits: bool = False
    concurrencies: tuple[int, ...] = (1, 10)

    @property
    def name(self) -> str:
        return f"{self.engine}, {'commit' if self.commits else 'step'}"

    @property
    def setting(self) -> str:
        return f"context.{'commit' if self.commits else 'step'}"

    def open(self) -> Any:
        """Bind the app to the database; return the job."""
        app.bind(fdbqueue.open(self.url))
        app.queue(QUEUE).is_empty(app.db)  # connects to a cluster
        return commits if self.commits else steps

    def load(self, jobs: int) -> None:
        with suppress(QueueNotFound):
            fdbqueue.admin.drop(fdbqueue.open(self.url), QUEUE)
        job = self.open()
        job.push_many([job.bind()] * jobs_of(jobs))

    def pusher(self) -> Callable[[int], object]:
        job = self.open()
        return lambda _: job.push()

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        self.open()
        return lambda: app.work(QUEUE, concurrency=concurrency, drain=drain)


@dataclass(frozen=True)
class DbosSteps(Dbos):
    """DBOS, on SQLite, or on Postgres if the address of a server is given."""

    port: int = 0

    @property
    def name(self) -> str:
        return f"DBOS, {'Postgres' if self.port else 'SQLite'}"

    @property
    def setting(self) -> str:
        return "@DBOS.step in @DBOS.workflow, a queue without limits"

    @property
    def url(self) -> str:
        if not self.port:
            return super().url
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/dbos"

    def clear(self) -> None:
        if not self.port:
            super().clear()
            return
        address = postgres_address(self.port)
        with import_module("psycopg").connect(address, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS dbos WITH (FORCE)")
            connection.execute("CREATE DATABASE dbos")

    def workflow(self, dbos: Any) -> Callable[[int], object]:
        step = dbos.step(name="step")(handle)

        def steps(pushed: int) -> None:
            for _ in range(STEPS):
                step(pushed)

        return steps

    def load(self, jobs: int) -> None:
        super().load(jobs_of(jobs))


@dataclass(frozen=True)
class AbsurdSteps:
    """Absurd, on Postgres."""

    port: int
    name: str = "Absurd, Postgres"
    setting: str = "ctx.step, one connection of a process"
    concurrencies: tuple[int, ...] = (1, 10)

    def connect(self, **options: Any) -> Any:
        return import_module("psycopg").connect(postgres_address(self.port), **options)

    def make_schema(self) -> None:
        with self.connect() as connection:
            connection.execute(import_module("absurdctl").BUNDLED_SCHEMA_SQL)

    def load(self, jobs: int) -> None:
        with self.connect() as connection:
            absurd = import_module("absurd_sdk").Absurd(connection, queue_name="jobs")
            absurd.drop_queue()
            absurd.create_queue()
            for _ in range(jobs_of(jobs)):
                absurd.spawn("job", 0, queue="jobs")

    def pusher(self) -> Callable[[int], object]:
        absurd = import_module("absurd_sdk").Absurd(postgres_address(self.port), "jobs")
        return lambda now: absurd.spawn("job", now, queue="jobs")

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        absurd = import_module("absurd_sdk").Absurd(postgres_address(self.port), "jobs")

        @absurd.register_task(name="job")
        def job(pushed: int, context: Any) -> None:
            for number in range(STEPS):
                context.step(f"step {number}", lambda: handle(pushed))

        def stop_at_the_end() -> None:
            unfinished = "SELECT 1 FROM absurd.t_jobs WHERE state <> 'completed' LIMIT 1"
            with self.connect(autocommit=True) as connection:
                while connection.execute(unfinished).fetchone():
                    time.sleep(0.2)
            absurd.stop_worker()

        def work() -> None:
            if drain:
                threading.Thread(target=stop_at_the_end, daemon=True).start()
            absurd.start_worker(concurrency=concurrency)

        return work


def peers(
    stack: ExitStack, directory: Path, report: Callable[[str], object]
) -> Iterator[Contender]:
    """Yield the peers that are installed; their server runs until the stack is closed."""
    if not find_spec("dbos"):
        report("DBOS is skipped: pip install dbos")
    else:
        yield DbosSteps(directory / "dbos.sqlite")
    if not has_postgres():
        report("Postgres is skipped: pip install 'psycopg[binary]', apt-get install postgresql")
        return
    data = directory / "postgres"
    data.mkdir()
    directory.chmod(0o755)
    port = stack.enter_context(postgres_server(data))
    if find_spec("dbos"):
        yield DbosSteps(directory, port=port)
    if find_spec("absurd_sdk") and find_spec("absurdctl"):
        absurd = AbsurdSteps(port)
        absurd.make_schema()
        yield absurd
    else:
        report("Absurd is skipped: pip install absurd-sdk absurdctl")
