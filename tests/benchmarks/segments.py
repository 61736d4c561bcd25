"""Compare one key for each item with one key for each segment of items.

    python -m tests.benchmarks.segments [DATABASE]

It measures the time of an operation, the bytes stored and the transactions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from recipes.n_queue import NQueue
from recipes.segmented_queue import SegmentedQueue
from tests.benchmarks.report import console, new_table, print_machine

SPACE = Subspace(("benchmark", "segments"))
ITEMS = 10_000
VALUE = b"x" * 100


class Counted:
    """Count the transactions of a database."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.transactions = 0

    def create_transaction(self) -> Any:
        self.transactions += 1
        return self._db.create_transaction()


def stored(db: Any) -> tuple[int, int]:
    """Return the number of bytes stored and the number of keys."""
    rows = list(db.get_range_startswith(SPACE.key()))
    return sum(len(row.key) + len(row.value) for row in rows), len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", nargs="?", help="database; default: a new embedded one")
    given = parser.parse_args()
    title = f"{ITEMS:,} items of {len(VALUE)} bytes, one by one; medians of 3"
    columns = ("push µs", "pop µs", "bytes stored", "keys", "transactions")
    table = new_table(title, *columns)
    with tempfile.TemporaryDirectory(prefix="fdbqueue-segments-") as directory:
        print_machine(Path(directory))
        raw = fdbqueue.open(given.url or directory, durability="os")
        times: dict[str, list[tuple[float, float]]] = {}
        totals: dict[str, tuple[int, int, int]] = {}
        for _ in range(3):
            queues: dict[str, Any] = {
                "one key for each item": NQueue(SPACE),
                "segments of 100": SegmentedQueue(SPACE),
                "segments of 10": SegmentedQueue(SPACE, segment_size=10),
            }
            for name, queue in queues.items():
                raw.clear_range_startswith(SPACE.key())
                db = Counted(raw)
                began = time.perf_counter()
                for _ in range(ITEMS):
                    queue.push(db, VALUE)
                pushed = time.perf_counter()
                size, keys = stored(raw)
                between = time.perf_counter()
                while queue.pop(db):
                    pass
                popped = time.perf_counter() - between
                totals[name] = size, keys, db.transactions
                times.setdefault(name, []).append((pushed - began, popped))
        for name, runs in times.items():
            push, pop = (statistics.median(column) / ITEMS * 1e6 for column in zip(*runs))
            table.add_row(name, f"{push:.0f}", f"{pop:.0f}", *(f"{n:,}" for n in totals[name]))
        raw.clear_range_startswith(SPACE.key())
    console.print(table)


if __name__ == "__main__":
    main()
