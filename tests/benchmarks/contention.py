"""Many clients on one queue: how many pops a second, how long each takes, how fair it is.

    python -m tests.benchmarks.contention                   the embedded engine
    python -m tests.benchmarks.contention fdb.cluster       a cluster; or whatever `open` takes

Clients are threads of several processes: `64/4` is 64 of them in 4 processes. In every round each
contender, in changing order, gets a queue that is long enough and the same seconds; the figures are
medians of the rounds, ratios those of one round. Only ratios mean anything: `raw` is what the
engine does when nobody meets anybody. At last pushers work beside poppers, and every item is
accounted for.

A server that the plain recipe has worked on is slower for a while, as each of its pops leaves a
cleared key before the head of the queue. Take a fresh one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any, cast

from fdb.subspace_impl import Subspace
from rich.bar import Bar
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import fdbqueue
from fdbqueue.embedded.database import Database as Embedded
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


Operation = Callable[[Any, bytes], Any]
"""What a client does over and over with a database; its own key is that of no other client."""


def read_modify_write() -> Operation:
    @fdbqueue.transactional
    def operation(tr: Any, own: bytes) -> bytes:
        tr[own] = bytes([(tr[own].value or b"\x00")[0] ^ 1])
        return own

    return cast(Operation, operation)


def blind_write() -> Operation:
    @fdbqueue.transactional
    def operation(tr: Any, own: bytes) -> bytes:
        tr[own] = VALUE
        return own

    return cast(Operation, operation)


def plain_recipe() -> Operation:
    queue = Recipe(SPACE["recipe"])
    return lambda db, _: queue.pop_min(db)


def staging_recipe() -> Operation:
    queue = HighContentionQueue(SPACE["staging"])
    return lambda db, _: queue.pop_min(db)


def library() -> fdbqueue.PriorityQueue:
    return fdbqueue.PriorityQueue(SPACE["library"], codec="bytes")


def pop() -> Operation:
    queue = library()
    return lambda db, _: (item := queue.pop_min(db)) and item.value


def claim() -> Operation:
    queue = library()
    return lambda db, _: (claim := queue.claim(db)) and claim.item.value


def push() -> Operation:
    queue = library()
    numbers = count()
    return lambda db, own: queue.push(db, b"%b %d" % (own, next(numbers))).value


READ_MODIFY_WRITE = "raw: read, modify, write"
PLAIN = "plain recipe"
POP = "this library: pop"
CLAIM = "this library: claim"
PUSH = "this library: push"

OPERATIONS: dict[str, Callable[[], Operation]] = {
    READ_MODIFY_WRITE: read_modify_write,
    "raw: blind write": blind_write,
    PLAIN: plain_recipe,
    "recipe's staging": staging_recipe,
    POP: pop,
    CLAIM: claim,
    PUSH: push,
}
CONTENDERS = [name for name in OPERATIONS if name != PUSH]


def fill(db: Any, name: str, length: int) -> None:
    """Put so many items into a contender's queue, if it has one, by the keys that it has."""
    if name.startswith("raw"):
        return
    if name.startswith("this library"):
        for _ in range(0, length, 1000):
            library().push_many(db, [VALUE] * 1000)
        return
    items = SPACE["recipe"] if name == PLAIN else SPACE["staging"][0]

    @fdbqueue.transactional
    def put(tr: Any, begin: int) -> None:
        for number in range(begin, begin + 1000):
            tr[items.pack((0, number, number.to_bytes(20, "big")))] = VALUE

    for begin in range(0, length, 1000):
        put(db, begin)


@dataclass(frozen=True)
class Measured:
    """What the processes did together, of one operation."""

    seconds: float
    values: list[list[bytes]]
    """What each process's calls returned."""
    latencies: list[float]
    commits: int

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def slowest(self) -> float:
        """The slowest process's rate, of the fastest one's."""
        return min(map(len, self.values)) / max(map(len, self.values))


def process(url: str, names: list[str], threads: int, seconds: float, pipe: Any) -> None:
    """One process: so many threads for each operation work for so long once all are there."""
    db = Counting(fdbqueue.open(url))
    latencies: dict[str, list[float]] = {name: [] for name in names}
    values: dict[str, list[bytes]] = {name: [] for name in names}
    end = 0.0

    def work(name: str, operation: Operation, own: bytes) -> None:
        while (began := time.perf_counter()) < end:
            value = operation(db, own)
            if value is None:
                raise RuntimeError("the queue was too short")
            latencies[name].append(time.perf_counter() - began)
            values[name].append(value)

    workers = []
    for name in names:
        operation = OPERATIONS[name]()
        for number in range(threads):
            own = SPACE.pack(("own", multiprocessing.current_process().name, number))
            workers.append(threading.Thread(target=work, args=[name, operation, own]))
    transaction = db.create_transaction()
    transaction.get_read_version().wait()  # a cluster's client connects
    pipe.send("ready")
    pipe.recv()
    db.commits, end = 0, time.perf_counter() + seconds
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    pipe.send((latencies, values, db.commits))


def measure(
    url: str, names: list[str], clients: int, processes: int, seconds: float
) -> dict[str, Measured]:
    """Let so many clients do each of the operations, at the same time."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        arguments = (url, names, clients // processes, seconds, theirs)
        context.Process(target=process, args=arguments, daemon=True).start()
        theirs.close()  # so that the end of a process is the end of its pipe
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    done = [pipe.recv() for pipe in pipes]
    commits = sum(commits for _, _, commits in done)
    return {
        name: Measured(
            seconds,
            [values[name] for _, values, _ in done],
            [latency for latencies, _, _ in done for latency in latencies[name]],
            commits,
        )
        for name in names
    }


class Setting:
    """What was measured with so many clients, in so many processes."""

    def __init__(self, clients: int, processes: int) -> None:
        self.clients = clients
        self.processes = processes
        self.measured: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}

    def __str__(self) -> str:
        return f"{self.clients}/{self.processes}"

    def round(self, db: Any, url: str, seconds: float, advance: Callable[[], None]) -> None:
        for name in random.sample(CONTENDERS, len(CONTENDERS)):
            db.clear_range_startswith(SPACE.key())
            fill(db, name, int(25_000 * seconds))
            done = measure(url, [name], self.clients, self.processes, seconds)
            self.measured[name].append(done[name])
            advance()
        db.clear_range_startswith(SPACE.key())

    def rate(self, name: str) -> float:
        return statistics.median(each.rate for each in self.measured[name])

    def ratio(self, name: str, other: str) -> float:
        pairs = zip(self.measured[name], self.measured[other])
        return statistics.median(one.rate / two.rate for one, two in pairs)

    def latency(self, name: str, percentile: int) -> float:
        """A percentile of the latencies of all rounds, in seconds."""
        latencies = chain.from_iterable(each.latencies for each in self.measured[name])
        return statistics.quantiles(latencies, n=100)[percentile - 1]

    def commits(self, name: str) -> float:
        """Commits attempted an item."""
        return statistics.median(each.commits / len(each.latencies) for each in self.measured[name])

    def slowest(self, name: str) -> float:
        return statistics.median(each.slowest for each in self.measured[name])

    def table(self) -> Table:
        table = Table(title=f"{self.clients} clients in {self.processes} processes")
        titles = ("", "a second", "/ raw", "/ recipe", "median ms", "99 % ms", "commits", "slowest")
        for title in titles:
            table.add_column(title, justify="right" if title else "left")
        for name in CONTENDERS:
            table.add_row(
                name,
                f"{self.rate(name):,.0f}",
                f"{self.ratio(name, READ_MODIFY_WRITE):.2f}",
                f"{self.ratio(name, PLAIN):.2f}",
                f"{self.latency(name, 50) * 1e3:.2f}",
                f"{self.latency(name, 99) * 1e3:.2f}",
                f"{self.commits(name):.3f}",
                f"{self.slowest(name):.2f}",
            )
        return table


def plot(settings: Iterable[Setting]) -> Table:
    """Bars: operations a second of every contender, side by side for all settings."""
    chart = Table(title="operations a second", box=None, show_header=False)
    rates = {(each, name): each.rate(name) for each in settings for name in CONTENDERS}
    most = max(rates.values())
    for (setting, name), rate in rates.items():
        is_first = name == CONTENDERS[0]
        if is_first:
            chart.add_row()
        bar = Bar(most, 0, rate, width=60)
        chart.add_row(str(setting) if is_first else "", name, bar, f"{rate:,.0f}")
    return chart


def wanted(settings: Iterable[Setting], is_cluster: bool) -> Table:
    """What the library is to reach, beside what it did."""
    by_name = {str(setting): setting for setting in settings}
    lone, many, some = (by_name.get(name) for name in ("1/1", "64/4", "16/4"))
    table = Table(title="wanted and measured")
    for title in ("", "wanted", "measured"):
        table.add_column(title, justify="right" if title else "left")

    def add(what: str, limit: str, figure: float) -> None:
        table.add_row(what, limit, f"{figure:.2f}")

    if is_cluster and lone:
        add("1/1: pop / plain recipe", "≥ 0.95", lone.ratio(POP, PLAIN))
    if is_cluster and many:
        add("64/4: pop / plain recipe", "≥ 20", many.ratio(POP, PLAIN))
        add("64/4: pop / raw", "≥ 1.5", many.ratio(POP, READ_MODIFY_WRITE))
        add("64/4: commits an item", "≤ 0.15", many.commits(POP))
        add("64/4: slowest process / fastest", "≥ 0.5", many.slowest(POP))
        add("64/4: claim / raw", "≥ 1", many.ratio(CLAIM, READ_MODIFY_WRITE))
        if lone:
            ratio = many.latency(POP, 99) / lone.latency(POP, 50)
            add("64/4: 99 % of pops / median of a lone pop", "< 20", ratio)
    if not is_cluster and some and lone:
        add("16/4: pop / that of a lone client", "≥ 1", some.rate(POP) / lone.rate(POP))
        add("16/4: slowest process / fastest", "no starvation", some.slowest(POP))
    return table


def beside(db: Any, url: str, seconds: float, rounds: int, clients: int) -> None:
    """Pushers beside poppers: what both do together of what each does alone; nothing is lost."""
    shares = []
    length = int(25_000 * seconds)
    for _ in range(rounds):
        rates = []
        for names in ([PUSH], [POP], [PUSH, POP]):
            db.clear_range_startswith(SPACE.key())
            fill(db, POP, length)
            done = measure(url, names, clients, 4, seconds)
            rates += [done[name].rate for name in names]
        expected = Counter({VALUE: length}) + Counter(chain.from_iterable(done[PUSH].values))
        found = Counter(chain.from_iterable(done[POP].values))
        while left := library().pop_many(db, 1000):
            found.update(item.value for item in left)
        if found != expected:
            raise RuntimeError(f"lost {expected - found}, twice {found - expected}")
        shares.append((rates[2] / rates[0], rates[3] / rates[1]))
    db.clear_range_startswith(SPACE.key())
    pushed, popped = (statistics.median(column) for column in zip(*shares))
    console.print(
        f"{clients} pushers beside {clients} poppers: {pushed:.2f} of the pushes and {popped:.2f} "
        f"of the pops of each alone, together {pushed + popped:.2f}; nothing lost, nothing twice"
    )


def setting(text: str) -> Setting:
    clients, processes = map(int, text.split("/"))
    if clients % processes:
        raise ValueError
    return Setting(clients, processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", nargs="?", help="the database; default: a new embedded one")
    default = ["1/1", "4/4", "16/4", "64/1", "64/2", "64/4", "64/8", "256/8"]
    parser.add_argument("--settings", type=setting, nargs="*", default=[*map(setting, default)])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--beside", type=int, default=64, help="pushers, and poppers; 0: none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-contention-") as directory:
        url = given.url or directory
        db = fdbqueue.open(url)
        with Progress(console=console, transient=True) as progress:
            for each in given.settings:
                task = progress.add_task(str(each), total=given.rounds * len(CONTENDERS))
                for _ in range(given.rounds):
                    each.round(db, url, given.seconds, partial(progress.advance, task))
                progress.remove_task(task)
                console.print(each.table())
        console.print(plot(given.settings))
        console.print(wanted(given.settings, is_cluster=not isinstance(db, Embedded)))
        if given.beside:
            beside(db, url, given.seconds, given.rounds, given.beside)


if __name__ == "__main__":
    main()
