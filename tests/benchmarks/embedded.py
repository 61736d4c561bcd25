"""Measure the embedded engine beside bare SQLite and other queues on one machine.

    python -m tests.benchmarks.embedded                everything
    python -m tests.benchmarks.embedded --quick        short runs, to see that all works

Each round does every run once, and a figure is the median of the rounds. Compare only figures of
one call of this program. Peers are measured if they are installed: `pip install huey diskcache`.

Processes have one thread each. They are started and warmed, begin at the same moment and push for
the same time.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.progress import track

from tests.benchmarks.contenders import BareSqlite, Library, Storage, storages
from tests.benchmarks.report import (
    console,
    new_table,
    print_machine,
    processes,
    received,
    seconds,
    threads_rate,
)

PROCESSES = (1, 2, 4, 8)
WARM_UPS = 30  # pushes of a process before it is ready


def compare_operations(
    root: Path, rounds: int, count: int, durable: bool, kinds: list[type[Storage]]
) -> None:
    """Measure push, pop and peek of each contender in turn, on a queue of 1,000 items."""
    contenders = {each.name: each(root / f"one-{each.name}-{durable}", durable) for each in kinds}
    for contender in contenders.values():
        contender.fill(1000)
    title = f"one thread, {'durable' if durable else 'no fsync'}"
    operations = ("push", "pop", "peek")
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in track(range(rounds), title, console=console, transient=True):
        for name, contender in contenders.items():
            times[name, "push"].append(seconds(contender.push, count))
            times[name, "peek"].append(seconds(contender.peek, count))
            times[name, "pop"].append(seconds(contender.pop, count))
    base = BareSqlite.name
    columns = [f"{each} µs" for each in operations] + [f"{each} / {base}" for each in operations]
    table = new_table(title, *columns)
    medians = {key: statistics.median(values) for key, values in times.items()}
    for name in contenders:
        own = [f"{medians[name, each] * 1e6:.1f}" for each in operations]
        ratios = [f"{medians[name, each] / medians[base, each]:.2f}" for each in operations]
        table.add_row(name, *own, *ratios)
    console.print(table)


def compare_threads(root: Path, rounds: int) -> None:
    """Compare 16 threads, whose commits share fsyncs, with one thread."""
    table = new_table("operations a second, 1 and 16 threads", "push/s", "pop/s")
    for durable in (True, False):
        library = Library(root / f"threads-{durable}", durable)
        library.fill(1000)
        for threads, count in ((1, 320), (16, 1600)):
            rates = [
                (
                    threads_rate(library.push, threads, count),
                    threads_rate(library.pop, threads, count),
                )
                for _ in range(rounds)
            ]
            medians = [f"{statistics.median(each):,.0f}" for each in zip(*rates)]
            table.add_row(f"{'durable' if durable else 'no fsync'}, {threads}", *medians)
    console.print(table)


def run_client(kind: type[Storage], durable: bool, path: Path, length: float, pipe: Any) -> None:
    """Run one process; send how often it pushed."""
    contender = kind(path, durable)
    for _ in range(WARM_UPS):
        contender.push()
    pipe.send("ready")
    start, n = pipe.recv(), 0
    time.sleep(max(0, start - time.monotonic()))
    while time.monotonic() < start + length:
        contender.push()
        n += 1
    contender.close()
    pipe.send(n)


def compare_processes(
    root: Path, rounds: int, length: float, durable: bool, kinds: list[type[Storage]]
) -> None:
    """Compare this library with its peers: pushes by several processes."""
    title = f"pushes a second by processes, {'durable' if durable else 'no fsync'}"
    cases = [(kind, count) for kind in kinds for count in PROCESSES]
    order = [case for _ in range(rounds) for case in random.sample(cases, len(cases))]
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kind, count in track(order, title, console=console, transient=True):
        path = Path(tempfile.mkdtemp(dir=root))
        with processes(run_client, [(kind, durable, path, length)] * count) as pipes:
            rates[kind.name, count].append(sum(map(received, pipes)) / length)
        shutil.rmtree(path)
    table = new_table(title, *map(str, PROCESSES))
    for kind in kinds:
        figures = (statistics.median(rates[kind.name, count]) for count in PROCESSES)
        table.add_row(kind.name, *(f"{each:,.0f}" for each in figures))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.embedded", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.add_argument("--directory", help="where databases are made; a real disk, not tmpfs")
    given = parser.parse_args()
    rounds, length = (1, 0.3) if given.quick else (5, 3.0)
    kinds = storages()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-", dir=given.directory) as folder:
        root = Path(folder)
        print_machine(root)
        for durable in (False, True):
            count = 100 if durable or given.quick else 1000
            compare_operations(root, rounds, count, durable, kinds)
            compare_processes(root, rounds, length, durable, kinds)
        compare_threads(root, rounds)


if __name__ == "__main__":
    main()
