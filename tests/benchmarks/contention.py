"""Measure many clients on one queue: pops a second and commits.

    python -m tests.benchmarks.contention                   the embedded engine
    python -m tests.benchmarks.contention fdb.cluster       a cluster, or what else `open` takes

Clients are threads of several processes: `64/4` means 64 threads in 4 processes. In each round
every contender, in random order, runs for the same time on a queue that is long enough. Figures are
medians of the rounds, and ratios are computed within a round. Compare ratios only: `raw` is the
rate of the engine without conflicts.

If `contenders.py` is told their servers, Postgres and Redis run beside it, with each pop on disk
before it returns: `FOR UPDATE SKIP LOCKED`, which is not strict, and `ZPOPMIN`. Run them against a
cluster, whose pops are on disk, too. Their commits are not counted.

Use a fresh server. Each pop of the plain recipe leaves a cleared key before the head of the queue,
which slows down later runs for a while.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from fdb.subspace_impl import Subspace
from rich.progress import Progress
from rich.table import Table

import fdbqueue
from fdbqueue.testing import FaultyDatabase, FaultyTransaction
from recipes.priority_queue import PriorityQueue as Recipe
from tests.benchmarks import contenders
from tests.benchmarks.report import console, new_table, print_machine, processes, received

SPACE = Subspace(("benchmark", "contention"))
VALUE = b"x" * 100
ROUNDS = 3
SECONDS = 2
_MOST = 25_000  # calls a second, which no contender makes
QUEUE_LENGTH = _MOST * SECONDS


class Postgres(threading.local):
    """A table, its jobs popped in the way that Postgres' documentation recommends."""

    commits = 0

    def __init__(self, address: str) -> None:
        self.connection = import_module("psycopg").connect(address, autocommit=True)

    def fill(self, length: int) -> None:
        self.connection.execute("DROP TABLE IF EXISTS jobs")
        self.connection.execute(
            "CREATE TABLE jobs (id bigserial, priority int, value bytea,"
            " PRIMARY KEY (priority, id))"
        )
        self.connection.execute(
            "INSERT INTO jobs (priority, value)"
            " SELECT 0, %s || convert_to(n::text, 'UTF8') FROM generate_series(1, %s) AS n",
            (VALUE, length),
        )
        self.connection.execute("VACUUM ANALYZE jobs")

    def pop(self) -> bytes | None:
        row = self.connection.execute(
            "DELETE FROM jobs WHERE (priority, id) = (SELECT priority, id FROM jobs"
            " ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING value"
        ).fetchone()
        return row and bytes(row[0])


class Redis(threading.local):
    """A sorted set."""

    commits = 0

    def __init__(self, port: str) -> None:
        self.connection = import_module("redis").Redis("127.0.0.1", int(port))

    def fill(self, length: int) -> None:
        self.connection.flushall()
        for begin in range(0, length, 1000):
            members = {VALUE + b"%d" % number: 0 for number in range(begin, begin + 1000)}
            self.connection.zadd("jobs", members)

    def pop(self) -> bytes | None:
        popped = self.connection.zpopmin("jobs")
        return popped[0][0] if popped else None


class Counting(FaultyDatabase):
    """Count the attempted commits of a database."""

    commits = 0

    def commit(self, transaction: FaultyTransaction) -> None:
        self.commits += 1
        transaction.wrapped.commit().wait()


Operation = Callable[[Any, bytes], Any]
"""What a client repeats, given a database and a key that no other client uses."""


def read_modify_write() -> Operation:
    @fdbqueue.transactional
    def operation(tr: Any, own: bytes) -> bytes:
        tr[own] = bytes([(tr[own].value or b"\x00")[0] ^ 1])
        return own

    return cast(Operation, operation)


def plain_recipe() -> Operation:
    queue = Recipe(SPACE["recipe"])
    return lambda db, _: queue.pop_min(db)


def library() -> fdbqueue.PriorityQueue:
    return fdbqueue.PriorityQueue(SPACE["library"], codec="bytes")


def pop() -> Operation:
    queue = library()
    return lambda db, _: (item := queue.pop_min(db)) and item.value


def claim() -> Operation:
    queue = library()
    return lambda db, _: (claim := queue.claim(db)) and claim.item.value


def peer_pop() -> Operation:
    return lambda peer, _: peer.pop()


READ_MODIFY_WRITE = "raw: read, modify, write"
PLAIN = "plain recipe"
POP = "this library: pop"
CLAIM = "this library: claim"
POSTGRES = "Postgres: SKIP LOCKED"
REDIS = "Redis: ZPOPMIN"

OPERATIONS: dict[str, Callable[[], Operation]] = {
    READ_MODIFY_WRITE: read_modify_write,
    PLAIN: plain_recipe,
    POP: pop,
    CLAIM: claim,
    POSTGRES: peer_pop,
    REDIS: peer_pop,
}
PEERS: dict[str, Callable[[str], Any]] = {POSTGRES: Postgres, REDIS: Redis}
CONTENDERS = [name for name in OPERATIONS if name not in PEERS]


def fill(db: Any, name: str) -> None:
    """Fill the queue of a contender, if it has one."""
    if name.startswith("raw"):
        return
    if name.startswith("this library"):
        for _ in range(0, QUEUE_LENGTH, 1000):
            library().push_many(db, [VALUE] * 1000)
        return
    items = SPACE["recipe"]

    @fdbqueue.transactional
    def put(tr: Any, begin: int) -> None:
        for number in range(begin, begin + 1000):
            tr[items.pack((0, number, number.to_bytes(20, "big")))] = VALUE

    for begin in range(0, QUEUE_LENGTH, 1000):
        put(db, begin)


@dataclass(frozen=True)
class Measured:
    """The measurements of one contender in one run.

    Attributes:
        rate: The calls a second of all processes.
        commits: Attempted commits per call.
    """

    rate: float
    commits: float


def process(url: str, name: str, threads: int, pipe: Any) -> None:
    """Run one process with a number of threads."""
    open_peer = PEERS.get(name)
    db: Any = open_peer(url) if open_peer else Counting(fdbqueue.open(url))
    calls = list[int]()
    operation = OPERATIONS[name]()
    end = 0.0

    def work(own: bytes) -> None:
        n = 0
        while time.perf_counter() < end:
            if operation(db, own) is None:
                raise RuntimeError("the queue ran empty")
            n += 1
        calls.append(n)

    name = multiprocessing.current_process().name
    keys = [SPACE.pack(("own", name, number)) for number in range(threads)]
    workers = [threading.Thread(target=work, args=[own]) for own in keys]
    if not open_peer:
        transaction = db.create_transaction()
        transaction.get_read_version().wait()  # connects to a cluster
    pipe.send("ready")
    pipe.recv()
    db.commits, end = 0, time.perf_counter() + SECONDS
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    pipe.send((sum(calls), db.commits))


def measure(url: str, name: str, clients: int, count: int) -> Measured:
    """Run a number of clients in a number of processes, all at the same time."""
    with processes(process, [(url, name, clients // count)] * count) as pipes:
        calls, commits = map(sum, zip(*map(received, pipes)))
    return Measured(calls / SECONDS, commits / calls)


class Setting:
    """The measurements with a number of clients in a number of processes."""

    def __init__(self, clients: int, processes: int) -> None:
        self.clients = clients
        self.processes = processes
        self.measured: dict[str, list[Measured]] = {}

    def __str__(self) -> str:
        return f"{self.clients}/{self.processes}"

    def round(self, db: Any, urls: dict[str, str], advance: Callable[[], None]) -> None:
        """Measure each contender once, given its URL or address."""
        for name in random.sample([*urls], len(urls)):
            db.clear_range_startswith(SPACE.key())
            if name in PEERS:
                PEERS[name](urls[name]).fill(QUEUE_LENGTH)
            else:
                fill(db, name)
            done = measure(urls[name], name, self.clients, self.processes)
            self.measured.setdefault(name, []).append(done)
            advance()
        db.clear_range_startswith(SPACE.key())

    def rate(self, name: str) -> float:
        return statistics.median(each.rate for each in self.measured[name])

    def ratio(self, name: str, other: str) -> float:
        pairs = zip(self.measured[name], self.measured[other])
        return statistics.median(one.rate / two.rate for one, two in pairs)

    def commits(self, name: str) -> float:
        """Return the attempted commits per item."""
        return statistics.median(each.commits for each in self.measured[name])

    def table(self) -> Table:
        table = new_table(
            f"{self.clients} clients in {self.processes} processes",
            "a second",
            "/ raw",
            "/ recipe",
            "commits per item",
        )
        for name in filter(self.measured.__contains__, OPERATIONS):
            table.add_row(
                name,
                f"{self.rate(name):,.0f}",
                f"{self.ratio(name, READ_MODIFY_WRITE):.2f}",
                f"{self.ratio(name, PLAIN):.2f}",
                f"{self.commits(name):.3f}",
            )
        return table


def setting(text: str) -> Setting:
    clients, processes = map(int, text.split("/"))
    if clients % processes:
        raise ValueError
    return Setting(clients, processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", nargs="?", help="database; default: a new embedded one")
    default = ["1/1", "4/4", "16/4", "16/16", "64/1", "64/2", "64/4", "64/8", "256/8"]
    parser.add_argument(
        "--settings",
        type=setting,
        nargs="*",
        default=[*map(setting, default)],
        help=f"numbers of clients and processes; default: {' '.join(default)}",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-contention-") as directory:
        print_machine(Path(directory))
        url = given.url or directory
        db = fdbqueue.open(url)
        urls = dict.fromkeys(CONTENDERS, url)
        if contenders.POSTGRES:
            urls[POSTGRES] = contenders.POSTGRES
        if contenders.REDIS:
            urls[REDIS] = str(contenders.REDIS)
        with Progress(console=console, transient=True) as progress:
            for each in given.settings:
                task = progress.add_task(str(each), total=ROUNDS * len(urls))
                for _ in range(ROUNDS):
                    each.round(db, urls, partial(progress.advance, task))
                progress.remove_task(task)
                console.print(each.table())


if __name__ == "__main__":
    main()
