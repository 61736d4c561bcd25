"""Measure the embedded engine beside bare SQLite and other queues on one machine.

    python -m tests.benchmarks.embedded                everything
    python -m tests.benchmarks.embedded --quick        short runs, to see that all works
    python -m tests.benchmarks.embedded --processes    one part; name several for several parts

Each round does every run once, and a figure is the median of the rounds. Compare only figures of
one call of this program. Peers are measured if they are installed: `pip install huey diskcache`.

With many processes, each has one thread. They are started and warmed, begin at the same moment and
work for the same time. After every run all items are accounted for.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from rich.progress import track

from tests.benchmarks.contenders import Library, Storage, storages
from tests.benchmarks.report import (
    account,
    console,
    new_table,
    print_machine,
    processes,
    received,
    seconds,
    threads_rate,
)

PARTS = {
    "one-thread": "the time of an operation",
    "threads": "1 and 16 threads of one process",
    "processes": "pushes, pops and both by many processes",
}
MODES = {"push": ("push",), "pop": ("pop",), "push and pop in turns": ("push", "pop")}
WARM_UPS = 30  # times that a process does its operations before it is ready
IDS = 10_000_000  # numbers reserved for the items of a process
MOST_POPS = {False: 60_000, True: 10_000}  # a second, by durability


def compare_operations(
    root: Path, rounds: int, count: int, durable: bool, kinds: list[type[Storage]]
) -> None:
    """Measure push, pop and peek of each contender in turn, on a queue of 1,000 items."""
    contenders = {each.name: each(root / f"one-{each.name}-{durable}", durable) for each in kinds}
    for contender in contenders.values():
        contender.fill(range(1000))
    title = f"one thread, {'durable' if durable else 'no fsync'}"
    operations = ("push", "pop", "peek")
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in track(range(rounds), title, console=console, transient=True):
        for name, contender in contenders.items():
            times[name, "push"].append(seconds(partial(contender.push, 1), count))
            times[name, "peek"].append(seconds(contender.peek, count))
            times[name, "pop"].append(seconds(contender.pop, count))
    base = kinds[1].name if len(kinds) > 1 else kinds[0].name
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
        library.fill(range(1000))
        for threads, count in ((1, 320), (16, 1600)):
            rates = [
                (
                    threads_rate(partial(library.push, 1), threads, count),
                    threads_rate(library.pop, threads, count),
                )
                for _ in range(rounds)
            ]
            medians = [f"{statistics.median(each):,.0f}" for each in zip(*rates)]
            table.add_row(f"{'durable' if durable else 'no fsync'}, {threads}", *medians)
    console.print(table)


def run_client(
    kind: type[Storage],
    durable: bool,
    operations: Sequence[str],
    path: Path,
    first: int,
    length: float,
    pipe: Any,
) -> None:
    """Run one process; send the numbers that it pushed and popped, and the longest operation."""
    contender = kind(path, durable)
    pushed, popped = list[int](), list[int]()

    def push() -> None:
        pushed.append(first + len(pushed))
        contender.push(pushed[-1])

    def pop() -> None:
        number = contender.pop()
        if number is None:
            raise RuntimeError("the queue ran empty")
        popped.append(number)

    calls = [{"push": push, "pop": pop}[name] for name in operations]
    for call in calls * WARM_UPS:
        call()
    done, longest = 0, 0.0
    pipe.send("ready")
    start = pipe.recv()
    time.sleep(max(0, start - time.monotonic()))
    began = time.monotonic()
    for call in cycle(calls):
        call()
        ended = time.monotonic()
        longest = max(longest, ended - began)
        if ended >= start + length:
            break
        done, began = done + 1, ended
    contender.close()
    pipe.send((pushed, popped, done, longest))


def run_processes(
    kind: type[Storage],
    durable: bool,
    operations: Sequence[str],
    count: int,
    length: float,
    root: Path,
) -> tuple[float, float, float]:
    """Return operations a second, those of the slowest by the fastest, and the longest one."""
    path = Path(tempfile.mkdtemp(dir=root))
    pops = 0 if operations == ("push",) else int(MOST_POPS[durable] * length) + 4_000
    items = range(1000 + (pops if operations == ("pop",) else 0))
    contender = kind(path, durable)
    contender.fill(items)
    contender.close()
    clients = (
        (kind, durable, operations, path, (number + 1) * IDS, length) for number in range(count)
    )
    with processes(run_client, clients) as pipes:
        pushed, popped, done, longest = zip(*map(received, pipes))
    contender = kind(path, durable)
    account([items, *pushed], [contender.drain(), *popped])
    contender.close()
    shutil.rmtree(path)
    return sum(done) / length, min(done) / max(done), max(longest)


def compare_processes(
    root: Path,
    counts: Sequence[int],
    rounds: int,
    length: float,
    durable: bool,
    kinds: list[type[Storage]],
) -> None:
    """Compare this library with its peers: pushes, pops, and both in turns."""
    for mode, operations in MODES.items():
        title = f"{mode}, {'durable' if durable else 'no fsync'}"
        cases = [(kind, count) for kind in kinds for count in counts]
        order = [case for _ in range(rounds) for case in random.sample(cases, len(cases))]
        runs: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
        for kind, count in track(order, title, console=console, transient=True):
            run = run_processes(kind, durable, operations, count, length, root)
            runs[kind.name, count].append(run)
        columns = ((f"{count}", "slowest/fastest", "max ms") for count in counts)
        table = new_table(f"{title}: operations a second", *chain.from_iterable(columns))
        for kind in kinds:
            row = []
            for count in counts:
                rate, fairness, longest = zip(*runs[kind.name, count])
                row += [f"{statistics.median(rate):,.0f}", f"{statistics.median(fairness):.2f}"]
                row.append(f"{1e3 * max(longest):.0f}")
            table.add_row(kind.name, *row)
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.embedded", description=__doc__.split("\n")[0]
    )
    for part, text in PARTS.items():
        parser.add_argument(f"--{part}", help=text, action="append_const", const=part, dest="parts")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.add_argument("--rounds", type=int, help="default: 5; 1 with --quick")
    parser.add_argument("--seconds", type=float, help="of a run; default: 3; 0.3 with --quick")
    parser.add_argument("--counts", type=int, nargs="+", help="of processes; default: 1 2 4 8")
    parser.add_argument("--durability", choices=["os", "full"], help="default: both")
    parser.add_argument("--directory", help="where databases are made; a real disk, not tmpfs")
    given = parser.parse_args()
    parts = given.parts or [*PARTS]
    rounds = given.rounds or (1 if given.quick else 5)
    length = given.seconds or (0.3 if given.quick else 3)
    counts = sorted(given.counts or ((1, 4) if given.quick else (1, 2, 4, 8)))
    durabilities = {"os": [False], "full": [True], None: [False, True]}[given.durability]
    kinds = storages()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-", dir=given.directory) as folder:
        root = Path(folder)
        print_machine(root)
        for durable in durabilities:
            if "one-thread" in parts:
                count = 100 if durable or given.quick else 1000
                compare_operations(root, rounds, count, durable, kinds)
            if "processes" in parts:
                compare_processes(root, counts, rounds, length, durable, kinds)
        if "threads" in parts:
            compare_threads(root, rounds)


if __name__ == "__main__":
    main()
