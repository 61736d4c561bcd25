"""What shards cost, and how groups share between them. Counts and shares; no times.

    python -m tests.benchmarks.shards                 the embedded engine
    python -m tests.benchmarks.shards fdb.cluster     a cluster

The first table has the reads and mutations of calls. The second has Jain's index, 1 if all get
their share: of the items that claims take from each shard, by the number of its groups. In a skewed
queue, the first group has half of the items.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.layout.keys import shard_of
from fdbqueue.queue.base import store_of
from tests.benchmarks.report import console, new_table
from tests.support.counting import CountingDatabase, writes

SHARDS = (1, 8, 64)
GROUPS = (1, 10, 1_000, 100_000)
_ROUNDS = 15
_BATCH = 1_000
_CLAIMED = 16_000  # items whose shares are compared


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="memory:", help="database")
    db = fdbqueue.open(parser.parse_args().url)
    show_costs(db)
    show_fairness(db)


# Costs


def show_costs(db: Any) -> None:
    """Print the reads and mutations of pushes, claims and acknowledgements."""
    columns = "push", "claim of 1", "claim of 16, a job", "ack of 16, a job"
    table = new_table("reads / mutations", *columns)
    for shards in SHARDS:
        table.add_row(f"{shards} shards", *_costs(db, shards))
    console.print(table)


def _costs(db: Any, shards: int) -> Iterable[str]:
    counted = CountingDatabase(db)
    queue = _filled(counted, shards, 0, 20_000, 0)
    calls: dict[str, tuple[int, Callable[[], Any]]] = {
        "push": (1, lambda: queue.push(counted, 0)),
        "claim": (1, lambda: queue.claim(counted, lease=3600)),
        "claim of 16": (16, lambda: queue.claim(counted, n=16, lease=3600)),
    }
    for n, call in calls.values():
        yield _median(counted, queue, n, call)
    claims = iter([queue.claim(counted, n=16, lease=3600) for _ in range(_ROUNDS)])
    yield _median(counted, queue, 16, lambda: queue.ack(counted, next(claims)))
    queue.clear(db)


def _median(counted: CountingDatabase, queue: Any, n: int, call: Callable[[], Any]) -> str:
    reads, mutations = list[float](), list[float]()
    for _ in range(_ROUNDS):
        counted.clear()
        call()
        reads.append(counted.reads / n)
        mutations.append(writes(counted, queue) / n)
    return f"{statistics.median(reads):.2f} / {statistics.median(mutations):.2f}"


def _filled(db: Any, shards: int, groups: int, items: int, flood: int) -> Any:
    """Return a queue with as many items of each group, and `flood` more of the first."""
    queue: Any = PriorityQueue.named(db, "benchmark of shards")
    queue.clear(db)
    queue.configure(db, shards=64)
    queue.configure(db, shards=shards)
    of_items = [f"group {number % groups}" if groups else None for number in range(items)]
    of_items += ["group 0"] * flood
    for begin in range(0, len(of_items), _BATCH):
        some = of_items[begin : begin + _BATCH]
        queue.push_many(db, [0] * len(some), groups=some)
    return queue


# Fairness


def show_fairness(db: Any) -> None:
    """Print Jain's indexes of the shares of shards, over the first claims."""
    for n in (1, 16):
        table = new_table(f"Jain's index, 8 shards, claims of {n}", "even", "skewed")
        for groups in GROUPS:
            shown = (jain(_shares(db, groups, n, flood)) for flood in (0, 100_000))
            table.add_row(f"{groups:,} groups", *(f"{index:.4f}" for index in shown))
        console.print(table)


def _shares(db: Any, groups: int, n: int, flood: int) -> list[float]:
    """Return how many items claims take from each shard, for each of its groups."""
    queue = _filled(db, 8, groups, groups * max(2 * _CLAIMED // groups, 2), flood)
    layout = store_of(queue).layout
    weights = Counter(_shard_of(queue, db, f"group {number}") for number in range(groups))
    taken = Counter[bytes]()
    while taken.total() < _CLAIMED:
        claim = queue.claim(db, n=n, lease=3600)
        taken.update(shard_of(layout.position(key)) for key in claim.keys)
    return [taken[shard] / weight for shard, weight in weights.items()]


def _shard_of(queue: Any, db: Any, group: str) -> bytes:
    store = store_of(queue)
    level = store.levels.in_group(store.levels.level(0), group)
    found = fdbqueue.transactional(lambda tr: store.items.shards.level_for(tr, level, b""))(db)
    return bytes(found.shard)


def jain(shares: list[float]) -> float:
    """Return Jain's index: 1 if all shares are equal, one n-th if one of n has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


if __name__ == "__main__":
    main()
