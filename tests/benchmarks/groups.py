"""What groups cost, and how exactly they share.

    python -m tests.benchmarks.groups [--cluster CLUSTER_FILE] [--size small]
    python -m tests.benchmarks.groups --shares

The first command pushes, claims and acknowledges in queues whose items have no group, or 1, 100 or
100,000 groups: without limits, with a concurrency, and with a rate that no group reaches. All
queues hold as many items. Their rounds take turns; a table has the medians of calls a second, and
their part of those of the queue without groups. A second table has what one call costs in reads and
mutations, and how many transactions conflict if each thread is a process of its own. With a cluster
it measures that, too; without `--cluster` it starts one if it finds a server.

With `--shares`, one of 1,000 groups pushes 100,000 items before the others push 10 each. It prints
Jain's index of what the groups got that had work, for each window of 10,000 claims, and how far
weighted shares are off, also after the weights change in the middle; and how many reads a pop makes
with 10 and with 100,000 groups.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from fdbqueue.testing import FaultyTransaction
from tests.benchmarks.report import console, new_table, print_machine
from tests.support.cluster import NoCluster, start_or_find_cluster
from tests.support.counting import CountingDatabase
from tests.support.fairness import jain

CALLS = ("push", "claim", "acknowledge")
_BATCH = 500
_COUNTED = 200  # calls of which the costs are counted
_LIMITS: dict[str, Any] = {
    "": {},
    "limited": {"concurrency": 10_000},
    "rate": {"rate": (10_000, 60)},
}
"""Settings of all groups, which no group reaches."""


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        groups: The numbers of groups; 0 for none.
        items: How many items each queue holds.
        calls: The calls of each kind in a round.
        rounds: The number of rounds.
        threads: How many threads call at the same time.
    """

    groups: tuple[int, ...]
    items: int
    calls: int
    rounds: int
    threads: int


SIZES = {
    "full": Size((0, 1, 100, 100_000), 200_000, 2_000, 5, 16),
    "small": Size((0, 1, 10, 200), 400, 100, 2, 4),
}


@dataclass
class Tenants:
    """A queue with a number of groups.

    Attributes:
        db: The database.
        groups: The number of groups.
        limit: What limits each group, by its name in `_LIMITS`.
        size: How much is measured.
        rates: The calls a second of each round, by kind.
    """

    db: Any
    groups: int
    limit: str
    size: Size
    rates: dict[str, list[float]] = field(default_factory=lambda: {call: [] for call in CALLS})

    @property
    def title(self) -> str:
        """What is measured."""
        if not self.groups:
            return "no groups"
        s = "" if self.groups == 1 else "s"
        return f"{self.groups:,} group{s}" + (self.limit and f", {self.limit}")

    @property
    def name(self) -> str:
        """The name of the queue."""
        return f"benchmark of {self.title}"

    def open(self, db: Any = None) -> PriorityQueue[Any]:
        """Open the queue as a process does."""
        return PriorityQueue[Any].named(db or self.db, self.name)

    def group(self) -> str | None:
        """Return the name of any group."""
        number = random.randrange(self.groups or 1)
        return f"group {number}" if self.groups else None

    def fill(self) -> None:
        """Push the items that stay."""
        queue = self.open()
        queue.clear(self.db)
        if self.limit:
            queue.set_group(self.db, None, **_LIMITS[self.limit])
        for begin in range(0, self.size.items, _BATCH):
            values = range(begin, min(begin + _BATCH, self.size.items))
            of = [f"group {each % self.groups}" for each in values] if self.groups else None
            queue.push_many(self.db, [0] * len(values), groups=of)

    def round(self) -> None:
        """Push, claim and acknowledge as many items."""
        queue, claims = self.open(), list[Claim[Any]]()
        calls: dict[str, Callable[[], object]] = {
            "push": lambda: queue.push(self.db, 0, group=self.group()),
            "claim": lambda: claims.append(_some(queue.claim(self.db, lease=3600))),
            "acknowledge": lambda: queue.ack(self.db, claims.pop()),
        }
        for name, call in calls.items():
            seconds = in_threads([call] * self.size.threads, self.size.calls)
            self.rates[name].append(self.size.calls / seconds)

    def costs(self) -> list[str]:
        """Return the reads and mutations of each call, alone, and the conflicts of many."""
        shown = []
        counted = CountingDatabase(self.db)
        queue, claims = self.open(counted), list[Claim[Any]]()
        calls: dict[str, Callable[[Any, Any], object]] = {
            "push": lambda queue, db: queue.push(db, 0, group=self.group()),
            "claim": lambda queue, db: claims.append(_some(queue.claim(db, lease=3600))),
            "acknowledge": lambda queue, db: queue.ack(db, claims.pop()),
        }
        for call in calls.values():
            reads, mutations = list[int](), list[int]()
            for _ in range(_COUNTED):
                counted.clear()
                call(queue, counted)
                reads.append(counted.reads)
                mutations.append(len(counted.mutations))
            shown.append(f"{statistics.median(reads):g} / {statistics.median(mutations):g}")
        for call in calls.values():
            # Each thread has its own objects, so that they do not share transactions.
            own = [ConflictsDatabase(self.db) for _ in range(self.size.threads)]
            handles = [(self.open(db), db) for db in own]
            bodies = [lambda handle=handle, call=call: call(*handle) for handle in handles]
            before = sum(db.conflicts for db in own)
            in_threads(bodies, self.size.calls)
            conflicts = sum(db.conflicts for db in own) - before
            shown.append(f"{conflicts / self.size.calls:.1%}")
        return shown


def _some(claim: Claim[Any] | None) -> Claim[Any]:
    assert claim is not None
    return claim


class ConflictsDatabase(CountingDatabase):
    """A database that counts the commits that conflict.

    Attributes:
        conflicts: Their number.
    """

    conflicts = 0

    def commit(self, transaction: FaultyTransaction) -> None:
        try:
            super().commit(transaction)
        except fdbqueue.error_classes() as error:
            self.conflicts += error.code == 1020
            raise


def in_threads(bodies: list[Callable[[], object]], calls: int) -> float:
    """Make a number of calls, each thread one after the other; return the seconds."""
    numbers, errors = iter(range(calls)), list[BaseException]()

    def work(body: Callable[[], object]) -> None:
        try:
            for _ in islice(numbers, calls):
                body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(body,)) for body in bodies]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - began


def compare(engine: str, db: Any, size: Size) -> None:
    """Measure all numbers of groups on one engine, and print the tables."""
    queues = [
        Tenants(db, groups, limit, size)
        for groups in size.groups
        for limit in (_LIMITS if groups else ("",))
    ]
    for queue in queues:
        queue.fill()
    for number in range(size.rounds):
        # Each round begins with another one.
        for queue in queues[number % len(queues) :] + queues[: number % len(queues)]:
            queue.round()
    title = f"{engine}: calls a second, {size.threads} threads, {size.items:,} items"
    rates = new_table(title, *CALLS)
    plain = {call: statistics.median(queues[0].rates[call]) for call in CALLS}
    for queue in queues:
        medians = {call: statistics.median(queue.rates[call]) for call in CALLS}
        cells = [f"{medians[call]:,.0f} ({medians[call] / plain[call]:.2f})" for call in CALLS]
        rates.add_row(queue.title, *cells)
    console.print(rates)
    costs = new_table(
        f"{engine}: reads / mutations of a call, and conflicts of {size.threads} processes",
        *CALLS,
        *(f"{call} conflicts" for call in CALLS),
    )
    for queue in queues:
        costs.add_row(queue.title, *queue.costs())
    console.print(costs)
    for queue in queues:
        queue.open().clear(db)


# Shares


def take(queue: PriorityQueue[Any], db: Any, n: int) -> list[Any]:
    """Claim and acknowledge `n` items, 10 at a time; return their values."""
    taken: list[Any] = []
    while len(taken) < n:
        claim = _some(queue.claim(db, n=min(10, n - len(taken))))
        taken += [item.value for item in claim.items]
        queue.ack(db, claim)
    return taken


def _pushed(queue: PriorityQueue[Any], db: Any, group: str, n: int) -> None:
    for begin in range(0, n, _BATCH):
        queue.push_many(db, [group] * min(_BATCH, n - begin), group=group)


def show_shares(db: Any, groups: int, flood: int, each: int, window: int) -> None:
    """Print how equal what groups get is, and how close to their weights."""
    queue = PriorityQueue[Any].named(db, "benchmark of shares")
    queue.clear(db)
    _pushed(queue, db, "flood", flood)
    others = [f"group {number}" for number in range(groups - 1)]
    for begin in range(0, len(others), _BATCH // each):
        names = [name for name in others[begin : begin + _BATCH // each] for _ in range(each)]
        queue.push_many(db, names, groups=names)
    order = take(queue, db, groups * each)
    lowest = 1.0
    step = max(1, len(order) // 200)
    for begin in range(0, max(1, len(order) - window + 1), step):
        left = Counter(order[begin:])
        had_work = {name for name, n in left.items() if n >= 1} | {"flood"}
        got = Counter(order[begin : begin + window])
        lowest = min(lowest, jain([got[name] for name in had_work if left[name] or got[name]]))
    console.print(
        f"Jain's index of {groups:,} groups, one of which pushed {flood:,} items before the "
        f"others pushed {each} each, in every {window:,} claims: {lowest:.4f} or more"
    )
    queue.clear(db)
    weights = {f"group {number}": 1 + number % 5 for number in range(50)}
    for name in weights:
        _pushed(queue, db, name, window // 5)
    for title, change in (("at first", 0), ("after they changed", 2)):
        present = {name: 1 + (weight - 1 + change) % 5 for name, weight in weights.items()}
        for name, weight in present.items():
            queue.set_group(db, name, weight=weight)
        got = Counter(take(queue, db, window))
        total = sum(present.values())
        off = max(
            abs(got[name] / window / (weight / total) - 1) for name, weight in present.items()
        )
        console.print(f"Weighted shares of {len(weights)} groups {title}: {off:.2%} off at most")
    queue.clear(db)


def show_reads_of_pops(db: Any, *numbers: int) -> None:
    """Print how many reads a pop makes with some numbers of groups."""
    for groups in numbers:
        items = 2 * max(groups, _COUNTED)  # no pop takes the last one of a group
        tenants = Tenants(db, groups, "", Size((groups,), items, 0, 0, 0))
        tenants.fill()
        counted = CountingDatabase(db)
        queue, reads = tenants.open(counted), list[int]()
        for _ in range(_COUNTED):
            counted.clear()
            assert queue.pop(counted) is not None
            reads.append(counted.reads)
        console.print(
            f"Reads of a pop with {groups:,} groups: {statistics.median(reads):g} in the median, "
            f"{max(reads)} at most"
        )
        queue.clear(db)


# The command


@contextmanager
def _databases(given: str | None) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        databases: dict[str, Any] = {"embedded": fdbqueue.open(f"embedded:{folder}/db")}
        if given is not None:
            yield databases | {"cluster": fdbqueue.open(given)}
            return
        with ExitStack() as stack:
            try:
                found = stack.enter_context(start_or_find_cluster(Path(folder)))
                databases[f"cluster ({found.source})"] = fdbqueue.open(found.file)
            except NoCluster as error:
                console.print(f"No cluster: {error}")
            yield databases


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", help="a cluster file")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--shares", action="store_true", help="show how exactly groups share")
    options = parser.parse_args()
    is_small = options.size == "small"
    with _databases(options.cluster) as databases:
        print_machine(Path(tempfile.gettempdir()))
        for engine, db in databases.items():
            if options.shares:
                numbers = (20, 300, 10, 200) if is_small else (1_000, 100_000, 10, 10_000)
                console.print(engine)
                show_shares(db, *numbers)
                show_reads_of_pops(db, 10, 200 if is_small else 100_000)
            else:
                compare(engine, db, SIZES[options.size])


if __name__ == "__main__":
    main()
