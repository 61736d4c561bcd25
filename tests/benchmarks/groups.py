"""What groups cost beside a queue without groups.

    python -m tests.benchmarks.groups [CLUSTER_FILE] [--items 200000] [--calls 2000]

Threads push, claim and acknowledge in queues whose items have no group, or 1, 100 or 100,000
groups. All queues hold as many items. Their rounds take turns; a table has the medians of calls a
second, and their part of those of the queue without groups.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from tests.benchmarks.report import console, new_table, print_machine

GROUPS = (0, 1, 100, 100_000)
CALLS = ("push", "claim", "acknowledge")
THREADS, ROUNDS, BATCH = 16, 5, 500


def filled(db: Any, groups: int, items: int) -> PriorityQueue[Any]:
    """Return a queue with items that stay."""
    queue = PriorityQueue[Any].named(db, f"benchmark of {groups} groups")
    queue.clear(db)
    for begin in range(0, items, BATCH):
        values = range(begin, min(begin + BATCH, items))
        of = [f"group {each % groups}" for each in values] if groups else None
        queue.push_many(db, values, groups=of)
    return queue


def rate(call: Callable[[], object], calls: int) -> float:
    """Return the calls a second of some threads."""
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(call) for _ in range(calls)]:
            done.result()
    return calls / (time.perf_counter() - began)


def compare(engine: str, db: Any, items: int, calls: int) -> None:
    """Measure all numbers of groups on one engine, and print the table."""
    queues = {groups: filled(db, groups, items) for groups in GROUPS}
    rates: dict[tuple[int, str], list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for groups, queue in random.sample([*queues.items()], len(queues)):
            claims: list[Any] = []

            def push(queue: Any = queue, groups: int = groups) -> None:
                group = f"group {random.randrange(groups)}" if groups else None
                queue.push(db, 0, group=group)

            def claim(queue: Any = queue, claims: list[Any] = claims) -> None:
                claims.append(queue.claim(db, lease=3600))

            def acknowledge(queue: Any = queue, claims: list[Any] = claims) -> None:
                queue.ack(db, claims.pop())

            for name, call in zip(CALLS, (push, claim, acknowledge)):
                rates[groups, name].append(rate(call, calls))
    table = new_table(f"{engine}: calls a second, {THREADS} threads, {items:,} items", *CALLS)
    medians = {key: statistics.median(values) for key, values in rates.items()}
    for groups in queues:
        cells = ((medians[groups, call], medians[0, call]) for call in CALLS)
        table.add_row(f"{groups:,} groups", *(f"{own:,.0f} ({own / of:.2f})" for own, of in cells))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cluster", nargs="?", help="a cluster file, to measure a cluster as well")
    parser.add_argument("--items", type=int, default=200_000, help="that each queue holds")
    parser.add_argument("--calls", type=int, default=2_000, help="of each kind in a round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-groups-") as folder:
        print_machine(Path(folder))
        compare("embedded", fdbqueue.open(f"embedded:{folder}/db"), given.items, given.calls)
    if given.cluster:
        compare("cluster", fdbqueue.open(given.cluster), given.items, given.calls)


if __name__ == "__main__":
    main()
