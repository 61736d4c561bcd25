"""What `tests.benchmarks.tasks` compares: the workers of this library, and the protocol of all.

Every queue is durable: a push that returned is on disk. None keeps jobs that are done, unless its
setting says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import fdbqueue
from fdbqueue import App, PriorityQueue, Subspace, Transaction
from fdbqueue.errors import QueueNotFound

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


app = App(keep=None)


@app.job(queue="benchmark")
def job(pushed: int) -> None:
    handle(pushed)


@app.job(queue="benchmark")
def job_in_transaction(tr: Transaction, pushed: int) -> None:
    handle(pushed)


@dataclass(frozen=True)
class Jobs:
    """This library's jobs, on either engine."""

    engine: str
    url: str
    in_transaction: bool = False
    keeps_results: bool = False
    concurrencies: tuple[int, ...] = (1, 10)

    @property
    def name(self) -> str:
        kind = "exactly once" if self.in_transaction else "at least once"
        return f"{self.engine}, @app.job, {'results' if self.keeps_results else kind}"

    @property
    def setting(self) -> str:
        parameters = "tr, ..." if self.in_transaction else "..."
        kept = "; done jobs and results are kept" if self.keeps_results else ""
        return f"@app.job() def job({parameters}){kept}"

    def open(self) -> Any:
        """Bind the app to the database; return the job."""
        app.bind(fdbqueue.open(self.url))
        app.queue("benchmark").is_empty(app.db)  # connects to a cluster
        return job_in_transaction if self.in_transaction else job

    def load(self, jobs: int) -> None:
        with suppress(QueueNotFound):
            fdbqueue.admin.drop(fdbqueue.open(self.url), "benchmark")
        each = self.open()
        if self.keeps_results:
            app.queue("benchmark").configure(app.db, keep=1_000_000)
        for begin in range(0, jobs, 1000):
            each.push_many([each.bind(0)] * min(1000, jobs - begin))

    def pusher(self) -> Callable[[int], object]:
        push: Callable[[int], object] = self.open().push
        return push

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        self.open()
        return lambda: app.work(concurrency=concurrency, drain=drain)
