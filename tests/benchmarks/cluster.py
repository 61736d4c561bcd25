"""Measure what a queue costs on a cluster that grows or fails: counts first, then times.

    python -m tests.benchmarks.cluster                    all parts, with a server of its own
    python -m tests.benchmarks.cluster --only due         one part
    python -m tests.benchmarks.cluster --engine embedded  the parts that both engines have

The table says what was wanted, what was measured here, and what 6469bf6 took elsewhere.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import fdbqueue
from fdbqueue import PriorityQueue
from tests.benchmarks.report import console, new_table, print_machine
from tests.support.cluster import Server, find_programs
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of

CONSUMER = """
import sys, threading, time, fdbqueue
url, name, threads, begin, stop = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
db = fdbqueue.open(url)
jobs = fdbqueue.PriorityQueue.named(db, name)
jobs.peek(db)  # connects to a cluster
times = []

def consume():
    while time.time() < begin:
        time.sleep(0.001)
    while time.time() < stop:
        began = time.monotonic()
        claim = jobs.claim(db, lease=600)
        if claim is not None:
            times.append((time.time() - begin, time.monotonic() - began))
            jobs.ack(db, claim)

all_threads = [threading.Thread(target=consume) for _ in range(int(threads))]
for thread in all_threads:
    thread.start()
for thread in all_threads:
    thread.join()
for ended, seconds in times:
    print(ended, seconds)
"""


# Answers each line of its input with the transactions and commits since the last one.
COUNTED = """
import asyncio, sys, threading, fdbqueue
from fdbqueue import aio
from fdbqueue.worker.worker import Worker
from tests.support.counting import CountingDatabase

url, name, consumers = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = CountingDatabase(fdbqueue.open(url))
jobs = fdbqueue.PriorityQueue.named(db, name)

def answer():
    for _ in sys.stdin:
        print(db.transactions, db.commits, flush=True)
        db.transactions = db.commits = 0

async def consume():
    await aio.PriorityQueue(jobs).claim(db, wait=600)

async def consume_all():
    await asyncio.gather(*[consume() for _ in range(consumers)])

threading.Thread(target=answer).start()  # keeps the process alive
if consumers:
    asyncio.run(consume_all())
else:
    Worker(db, jobs, print).run()
"""


_SETTLE = 20.0  # seconds

# Works off a queue until it is killed.
WORKER = """
import sys, fdbqueue
url, name, concurrency, in_transaction = sys.argv[1:]
db = fdbqueue.open(url)
jobs = fdbqueue.PriorityQueue.named(db, name)

def ignore(item):
    pass

def write(tr, item):
    tr[b"done" + item.key] = b""

handler = write if in_transaction == "True" else ignore
fdbqueue.Worker(db, jobs, handler, concurrency=int(concurrency)).run()
"""


class Row(NamedTuple):
    """One row of the table."""

    what: str
    wanted: str
    measured: str
    before: str


class Consumers:
    """Processes that claim and acknowledge from one moment to another."""

    def __init__(self, url: str, name: str, begin: float, seconds: float) -> None:
        self.begin, self.end = begin, begin + seconds
        arguments = [url, name, "2", str(begin), str(self.end)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", CONSUMER, *arguments], stdout=subprocess.PIPE, text=True
            )
            for _ in range(4)
        ]

    def times(self) -> list[tuple[float, float]]:
        """Return when each claim ended, in seconds since the beginning, and how long it took."""
        lines = [
            line for process in self._processes for line in process.communicate()[0].split("\n")
        ]
        claims = [tuple(map(float, line.split())) for line in lines if line]
        return sorted((ended, seconds) for ended, seconds in claims)


def due(db: Any, url: str, n: int, leases: bool) -> list[Row]:
    """Let `n` delays or leases end in the same second, while 8 consumers take items."""
    kind = "leases" if leases else "delays"
    name = f"due-{kind}-{os.getpid()}"
    jobs = PriorityQueue.named(db, name)
    loading = n / 4_000 + 10  # seconds
    when = datetime.now(timezone.utc) + timedelta(seconds=loading)
    for begin in range(0, n, 1_000):
        numbers = range(begin, begin + 1_000)
        if leases:
            jobs.push_many(db, numbers)
            jobs.claim(db, n=1_000, lease=max(0.01, when.timestamp() - time.time()))
        else:
            jobs.push_many(db, numbers, at=when)
    jobs.push_many(db, range(n, n + 5_000), priorities=[1] * 5_000)
    assert time.time() < when.timestamp() - 3, "loading took too long"
    consumers = Consumers(url, name, when.timestamp(), 30)
    layout = layout_of(jobs)
    timers = layout.range_of(layout.leases if leases else layout.dues)
    time.sleep(max(0, when.timestamp() - time.time()))
    last = max(
        fdbqueue.transactional(lambda tr: [row.key for row in tr.get_range(*timers)][-1:])(db),
        default=b"",
    )
    left = n
    while left and time.time() < consumers.end:
        time.sleep(0.1)
        rows = fdbqueue.transactional(
            lambda tr: list(tr.snapshot.get_range(timers[0], last + b"\0", limit=1))
        )(db)
        left = len(rows)
    seconds = time.time() - consumers.begin
    times = consumers.times()
    first = statistics.median(spent for _, spent in times[:100]) * 1000 if times else float("inf")
    jobs.clear(db)
    back = f"{n / seconds:,.0f} a second" if not left else f"not in {seconds:.0f} s"
    return [
        Row(
            f"{n:,} {kind} over at once: a claim, median of the first 100",
            "100 ms",
            f"{first:.0f} ms",
            "7.9 s for 5,000 delays",
        ),
        Row(f"{n:,} {kind} over at once: back in their places", "5,000 a second", back, ""),
        Row(f"{n:,} {kind} over at once: claims in 30 s", "", f"{len(times):,}", ""),
    ]


class Counted:
    """Processes that wait for jobs and count their transactions and commits.

    Args:
        url: The database.
        name: The name of the queue.
        processes: The number of processes.
        consumers: How many wait in each; 0 for a worker.
    """

    def __init__(self, url: str, name: str, processes: int, consumers: int) -> None:
        arguments = [sys.executable, "-c", COUNTED, url, name, str(consumers)]
        self._processes = [
            subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]

    def __enter__(self) -> Counted:
        self.counts()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def counts(self) -> tuple[int, int]:
        """Return the transactions and the commits since the last call."""
        transactions = commits = 0
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            counts = [*map(int, process.stdout.readline().split())]
            transactions, commits = transactions + counts[0], commits + counts[1]
        return transactions, commits


def empty_queue(db: Any, part: str) -> tuple[PriorityQueue, str]:
    """Return a queue that has been used, and its name."""
    name = f"{part}-{os.getpid()}"
    jobs = PriorityQueue.named(db, name)
    jobs.push(db, "first")
    jobs.ack(db, jobs.claim(db))
    return jobs, name


def idle(db: Any, url: str, _: int) -> list[Row]:
    """Let 20 workers wait without a job."""
    name = empty_queue(db, "idle")[1]
    with Counted(url, name, 20, 0) as workers:
        time.sleep(10)
        workers.counts()
        time.sleep(120)
        transactions, commits = workers.counts()
    return [
        Row(
            "20 idle workers: transactions of each in a second",
            "0.05",
            f"{transactions / 20 / 120:.3f}",
            "4.65",
        ),
        Row("20 idle workers: commits in 2 minutes", "0", f"{commits}", "5,600"),
    ]


def wakeups(db: Any, url: str, _: int) -> list[Row]:
    """Push one item while consumers wait, in one process and in several."""
    rows: list[Row] = []
    for processes, consumers in ((1, 1), (1, 10), (1, 100), (1, 1_000), (10, 1), (10, 100)):
        jobs, name = empty_queue(db, f"wakeups-{processes}-{consumers}")
        counting = CountingDatabase(db)
        with Counted(url, name, processes, consumers) as waiting:
            time.sleep(5)
            for push in ("first", "next")[: processes * consumers]:
                waiting.counts()
                counting.clear()
                jobs.push(counting, "job")
                time.sleep(3)
                transactions, commits = waiting.counts()
                total = f"{transactions + counting.transactions} and {commits + counting.commits}"
                what = f"{push} push, {processes * consumers:,} consumers, processes: {processes}"
                before = "867 and 205" if processes * consumers == 100 else ""
                rows.append(Row(f"{what}: transactions and commits", "5 and 3", total, before))
    return rows


def job(db: Any, _url: str, _: int) -> list[Row]:
    """Count the mutations of one job after another, and measure jobs that stay as done."""
    rows: list[Row] = []
    for keep, result in ((None, None), (1_000_000, None), (1_000_000, "result"), (100, "result")):
        jobs = empty_queue(db, f"job-{keep}-{result}")[0]
        jobs.configure(db, keep=keep)
        counting = CountingDatabase(db)
        mutations: list[list[bytes]] = []
        times: list[float] = []
        for _ in range(2_000):
            counting.clear()
            began = time.perf_counter()
            jobs.push(counting, "job")
            jobs.ack(counting, jobs.claim(counting), result=result)
            times.append(time.perf_counter() - began)
            mutations.append(counting.mutations)
        receipts = layout_of(jobs).receipts
        shared = [key for key in mutations[0] if key in mutations[1] and not receipts.contains(key)]
        n = statistics.median(map(len, mutations))
        total = f"{n:.0f} and {len(shared)}; {1000 * statistics.median(times):.2f} ms"
        kept = "" if keep is None else f", keep={keep:,}" + (", result=" if result else "")
        wanted, before = ("", "") if kept else ("11 and 3", "15 and 6")
        rows.append(Row(f"a job{kept}: mutations, those to shared keys", wanted, total, before))
    return rows


def limits(db: Any, _url: str, _: int) -> list[Row]:
    """Claim and acknowledge with one slot left of limits of several sizes."""
    rows: list[Row] = []
    without = 0.0
    for limit in (None, 10, 1_000, 10_000):
        jobs = empty_queue(db, f"limit-{limit}")[0]
        jobs.configure(db, concurrency=limit)
        for begin in range(0, limit or 0, 1_000):
            n = min(1_000, (limit or 0) - begin)
            jobs.push_many(db, range(n))
            jobs.claim(db, n=n - (begin + n == limit), lease=3600)
        jobs.push_many(db, range(500))
        times: list[float] = []
        for _ in range(500):
            began = time.perf_counter()
            claim = jobs.claim(db)
            times.append(time.perf_counter() - began)
            jobs.ack(db, claim)
        median = statistics.median(times)
        without = without or median
        what = (
            f"a claim under a limit of {limit:,}, one slot left" if limit else "a claim, no limit"
        )
        ratio = f"{median * 1000:.2f} ms, {median / without:.2f} times"
        rows.append(
            Row(what, "2 times" if limit else "", ratio, "30 ms" if limit == 10_000 else "")
        )
    return rows


def rates(db: Any, url: str, n: int, processes: int, concurrency: int, tr: bool) -> list[float]:
    """Have workers work off `n` jobs, pushed meanwhile; return the rate in each tenth of them."""
    jobs, name = empty_queue(db, f"rates-{processes}-{concurrency}-{tr}")
    arguments = [sys.executable, "-c", WORKER, url, name, str(concurrency), str(tr)]
    pushed = min(n, 20_000)
    for begin in range(0, pushed, 1_000):
        jobs.push_many(db, range(begin, min(n, begin + 1_000)))
    workers = [subprocess.Popen(arguments) for _ in range(processes)]
    moments: list[tuple[float, int]] = []
    first = jobs.stats(db).total_completed
    try:
        while (taken := jobs.stats(db).total_completed - first) < n:
            moments.append((time.monotonic(), taken))
            while pushed < min(n, taken + 20_000):
                jobs.push_many(db, range(1_000))
                pushed += 1_000
            time.sleep(0.05)
        moments.append((time.monotonic(), taken))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    moments = [moment for moment in moments if moment[1] > n / 50]  # after the workers' start
    tenths: list[float] = []
    for tenth in range(10):
        low, high = n / 50 + tenth * n * 0.098, n / 50 + (tenth + 1) * n * 0.098
        within = [moment for moment in moments if low <= moment[1] <= high]
        (began, before), (ended, after) = within[0], within[-1]
        tenths.append((after - before) / (ended - began) if ended > began else 0.0)
    return tenths


def handlers(db: Any, url: str, _: int) -> list[Row]:
    """Have workers call `handler(tr, item)`, with a commit for each job.

    After each run the server deletes what the jobs have cleared, which would slow the next one.
    """
    rows: list[Row] = []
    for processes, concurrency, wanted, before in (
        (1, 1, "", ""),
        (1, 16, "", "1,521"),
        (4, 1, "", ""),
        (4, 16, "4,000", "2,604"),
    ):
        rate = statistics.median(rates(db, url, 20_000, processes, concurrency, True))
        time.sleep(_SETTLE)
        what = f"handler(tr, item), {processes} processes, concurrency {concurrency}: jobs a second"
        rows.append(Row(what, wanted, f"{rate:,.0f}", before))
    return rows


def tombstones(db: Any, url: str, n: int) -> list[Row]:
    """Have workers work off very many jobs of one queue without a pause."""
    tenths = rates(db, url, 10 * n, 2, 64, False)
    measured = f"{tenths[9] / tenths[0]:.2f} ({tenths[9]:,.0f} and {tenths[0]:,.0f} a second)"
    return [Row(f"{10 * n:,} jobs: claims in the last tenth / the first", "0.8", measured, "")]


@contextmanager
def database(engine: str, storage: str) -> Iterator[tuple[Any, str]]:
    """Open a new database."""
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-"))
        )
        print_machine(directory)
        url = f"embedded:{directory}/db"
        if engine == "cluster":
            programs = find_programs()
            if programs is None:
                sys.exit("there is no fdbserver and fdbcli on PATH or under FDB_HOME")
            server = stack.enter_context(Server(directory, *programs, storage=storage))
            url = str(server.cluster_file)
        yield fdbqueue.open(url), url


PARTS: dict[str, Callable[[Any, str, int], list[Row]]] = {
    "idle": idle,
    "wakeups": wakeups,
    "job": job,
    "limits": limits,
    "handlers": handlers,
    "tombstones": tombstones,
    "delays": lambda db, url, n: due(db, url, n, leases=False),
    "leases": lambda db, url, n: due(db, url, n, leases=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.cluster", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--engine", choices=["cluster", "embedded"], default="cluster")
    parser.add_argument("--storage", default="ssd", help="storage engine of the cluster")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--items", type=int, default=100_000, help="items that are due at once")
    arguments = parser.parse_args()
    with database(arguments.engine, arguments.storage) as (db, url):
        table = new_table(f"on {arguments.engine}", "wanted", "measured", "before")
        for part in arguments.only or PARTS:
            for row in PARTS[part](db, url, arguments.items):
                table.add_row(*row)
        console.print(table)


if __name__ == "__main__":
    main()
