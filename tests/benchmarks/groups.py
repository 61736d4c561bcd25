"""What groups cost beside a queue without groups.

    python -m tests.benchmarks.groups [--cluster CLUSTER_FILE] [--size small]

It pushes, claims and acknowledges in queues whose items have no group, or 1, 100 or 100,000 groups.
All queues hold as many items. Their rounds take turns; a table has the medians of calls a second,
and their part of those of the queue without groups.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Claim, PriorityQueue
from tests.benchmarks.report import console, new_table, print_machine, threads_rate

CALLS = ("push", "claim", "acknowledge")
_BATCH = 500


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
        size: How much is measured.
        rates: The calls a second of each round, by kind.
    """

    db: Any
    groups: int
    size: Size
    rates: dict[str, list[float]] = field(default_factory=lambda: {call: [] for call in CALLS})

    @property
    def title(self) -> str:
        """What is measured."""
        if not self.groups:
            return "no groups"
        return f"{self.groups:,} group{'' if self.groups == 1 else 's'}"

    @property
    def name(self) -> str:
        """The name of the queue."""
        return f"benchmark of {self.title}"

    def group(self) -> str | None:
        """Return the name of any group."""
        number = random.randrange(self.groups or 1)
        return f"group {number}" if self.groups else None

    def fill(self) -> None:
        """Push the items that stay."""
        queue = PriorityQueue[Any].named(self.db, self.name)
        queue.clear(self.db)
        for begin in range(0, self.size.items, _BATCH):
            values = range(begin, min(begin + _BATCH, self.size.items))
            of = [f"group {each % self.groups}" for each in values] if self.groups else None
            queue.push_many(self.db, [0] * len(values), groups=of)

    def calls(self) -> dict[str, Callable[[], object]]:
        """Open the queue as a process does; return what pushes, claims and acknowledges an item."""
        db, claims = self.db, list[Claim[Any]]()
        queue = PriorityQueue[Any].named(db, self.name)
        return {
            "push": lambda: queue.push(db, 0, group=self.group()),
            "claim": lambda: claims.append(_some(queue.claim(db, lease=3600))),
            "acknowledge": lambda: queue.ack(db, claims.pop()),
        }

    def round(self) -> None:
        """Push, claim and acknowledge as many items."""
        for name, call in self.calls().items():
            self.rates[name].append(threads_rate(call, self.size.threads, self.size.calls))


def _some(claim: Claim[Any] | None) -> Claim[Any]:
    assert claim is not None
    return claim


def compare(engine: str, db: Any, size: Size) -> None:
    """Measure all numbers of groups on one engine, and print the table."""
    queues = [Tenants(db, groups, size) for groups in size.groups]
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
    for queue in queues:
        PriorityQueue.existing(db, queue.name).clear(db)


# The command


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", help="a cluster file, to measure a cluster as well")
    parser.add_argument("--size", choices=SIZES, default="full")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-groups-") as folder:
        print_machine(Path(folder))
        compare("embedded", fdbqueue.open(f"embedded:{folder}/db"), SIZES[given.size])
    if given.cluster:
        compare("cluster", fdbqueue.open(given.cluster), SIZES[given.size])


if __name__ == "__main__":
    main()
