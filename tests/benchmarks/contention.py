"""Many clients on one queue: how many pops a second, how long each takes, how fair it is.

    python -m tests.benchmarks.contention                   the embedded engine
    python -m tests.benchmarks.contention fdb.cluster       a cluster; or whatever `open` takes

Clients are threads of several processes. Each contender gets a queue that is long enough and the
same seconds, one after the other, in every round; the figures are medians of the rounds. Only the
ratios within one run mean anything: `raw` is what the engine does when nobody meets anybody.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from fdb.subspace_impl import Subspace
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fdbqueue
from fdbqueue.testing import FaultyDatabase, FaultyTransaction
from recipes.high_contention_queue import HighContentionQueue
from recipes.priority_queue import PriorityQueue as Recipe

SPACE = Subspace(("benchmark", "contention"))
VALUE = b"x" * 100

console = Console(width=110)


class Counting(FaultyDatabase):
    """Counts the commits that were attempted."""

    commits = 0

    def commit(self, transaction: FaultyTransaction) -> None:
        self.commits += 1
        transaction.wrapped.commit().wait()


Operation = Callable[[Any, bytes], object]


def read_modify_write() -> Operation:
    @fdbqueue.transactional
    def operation(tr: Any, own: bytes) -> bool:
        tr[own] = bytes([(tr[own].value or b"\x00")[0] ^ 1])
        return True

    return cast(Operation, operation)


def blind_write() -> Operation:
    @fdbqueue.transactional
    def operation(tr: Any, own: bytes) -> bool:
        tr[own] = VALUE
        return True

    return cast(Operation, operation)


def plain_recipe() -> Operation:
    queue = Recipe(SPACE["recipe"])
    return lambda db, _: queue.pop_min(db)


def staging_recipe() -> Operation:
    queue = HighContentionQueue(SPACE["staging"])
    return lambda db, _: queue.pop_min(db)


def library() -> Operation:
    queue = fdbqueue.PriorityQueue(SPACE["library"], codec="bytes")
    return lambda db, _: queue.pop_min(db)


def claim() -> Operation:
    queue = fdbqueue.PriorityQueue(SPACE["library"], codec="bytes")
    return lambda db, _: queue.claim(db)


CONTENDERS: dict[str, Callable[[], Operation]] = {
    "raw: read, modify, write": read_modify_write,
    "raw: blind write": blind_write,
    "plain recipe": plain_recipe,
    "recipe's staging": staging_recipe,
    "this library: pop": library,
    "this library: claim": claim,
}
QUEUES = ("plain recipe", "recipe's staging", "this library: pop", "this library: claim")


def fill(db: Any, name: str, count: int) -> None:
    """Put so many items into a contender's queue, by the keys that it has."""
    if name.startswith("this library"):
        queue = fdbqueue.PriorityQueue(SPACE["library"], codec="bytes")
        for _ in range(0, count, 1000):
            queue.push_many(db, [VALUE] * 1000)
        return
    items = SPACE["recipe"] if name == "plain recipe" else SPACE["staging"][0]

    @fdbqueue.transactional
    def put(tr: Any, begin: int) -> None:
        for number in range(begin, begin + 1000):
            tr[items.pack((0, number, number.to_bytes(20, "big")))] = VALUE

    for begin in range(0, count, 1000):
        put(db, begin)


@dataclass(frozen=True)
class Measured:
    """What the processes did together."""

    rates: list[float]
    """Operations a second, of each process."""
    latencies: list[float]
    commits: int

    @property
    def rate(self) -> float:
        return sum(self.rates)


def process(url: str, name: str, threads: int, seconds: float, pipe: Any) -> None:
    """One process: its threads work for so many seconds once all are there."""
    db = Counting(fdbqueue.open(url))
    operation = CONTENDERS[name]()
    latencies: list[float] = []
    end = 0.0

    def work(number: int) -> None:
        own = SPACE.pack(("own", multiprocessing.current_process().name, number))
        while (began := time.perf_counter()) < end:
            if operation(db, own) is None:
                raise RuntimeError("the queue was too short")
            latencies.append(time.perf_counter() - began)

    transaction = db.create_transaction()
    transaction.get_read_version().wait()  # a cluster's client connects
    pipe.send("ready")
    pipe.recv()
    db.commits, end = 0, time.perf_counter() + seconds
    workers = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    pipe.send((latencies, db.commits))


def measure(url: str, name: str, clients: int, processes: int, seconds: float) -> Measured:
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        arguments = (url, name, clients // processes, seconds, theirs)
        context.Process(target=process, args=arguments, daemon=True).start()
        theirs.close()  # so that the end of a process is the end of its pipe
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    done = [pipe.recv() for pipe in pipes]
    return Measured(
        [len(latencies) / seconds for latencies, _ in done],
        sorted(latency for latencies, _ in done for latency in latencies),
        sum(commits for _, commits in done),
    )


def compare(url: str, clients: int, processes: int, rounds: int, seconds: float) -> None:
    """One table: all contenders with so many clients."""
    db = fdbqueue.open(url)
    results: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}
    title = f"{clients} clients in {processes} processes"
    for _ in track(range(rounds), title, console=console, transient=True):
        for name, measured in results.items():
            db.clear_range_startswith(SPACE.key())
            if name in QUEUES:
                fill(db, name, int(25_000 * seconds))
            measured.append(measure(url, name, clients, processes, seconds))
    db.clear_range_startswith(SPACE.key())
    table = Table(title=title)
    for column in ("", "a second", "/ recipe", "median ms", "99 % ms", "commits each", "slowest"):
        table.add_column(column, justify="right" if column else "left")
    recipe = statistics.median(each.rate for each in results["plain recipe"])
    most = max(each.rate for measured in results.values() for each in measured)
    table.add_column("")
    for name, measured in results.items():
        rate = statistics.median(each.rate for each in measured)
        latencies = [latency for each in measured for latency in each.latencies]
        cuts = statistics.quantiles(latencies, n=100)
        table.add_row(
            name,
            f"{rate:,.0f}",
            f"{rate / recipe:.2f}",
            f"{statistics.median(latencies) * 1e3:.2f}",
            f"{cuts[98] * 1e3:.2f}",
            f"{sum(each.commits for each in measured) / len(latencies):.2f}",
            f"{statistics.median(min(each.rates) / max(each.rates) for each in measured):.2f}",
            "#" * round(24 * rate / most),
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", nargs="?", help="the database; default: a new embedded one")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--processes", type=int, default=4, help="at most so many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-contention-") as directory:
        for clients in given.clients:
            processes = min(given.processes, clients)
            compare(given.url or directory, clients, processes, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
