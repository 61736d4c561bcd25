"""Measure the embedded engine beside bare SQLite and other queues on one machine.

    python -m tests.benchmarks.embedded                everything
    python -m tests.benchmarks.embedded --quick        short runs, to see that all works

Each round does every run once, and a figure is the median of the rounds. Compare only figures of
one call of this program. huey is measured if it is installed: `pip install huey`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import track

from tests.benchmarks.contenders import Library, storages
from tests.benchmarks.report import console, new_table, print_machine, seconds


def compare_operations(root: Path, rounds: int, count: int, durable: bool) -> None:
    """Measure push, pop and peek of each contender in turn, on a queue of 1,000 items."""
    kinds = storages()
    contenders = {each.name: each(root / f"one-{each.name}-{durable}", durable) for each in kinds}
    for contender in contenders.values():
        seconds(contender.push, 1000)
    title = f"one thread, {'durable' if durable else 'no fsync'}"
    operations = ("push", "pop", "peek")
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in track(range(rounds), title, console=console, transient=True):
        for name, contender in contenders.items():
            times[name, "push"].append(seconds(contender.push, count))
            times[name, "peek"].append(seconds(contender.peek, count))
            times[name, "pop"].append(seconds(contender.pop, count))
    base = kinds[1].name
    columns = [f"{each} µs" for each in operations] + [f"{each} / {base}" for each in operations]
    table = new_table(title, *columns)
    medians = {key: statistics.median(values) for key, values in times.items()}
    for name in contenders:
        own = [f"{medians[name, each] * 1e6:.1f}" for each in operations]
        ratios = [f"{medians[name, each] / medians[base, each]:.2f}" for each in operations]
        table.add_row(name, *own, *ratios)
    console.print(table)


def threads_rate(operation: Callable[[], object], threads: int, count: int) -> float:
    """Return the operations a second of several threads on one database."""
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(operation) for _ in range(count)]:
            future.result()
    return count / (time.perf_counter() - start)


def compare_threads(root: Path, rounds: int) -> None:
    """Compare 16 threads, whose commits share fsyncs, with one thread."""
    table = new_table("operations a second, 1 and 16 threads", "push/s", "pop/s")
    for durable in (True, False):
        library = Library(root / f"threads-{durable}", durable)
        seconds(library.push, 1000)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.embedded", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.add_argument("--rounds", type=int, help="default: 5; 1 with --quick")
    parser.add_argument("--directory", help="where databases are made; a real disk, not tmpfs")
    given = parser.parse_args()
    rounds = given.rounds or (1 if given.quick else 5)
    with tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-", dir=given.directory) as folder:
        root = Path(folder)
        print_machine(root)
        for durable in (False, True):
            compare_operations(root, rounds, 100 if durable or given.quick else 1000, durable)
        compare_threads(root, rounds)


if __name__ == "__main__":
    main()
