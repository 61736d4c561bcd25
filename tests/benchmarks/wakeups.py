"""Measure how soon a push wakes a waiting pop of another process, and what waiting costs.

    python -m tests.benchmarks.wakeups                  the embedded engine, some minutes
    python -m tests.benchmarks.wakeups fdb.cluster      a cluster, or any database that `open` takes
    python -m tests.benchmarks.wakeups --kills 500      4 processes wait, and 500 are killed

One process waits, and this one pushes: at once, while the other falls asleep, or while it sleeps.
The goals are a median of at most 20 ms, no lost wake-up in 10,000 rounds, and less than 0.2 % of a
core for a process that waits on either engine.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

import fdbqueue
from fdbqueue import PriorityQueue, Subspace
from tests.benchmarks.comparison import percentile
from tests.benchmarks.report import console, new_table, print_machine

WAITER = """
import resource, sys, time, fdbqueue
url, space, rounds, idle = sys.argv[1], bytes.fromhex(sys.argv[2]), *map(int, sys.argv[3:])
db = fdbqueue.open(url)
queue = fdbqueue.PriorityQueue(fdbqueue.Subspace(rawPrefix=space))
queue.pop(db)  # connects to a cluster

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

began, used = time.monotonic(), cpu()
queue.pop(db, wait=idle)
print((cpu() - used) / (time.monotonic() - began), flush=True)
for _ in range(rounds):
    lost = 0
    while queue.pop(db, wait=60) is None:
        lost += not queue.is_empty(db)  # it timed out although there was an item
    print(time.monotonic_ns(), lost, flush=True)
"""
# The maximum of the random pause before a push, in seconds since the last item was popped.
PAUSES = {"at once": 0, "while it falls asleep": 0.003, "while it sleeps": 0.03}
PROCESSES = 4  # that wait while some are killed
BEGAN, COMMITTED = "since the start of the push", "since the push returned"


class Waiter:
    """The process that waits."""

    def __init__(self, url: str, space: Subspace, rounds: int, idle: int) -> None:
        arguments = [url, space.key().hex(), str(rounds), str(idle)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", WAITER, *arguments], stdout=subprocess.PIPE, text=True
        )

    def fileno(self) -> int:
        """Return the descriptor of its output, for `select`."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> list[str]:
        """Return the words of its next line."""
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert words, "the waiting process has ended"
        return words

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def measure(db: Any, url: str, space: Subspace, rounds: int, idle: int) -> None:
    queue = PriorityQueue(space)
    milliseconds: dict[str, list[float]] = defaultdict(list)
    lost = 0
    with Waiter(url, space, rounds, idle) as waiter:
        with console.status(f"a process waits for {idle} seconds without a push"):
            share = float(waiter.read()[0])
        for number in track(range(rounds), "wake-ups", console=console, transient=True):
            kind = random.choice(list(PAUSES))
            time.sleep(random.uniform(0, PAUSES[kind]))
            began = time.monotonic_ns()
            queue.push(db, number)
            committed = time.monotonic_ns()
            # All processes of a machine share the monotonic clock.
            popped, lost_now = map(int, waiter.read())
            lost += lost_now
            for since, names in ((began, [BEGAN, f"  {kind}"]), (committed, [COMMITTED])):
                for row in names:
                    milliseconds[row].append((popped - since) / 1e6)
    rows = (BEGAN, *(f"  {kind}" for kind in PAUSES), COMMITTED)
    console.print(latencies(milliseconds, rows))
    console.print(f"lost wake-ups in {rounds:,} rounds: {lost}")
    console.print(f"a waiting process uses {share:.2%} of a core (over {idle} s)")


def measure_kills(db: Any, url: str, space: Subspace, rounds: int, kills: int) -> None:
    """Push while several processes wait, some of which were killed while they waited."""
    queue = PriorityQueue(space)
    rows = ("no process was killed before", "a process was killed before")
    milliseconds: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        processes: list[Waiter] = []

        def start() -> None:
            process = stack.enter_context(Waiter(url, space, rounds, 0))
            process.read()
            processes.append(process)

        for _ in range(PROCESSES):
            start()
        for number in track(range(rounds), "wake-ups", console=console, transient=True):
            is_kill = random.random() < kills / rounds
            if is_kill:
                processes.pop(random.randrange(PROCESSES)).__exit__()
                if random.random() < 0.5:
                    start()
            time.sleep(random.uniform(0, PAUSES["while it sleeps"]))
            queue.push(db, number)
            committed = time.monotonic_ns()
            (process,) = select.select(processes, [], [])[0]
            popped, _ = map(int, process.read())
            milliseconds[rows[is_kill]].append((popped - committed) / 1e6)
            while len(processes) < PROCESSES:
                start()
    console.print(latencies(milliseconds, rows))
    slow = sum(value > 1_000 for values in milliseconds.values() for value in values)
    console.print(f"rounds that took more than a second: {slow}")


def latencies(milliseconds: dict[str, list[float]], rows: Sequence[str]) -> Table:
    columns = ("rounds", "median ms", "99 % ms", "max ms")
    table = new_table("time until the waiting process popped the item", *columns)
    for row in rows:
        if values := milliseconds[row]:
            high = percentile(sorted(values), 99)
            figures = (statistics.median(values), high, max(values))
            table.add_row(row, f"{len(values):,}", *(f"{figure:.2f}" for figure in figures))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.wakeups", description=__doc__.split("\n")[0]
    )
    parser.add_argument("url", nargs="?", help="database; default: a new embedded one")
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=0, help="processes to kill while they wait")
    parser.add_argument("--idle", type=int, default=10, help="seconds to wait without a push")
    arguments = parser.parse_args()
    space = Subspace(("benchmark", "wakeups", os.getpid()))
    with tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-") as directory:
        url = arguments.url or f"embedded:{directory}"
        db = fdbqueue.open(url)
        print_machine(Path(directory))
        try:
            if arguments.kills:
                measure_kills(db, url, space, arguments.rounds, arguments.kills)
            else:
                measure(db, url, space, arguments.rounds, arguments.idle)
        finally:
            db.clear_range_startswith(space.key())


if __name__ == "__main__":
    main()
