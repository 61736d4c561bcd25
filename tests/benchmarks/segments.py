"""One key an item beside one key a segment: the time, the bytes and the transactions.

python -m tests.benchmarks.segments [DATABASE]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from fdb.subspace_impl import Subspace
from rich.console import Console
from rich.table import Table

import fdbqueue
from recipes.n_queue import NQueue
from recipes.segmented_queue import SegmentedQueue

SPACE = Subspace(("benchmark", "segments"))
ITEMS = 10_000
VALUE = b"x" * 100


class Counted:
    """A database that counts its transactions."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.transactions = 0

    def create_transaction(self) -> Any:
        self.transactions += 1
        return self._db.create_transaction()


def stored(db: Any) -> tuple[int, int]:
    """How many bytes are stored, in how many keys."""
    rows = list(db.get_range_startswith(SPACE.key()))
    return sum(len(row.key) + len(row.value) for row in rows), len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", nargs="?", help="the database; default: a new embedded one")
    given = parser.parse_args()
    table = Table(title=f"{ITEMS:,} items of {len(VALUE)} bytes, one by one; medians of 3")
    for title in ("", "push us", "pop us", "bytes stored", "keys", "transactions"):
        table.add_column(title, justify="right" if title else "left")
    with tempfile.TemporaryDirectory(prefix="fdbqueue-segments-") as directory:
        raw = fdbqueue.open(given.url or directory, durability="os")
        times: dict[str, list[tuple[float, float]]] = {}
        facts: dict[str, tuple[int, int, int]] = {}
        for _ in range(3):
            queues: dict[str, Any] = {
                "one key an item": NQueue(SPACE),
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
                facts[name] = size, keys, db.transactions
                times.setdefault(name, []).append((pushed - began, popped))
        for name, runs in times.items():
            push, pop = (statistics.median(column) / ITEMS * 1e6 for column in zip(*runs))
            counted = (f"{fact:,}" for fact in facts[name])
            table.add_row(name, f"{push:.0f}", f"{pop:.0f}", *counted)
        raw.clear_range_startswith(SPACE.key())
    Console().print(table)


if __name__ == "__main__":
    main()
