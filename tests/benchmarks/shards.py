"""How groups share between shards. Shares; no times.

    python -m tests.benchmarks.shards                 the embedded engine
    python -m tests.benchmarks.shards fdb.cluster     a cluster

The tables have Jain's index, 1 if all get their share: of the items that claims take from each
shard, by the number of its groups. In a skewed queue, the first group has half of the items.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.layout.keys import shard_of
from fdbqueue.queue.base import store_of
from tests.benchmarks.report import console, new_table

GROUPS = (1, 10, 1_000, 100_000)
_BATCH = 1_000
_CLAIMED = 16_000  # items whose shares are compared


def main() -> None:
    """Print a table for single claims, and one for those of 16 items."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="memory:", help="database")
    db = fdbqueue.open(parser.parse_args().url)
    show_fairness(db)


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
    before = store.levels.level(0)
    level = store.levels.in_group(before, group)
    found = fdbqueue.transactional(lambda tr: store.items.shards.level_for(tr, level, before))(db)
    return bytes(found.shard)


def jain(shares: list[float]) -> float:
    """Return Jain's index: 1 if all shares are equal, one n-th if one of n has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


if __name__ == "__main__":
    main()
