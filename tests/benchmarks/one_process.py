"""One process: Python calls, the time of an operation, threads, and long queues."""

from __future__ import annotations

import resource
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from rich.progress import track

from fdbqueue import Claim
from tests.benchmarks.contenders import (
    ID,
    VALUE,
    Contender,
    Heap,
    Library,
    PersistQueue,
    shared_contenders,
)
from tests.benchmarks.report import console, new_table, seconds


def count_calls(root: Path) -> None:
    """Count the Python functions that a warm operation calls."""
    library = Library(root / "calls", durable=False)
    db, queue = library.db, library.queue
    for _ in range(1000):
        library.push(ID)
    claims: list[Claim] = []
    operations: dict[str, Callable[[], object]] = {
        "push": lambda: queue.push(db, VALUE, 1),
        "pop": lambda: queue.pop(db),
        "claim": lambda: claims.append(queue.claim(db)),
        "ack": lambda: queue.ack(db, claims.pop()),
    }
    table = new_table("Python functions called, median of 25", *operations)
    for title, keep in (("fdbqueue", None), ("the same, keeping done items", 1_000)):
        queue.configure(db, keep=keep)
        queue.ack(db, queue.claim(db))
        counts: dict[str, list[int]] = defaultdict(list)
        for _ in range(25):
            for name, operation in operations.items():
                counts[name].append(calls_of(operation))
        table.add_row(title, *(f"{statistics.median(each):.0f}" for each in counts.values()))
    console.print(table)


def calls_of(operation: Callable[[], object]) -> int:
    """Count the Python functions that an operation calls in this thread."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return calls - 1  # without `operation` itself


def compare_operations(
    root: Path, rounds: int, count: int, durable: bool, with_peers: bool
) -> None:
    """Measure push, pop and peek of each contender in turn, on a queue of 1,000 items."""
    contenders: dict[str, Contender] = {
        each.name: each(root / f"one-{each.name}-{durable}", durable)
        for each in shared_contenders(with_peers)
    }
    if durable and with_peers and find_spec("persistqueue"):
        contenders[PersistQueue.name] = PersistQueue(root / "one-persist-queue")
    elif not durable and with_peers:
        contenders[Heap.name] = Heap()
    for contender in contenders.values():
        for _ in range(1000):
            contender.push(ID)
    title = f"one thread, {'durable' if durable else 'no fsync'}"
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in track(range(rounds), title, console=console, transient=True):
        for name, contender in contenders.items():
            times[name, "push"].append(seconds(partial(contender.push, ID), count))
            times[name, "peek"].append(seconds(contender.peek, count))
            times[name, "pop"].append(seconds(contender.pop, count))
    operations = ("push", "pop", "peek")
    base = "bare SQLite" if with_peers else "fdbqueue"
    table = new_table(
        title, *(f"{each} µs" for each in operations), *(f"{each} / {base}" for each in operations)
    )
    medians = {key: statistics.median(values) for key, values in times.items()}
    for name in contenders:
        table.add_row(
            name,
            *(f"{medians[name, each] * 1e6:.1f}" for each in operations),
            *(f"{medians[name, each] / medians[base, each]:.2f}" for each in operations),
        )
    console.print(table)


def threads_rate(operation: Callable[[], object], threads: int, count: int) -> float:
    """Return the operations a second of several threads on one database."""

    def work() -> None:
        for _ in range(count // threads):
            operation()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count / (time.perf_counter() - start)


def compare_threads(root: Path, rounds: int) -> None:
    """Compare 16 threads, whose commits share fsyncs, with one thread."""
    durable, fast = Library(root / "threads-full", True), Library(root / "threads-os", False)
    for library in (durable, fast):
        library.fill(range(1000))
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    cases = {
        "durable, 1 thread": (durable, 1, 320),
        "durable, 16 threads": (durable, 16, 1600),
        "no fsync, 1 thread": (fast, 1, 1600),
        "no fsync, 16 threads": (fast, 16, 1600),
    }
    for _ in track(range(rounds), "threads", console=console, transient=True):
        for name, (library, threads, count) in cases.items():
            rates[name, "push"].append(threads_rate(partial(library.push, ID), threads, count))
            rates[name, "pop"].append(threads_rate(library.pop, threads, count))
    table = new_table("operations a second, 1 and 16 threads", "push/s", "pop/s")
    for name in cases:
        medians = (statistics.median(rates[name, each]) for each in ("push", "pop"))
        table.add_row(name, *(f"{median:,.0f}" for median in medians))
    console.print(table)


def compare_lengths(root: Path, rounds: int) -> None:
    """Measure pops by the length of the queue and the number of priorities."""
    cases = {
        "1,000 items, 1 priority": (1_000, 1),
        "1,000,000 items, 1 priority": (1_000_000, 1),
        "1,000,000 items, 10,000 priorities": (1_000_000, 10_000),
    }
    libraries = {}
    for name, (length, priorities) in cases.items():
        library = Library(root / f"length-{length}-{priorities}", durable=False)
        for first in track(range(0, length, 1000), name, console=console, transient=True):
            levels = [number * 7919 % priorities for number in range(first, first + 1000)]
            library.queue.push_many(library.db, [VALUE] * 1000, priorities=levels)
        libraries[name] = library
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times: dict[str, list[float]] = defaultdict(list)
    for _ in track(range(rounds), "pops", console=console, transient=True):
        for name, library in libraries.items():
            times[name].append(seconds(library.pop, 200))
            library.queue.push_many(library.db, [VALUE] * 200, 0)
    table = new_table(f"pops; this process used up to {memory:.0f} MB", "pop µs", "ratio")
    shortest = statistics.median(times[next(iter(cases))])
    for name, values in times.items():
        median = statistics.median(values)
        table.add_row(name, f"{median * 1e6:.1f}", f"{median / shortest:.2f}")
    console.print(table)
