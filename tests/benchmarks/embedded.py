"""The embedded engine beside bare SQLite and other queues on one machine: one table, one run.

    python tests/benchmarks/embedded.py            everything, some minutes
    python tests/benchmarks/embedded.py --quick    the first two tables only
    python tests/benchmarks/embedded.py --calls    the first table only: no times, so no noise

Every contender does the same rounds in turn, and each figure is the median of its rounds: only the
ratios within one run mean anything. Peers are measured if they are installed:
`pip install huey persist-queue diskcache`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import track
from rich.table import Table

import fdbqueue
from fdbqueue import Claim, PriorityQueue

VALUE = {
    "id": 12345678,
    "to": "ada@example.com",
    "subject": "a hundred bytes of JSON",
    "n": [1, 2, 3],
    "x": "abc",
}
PAYLOAD = json.dumps(VALUE, separators=(",", ":")).encode()

console = Console(width=110)


class Contender(Protocol):
    """Something that can push, pop and peek one value."""

    def push(self) -> object: ...
    def pop(self) -> object: ...
    def peek(self) -> object: ...


class Library:
    """This library, given the database: a transaction of its own for each operation."""

    def __init__(self, path: Path, durability: str) -> None:
        self.db = fdbqueue.open(f"embedded:{path}", durability=durability)
        self.queue = PriorityQueue.named(self.db, "q")

    def push(self) -> object:
        return self.queue.push(self.db, VALUE, 1)

    def pop(self) -> object:
        return self.queue.pop(self.db)

    def peek(self) -> object:
        return self.queue.peek(self.db)


class BareSqlite:
    """The statements that the library cannot do without, on its own tables, and nothing else.

    A push reads the last item of the level and two counters, and writes an item and the counters in
    one statement; a pop reads the first item, deletes it, and writes the counters.
    """

    def __init__(self, path: Path, synchronous: str) -> None:
        path.mkdir()
        self.run = sqlite3.connect(path / "bare.sqlite", isolation_level=None).execute
        self.run("PRAGMA journal_mode=WAL")
        self.run(f"PRAGMA synchronous={synchronous}")
        self.run("PRAGMA wal_autocheckpoint=2000")
        self.run("CREATE TABLE kv (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        self.number = 0

    def counted(self, change: int) -> list[bytes]:
        """The two counters, changed, as parameters of the statement that writes them."""
        parameters = []
        for key in (b"\x02q\x00\x15\x01\x15\x01", b"\x02q\x00\x15\x02"):
            row = self.run("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
            value = int.from_bytes(row[0], "little") if row else 0
            parameters += [key, (value + change).to_bytes(8, "little")]
        return parameters

    def rows(self, order: str) -> list[Any]:
        return self.run(
            f"SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT ?",
            (b"\x02q\x00\x14\x15\x01\x00", b"\x02q\x00\x14\x15\x01\xff", 1),
        ).fetchall()

    def push(self) -> object:
        self.run("BEGIN")
        self.rows("DESC")
        self.number += 1
        key = b"\x02q\x00\x14\x15\x01\x18%8d" % self.number + b"\x01................\x00"
        self.run("REPLACE INTO kv VALUES (?, ?), (?, ?), (?, ?)", [key, PAYLOAD, *self.counted(1)])
        return self.run("COMMIT")

    def pop(self) -> object:
        self.run("BEGIN")
        ((key, value),) = self.rows("")
        self.run("DELETE FROM kv WHERE key = ?", (key,))
        self.run("REPLACE INTO kv VALUES (?, ?), (?, ?)", self.counted(-1))
        self.run("COMMIT")
        return value

    def peek(self) -> object:
        self.run("BEGIN")
        rows = self.rows("")
        self.run("COMMIT")
        return rows


class Heap:
    """The standard library's heap: no durability, no other process."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, bytes]] = []
        self.number = 0

    def push(self) -> object:
        self.number += 1
        heapq.heappush(self.heap, (1, self.number, json.dumps(VALUE).encode()))
        return self.number

    def pop(self) -> object:
        return json.loads(heapq.heappop(self.heap)[2])

    def peek(self) -> object:
        return json.loads(self.heap[0][2])


class Huey:
    """huey's SqliteStorage, a priority queue in SQLite."""

    def __init__(self, path: Path, durable: bool) -> None:
        from huey.storage import SqliteStorage

        path.mkdir()
        self.storage = SqliteStorage(filename=str(path / "huey.db"), fsync=durable)

    def push(self) -> object:
        return self.storage.enqueue(json.dumps(VALUE).encode(), 1)

    def pop(self) -> object:
        return json.loads(self.storage.dequeue())

    def peek(self) -> object:
        return self.storage.enqueued_items(1)


class PersistQueue:
    """persist-queue's FIFOSQLiteQueue; it has no switch for fsync (WAL, synchronous=FULL)."""

    def __init__(self, path: Path) -> None:
        import persistqueue
        from persistqueue.serializers import json as json_serializer

        self.queue = persistqueue.FIFOSQLiteQueue(
            str(path),
            multithreading=True,
            auto_commit=True,
            serializer=json_serializer,
        )

    def push(self) -> object:
        return self.queue.put(VALUE)

    def pop(self) -> object:
        return self.queue.get(block=False)

    def peek(self) -> object:
        return self.queue.size  # it has no peek


class DiskCache:
    """diskcache's Deque; a queue, without priorities."""

    def __init__(self, path: Path, durable: bool) -> None:
        import diskcache

        cache = diskcache.Cache(
            str(path), eviction_policy="none", sqlite_synchronous=2 if durable else 1
        )
        self.deque = diskcache.Deque.fromcache(cache)

    def push(self) -> object:
        return self.deque.append(json.dumps(VALUE))

    def pop(self) -> object:
        return json.loads(self.deque.popleft())

    def peek(self) -> object:
        return json.loads(self.deque.peekleft())


def contenders(root: Path, durable: bool) -> dict[str, Contender]:
    """Everybody who is at hand, each in a directory of its own."""
    kind = "durable" if durable else "fast"
    made: dict[str, Callable[[], Contender]] = {
        "fdbqueue": lambda: Library(root / f"{kind}-library", "full" if durable else "os"),
        "bare SQLite": lambda: BareSqlite(root / f"{kind}-bare", "FULL" if durable else "NORMAL"),
        "huey": lambda: Huey(root / f"{kind}-huey", durable),
        "diskcache": lambda: DiskCache(root / f"{kind}-diskcache", durable),
    }
    if durable:
        made["persist-queue"] = lambda: PersistQueue(root / f"{kind}-persist")
    else:
        made["heapq"] = Heap
    found = {}
    for name, make in made.items():
        try:
            found[name] = make()
        except ImportError:
            console.print(f"[dim]{name} is not installed[/dim]")
    return found


def count_calls(root: Path) -> None:
    """Count the Python functions that run in an operation, once everything is warm."""
    library = Library(root / "calls", "os")
    db, queue = library.db, library.queue
    for _ in range(1000):
        library.push()
    held: list[Claim] = []
    operations: dict[str, Callable[[], object]] = {
        "push": library.push,
        "pop": library.pop,
        "claim": lambda: held.append(queue.claim(db)),
        "ack": lambda: queue.ack(db, held.pop()),
    }
    counts: dict[str, list[int]] = {name: [] for name in operations}
    for _ in range(25):
        for name, operation in operations.items():
            counts[name].append(calls_of(operation))
    table = Table(title="Python functions called, median of 25")
    for name in ("", *operations):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("fdbqueue", *(f"{statistics.median(each):.0f}" for each in counts.values()))
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
    return calls - 1  # of the operation itself, which the benchmark wraps


def microseconds(action: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - began) / count * 1e6


def compare(root: Path, durable: bool, rounds: int, count: int) -> None:
    """Push, pop and peek of every contender, in turn, on a queue of a thousand."""
    everyone = contenders(root, durable)
    times: dict[str, dict[str, list[float]]] = {name: {} for name in everyone}
    for contender in everyone.values():
        for _ in range(1000):
            contender.push()
    title = "one thread, durable: on disk when answered" if durable else "one thread, no fsync"
    for _ in track(range(rounds), title, console=console, transient=True):
        for name, contender in everyone.items():
            for operation in ("push", "peek", "pop"):
                time_taken = microseconds(getattr(contender, operation), count)
                times[name].setdefault(operation, []).append(time_taken)
    table = Table(title=title)
    for column in ("", "push us", "pop us", "peek us", "push / bare", "pop / bare", "peek / bare"):
        table.add_column(column, justify="right" if column else "left")
    bare = {op: statistics.median(values) for op, values in times["bare SQLite"].items()}
    for name, operations in times.items():
        medians = {op: statistics.median(values) for op, values in operations.items()}
        table.add_row(
            name,
            *(f"{medians[op]:.1f}" for op in ("push", "pop", "peek")),
            *(f"{medians[op] / bare[op]:.2f}" for op in ("push", "pop", "peek")),
        )
    console.print(table)


def threads_rate(library: Library, threads: int, operation: str, count: int) -> float:
    """Operations a second of so many threads on one database."""
    action = getattr(library, operation)

    def work() -> None:
        for _ in range(count // threads):
            action()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count / (time.perf_counter() - began)


def compare_threads(root: Path, rounds: int) -> None:
    """How far commits share their fsyncs."""
    durable, fast = Library(root / "threads-full", "full"), Library(root / "threads-os", "os")
    for library in (durable, fast):
        library.queue.push_many(library.db, [VALUE] * 1000, 1)
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in track(range(rounds), "threads", console=console, transient=True):
        for operation in ("push", "pop"):
            for name, library, threads, count in (
                ("durable, 1 thread", durable, 1, 320),
                ("durable, 16 threads", durable, 16, 1600),
                ("no fsync, 1 thread", fast, 1, 1600),
                ("no fsync, 16 threads", fast, 16, 1600),
            ):
                rate = threads_rate(library, threads, operation, count)
                rates.setdefault((name, operation), []).append(rate)
                if operation == "push":
                    library.queue.pop_many(library.db, count)
                else:
                    library.queue.push_many(library.db, [VALUE] * count, 1)
    table = Table(title="operations a second, 1 and 16 threads")
    for column in ("", "push/s", "pop/s"):
        table.add_column(column, justify="right" if column else "left")
    for name in dict.fromkeys(name for name, _ in rates):
        table.add_row(
            name, *(f"{statistics.median(rates[name, op]):,.0f}" for op in ("push", "pop"))
        )
    console.print(table)


PROCESS = """
import json, sys, fdbqueue
path, durability, worker, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
db = fdbqueue.open("embedded:" + path, durability=durability)
queue = fdbqueue.PriorityQueue.named(db, "q")
popped = []
print("ready", flush=True); sys.stdin.readline()
for number in range(count):
    queue.push(db, [worker, number], number % 3)
    item = queue.pop(db)
    if item is not None:
        popped.append(tuple(item.value))
print(json.dumps(popped), flush=True)
"""


def processes_rate(root: Path, durability: str, processes: int, count: int) -> float:
    """Operations a second of processes that push and pop together; checks that none is lost."""
    path = Path(tempfile.mkdtemp(dir=root))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(path), durability, str(n), str(count // processes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("\n")
        worker.stdin.flush()
    outputs = [worker.communicate()[0] for worker in workers]
    elapsed = time.perf_counter() - began
    popped = [tuple(value) for output in outputs for value in json.loads(output)]
    with fdbqueue.open(f"embedded:{path}") as db:
        queue = PriorityQueue.named(db, "q")
        popped += [tuple(item.value) for item in queue.items(db)]
        assert fdbqueue.check(db, queue).ok
    expected = [(n, number) for n in range(processes) for number in range(count // processes)]
    assert sorted(popped) == expected, "items were lost or doubled"
    return 2 * count / elapsed


def compare_processes(root: Path, rounds: int) -> None:
    table = Table(title="push and pop together, operations a second; nothing lost")
    for column in ("", "1 process", "4 processes", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for durability, count in (("os", 8000), ("full", 2000)):
        rates: dict[int, list[float]] = {1: [], 4: []}
        for _ in track(range(rounds), f"processes, {durability}", console=console, transient=True):
            for processes in rates:
                rates[processes].append(processes_rate(root, durability, processes, count))
        one, four = statistics.median(rates[1]), statistics.median(rates[4])
        table.add_row(durability, f"{one:,.0f}", f"{four:,.0f}", f"{four / one:.2f}")
    console.print(table)


def compare_lengths(root: Path, rounds: int) -> None:
    """The latency of a pop, by the length of the queue and the number of priorities."""
    cases = {
        "1,000 items, 1 priority": (1_000, 1),
        "1,000,000 items, 1 priority": (1_000_000, 1),
        "1,000,000 items, 10,000 priorities": (1_000_000, 10_000),
    }
    libraries = {}
    for name, (length, priorities) in cases.items():
        library = Library(root / f"length-{length}-{priorities}", "os")
        for at in track(range(0, length, 1000), name, console=console, transient=True):
            levels = [(at + n) * 7919 % priorities for n in range(1000)]
            library.queue.push_many(library.db, [VALUE] * 1000, priorities=levels)
        libraries[name] = library
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in track(range(rounds), "pops", console=console, transient=True):
        for name, library in libraries.items():
            times[name].append(microseconds(library.pop, 200))
            library.queue.push_many(library.db, [VALUE] * 200, 0)
    table = Table(title=f"latency of a pop; peak memory of this process {memory:.0f} MB")
    for column in ("", "pop us", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    short = statistics.median(times["1,000 items, 1 priority"])
    for name, values in times.items():
        table.add_row(
            name, f"{statistics.median(values):.1f}", f"{statistics.median(values) / short:.2f}"
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="only one thread without fsync")
    parser.add_argument("--calls", action="store_true", help="only count calls")
    parser.add_argument("--directory", help="where the databases are made; a real disk, not tmpfs")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="fdbqueue-benchmark-", dir=arguments.directory))
    try:
        count_calls(root)
        if arguments.calls:
            return
        compare(root, durable=False, rounds=arguments.rounds, count=1000)
        if not arguments.quick:
            compare(root, durable=True, rounds=arguments.rounds, count=100)
            compare_threads(root, arguments.rounds)
            compare_processes(root, max(3, arguments.rounds // 3))
            compare_lengths(root, arguments.rounds)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
