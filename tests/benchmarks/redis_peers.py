"""Peers on Redis that `tests.benchmarks.tasks` compares with this library.

The server writes each change to its disk before it answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tests.benchmarks.task_contender import Contender, handle

_SERVER = "Redis: appendonly yes, appendfsync always"


def connected(port: int) -> Any:
    connection = import_module("redis").Redis("127.0.0.1", port)
    connection.ping()
    return connection


def drained(huey: Any, concurrency: int) -> Callable[[], object]:
    """Return a function that runs huey's threads until no job is left."""
    over = threading.Event()
    make = import_module("huey.consumer").Worker
    worker = make(huey, over, default_delay=0.1, max_delay=0.1, backoff=1)
    worker.sleep = lambda: huey.pending_count() or over.set()  # stop when no job is left

    def work() -> None:
        while not over.is_set():
            worker.loop()

    def run() -> None:
        with ThreadPoolExecutor(concurrency) as threads:
            for each in [threads.submit(work) for _ in range(concurrency)]:
                each.result()

    return run


@dataclass(frozen=True)
class _Peer:
    """A peer that is pushed one job at a time."""

    port: int

    def open(self) -> tuple[Any, Callable[[int], object]]:
        """Return what works on the jobs, and the function that pushes one."""
        raise NotImplementedError

    def load(self, jobs: int) -> None:
        connected(self.port).flushall()
        push = self.pusher()
        for _ in range(jobs):
            push(0)

    def pusher(self) -> Callable[[int], object]:
        _, push = self.open()
        return push


@dataclass(frozen=True)
class Rq:
    """rq, on Redis."""

    port: int
    name: str = "rq"
    setting: str = f"{_SERVER}; SimpleWorker, result_ttl=0"
    concurrencies: tuple[int, ...] = (1,)

    def open(self) -> tuple[Any, Any]:
        connection = connected(self.port)
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
class RedisHuey(_Peer):
    """huey, on Redis."""

    name: str = "huey, Redis"
    setting: str = f"{_SERVER}; RedisHuey, threads; a job is deleted before it is run"
    concurrencies: tuple[int, ...] = (1, 10)

    def open(self, blocking: bool = True) -> tuple[Any, Callable[[int], object]]:
        options = {"host": "127.0.0.1", "port": self.port, "blocking": blocking}
        huey = import_module("huey").RedisHuey(**options)
        return huey, huey.task()(handle)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        huey, _ = self.open(blocking=not drain)
        if drain:
            return drained(huey, concurrency)
        run: Callable[[], object] = import_module("huey.consumer").Consumer(huey, concurrency).run
        return run


@dataclass(frozen=True)
class Dramatiq(_Peer):
    """dramatiq, on Redis."""

    name: str = "dramatiq"
    setting: str = f"{_SERVER}; threads"
    concurrencies: tuple[int, ...] = (1, 10)

    def open(self) -> tuple[Any, Callable[[int], object]]:
        dramatiq = import_module("dramatiq")
        broker = import_module("dramatiq.brokers.redis").RedisBroker(
            host="127.0.0.1", port=self.port
        )
        return broker, dramatiq.actor(handle, broker=broker, actor_name="job").send

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        broker, _ = self.open()
        worker = import_module("dramatiq").Worker(broker, worker_threads=concurrency)

        def work() -> None:
            worker.start()
            if not drain:
                threading.Event().wait()
            broker.join("default")
            worker.join()
            worker.stop()

        return work


@dataclass(frozen=True)
class Celery(_Peer):
    """Celery, on Redis."""

    name: str = "Celery"
    setting: str = f"{_SERVER}; task_acks_late, task_ignore_result; solo pool, or threads"
    concurrencies: tuple[int, ...] = (1, 10)

    def open(self) -> tuple[Any, Callable[[int], object]]:
        app = import_module("celery").Celery("jobs", broker=f"redis://127.0.0.1:{self.port}/0")
        app.conf.update(task_acks_late=True, task_ignore_result=True)
        return app, app.task(name="job")(handle).delay

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        app, _ = self.open()
        connection = connected(self.port)
        worker = app.WorkController(
            pool="solo" if concurrency == 1 else "threads",
            concurrency=concurrency,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )

        def stop_once_all_is_done() -> None:
            while connection.llen("celery") or connection.hlen("unacked"):
                time.sleep(0.2)
            import_module("celery.worker.state").should_stop = 0

        def work() -> None:
            if drain:
                threading.Thread(target=stop_once_all_is_done, daemon=True).start()
            worker.start()

        return work


REDIS_PEERS: dict[str, Callable[[int], Contender]] = {
    "huey": RedisHuey,
    "rq": Rq,
    "dramatiq": Dramatiq,
    "celery": Celery,
}
"""The peers by the modules that they need."""
