"""Compare workers with other job queues.

    python -m tests.benchmarks.tasks                   the embedded engine, ten minutes
    python -m tests.benchmarks.tasks fdb.cluster       a cluster as well; use a fresh one
    python -m tests.benchmarks.tasks --quick           small numbers, to see that it runs

Handlers are empty, and every queue is durable. In each round every contender, in random order,
works for about two seconds. Figures are medians of the rounds. Each contender runs one or several
jobs at a time in a process; its better setting counts. Peers are measured if they are installed,
and if `contenders.py` is told their servers: `pip install huey rq redis procrastinate
'psycopg[binary]'`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

import fdbqueue
from fdbqueue import App
from fdbqueue.errors import QueueNotFound
from tests.benchmarks.contenders import Peer, handle, started_jobs, task_peers
from tests.benchmarks.report import console, new_table, print_machine, processes, received

PROCESSES = (1, 4)
SECONDS = 2  # of jobs that a contender does in a round, about
TRIAL = 100  # jobs of the first round
TRIALS = 2  # rounds that do not count, because they find out how many jobs take two seconds
QUEUE = "benchmark"

app = App(keep=None)


@app.job(name="job", queue=QUEUE)
def job(pushed: int) -> None:
    handle(pushed)


def plain_handler(item: Any) -> None:
    handle(item.value["args"][0])


def handler_in_transaction(tr: Any, item: Any) -> None:
    handle(item.value["args"][0])


HANDLERS = {"handler(item)": plain_handler, "handler(tr, item)": handler_in_transaction}


@dataclass(frozen=True)
class Library(Peer):
    """This library, on either engine: what works is a handler, or a job of the app."""

    engine: str
    url: str
    work: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.engine}, {self.work}"

    @property
    def setting(self) -> str:  # type: ignore[override]
        return "fdbqueue.Worker" if self.work in HANDLERS else "@app.job()"

    def open(self) -> None:
        """Bind the app to the database."""
        app.bind(fdbqueue.open(self.url))

    def clear(self) -> None:
        with suppress(QueueNotFound):
            fdbqueue.admin.drop(fdbqueue.open(self.url), QUEUE)

    def load(self, jobs: int) -> None:
        self.clear()
        self.open()
        for begin in range(0, jobs, 1000):
            job.push_many([job.bind(0)] * min(1000, jobs - begin))

    def pusher(self) -> Callable[[int], object]:
        self.open()
        return lambda now: job.push(now)

    def worker(self, concurrency: int, drain: bool) -> Callable[[], object]:
        self.open()
        if self.work not in HANDLERS:
            return lambda: app.work(QUEUE, concurrency=concurrency, drain=drain)
        handler: Any = HANDLERS[self.work]
        worker = fdbqueue.Worker(app.db, app.queue(QUEUE), handler, concurrency=concurrency)
        return lambda: worker.run(drain=drain)


def worker_process(contender: Peer, concurrency: int, drain: bool, pipe: Any) -> None:
    """Run one worker process; send its jobs at the end if it drains the queue, else at once."""
    run = contender.worker(concurrency, drain)
    pipe.send("ready")
    pipe.recv()
    if drain:
        run()
        pipe.send([started_jobs.get() for _ in range(started_jobs.qsize())])
        return

    def report() -> None:
        while True:
            pipe.send(started_jobs.get())

    threading.Thread(target=report, daemon=True).start()
    run()


def rate(contender: Peer, concurrency: int, count: int, calls: int) -> float:
    """Return the calls of `handle` a second until the last one.

    The time that a worker takes to stop does not count; rq's may wait for a second.
    """
    contender.load(calls)
    arguments = [(contender, concurrency, True)] * count
    with processes(worker_process, arguments) as pipes:
        start = time.monotonic_ns()
        ends = [end for pipe in pipes for _, end in received(pipe)]
    if len(ends) < calls:
        raise RuntimeError(f"{contender.name} made {len(ends)} of {calls} calls")
    nanoseconds: int = max(ends) - start
    return len(ends) / nanoseconds * 1e9


def compare_rates(contenders: list[Peer], rounds: int, jobs: int) -> Table:
    """Return a table of the rates by the numbers of processes and of jobs at a time."""
    settings = list(product(PROCESSES, contenders[0].concurrencies))
    cases = [
        (contender, *setting)
        for contender, setting in product(contenders, settings)
        if setting[1] in contender.concurrencies
    ]
    enough = dict.fromkeys(cases, TRIAL)
    rates: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    order = [case for _ in range(rounds + TRIALS) for case in random.sample(cases, len(cases))]
    for number, case in enumerate(track(order, "rates", console=console)):
        contender, count, concurrency = case
        measured = rate(contender, concurrency, count, enough[case])
        if number < TRIALS * len(cases):
            enough[case] = max(TRIAL, min(jobs, int(SECONDS * measured)))
        else:
            rates[contender.name, count, concurrency].append(measured)
    columns = [f"{count} x {concurrency}" for count, concurrency in settings]
    table = new_table("a second: processes x jobs at a time in each", *columns, "setting")
    for contender in contenders:
        found = (rates.get((contender.name, *setting)) for setting in settings)
        figures = [f"{statistics.median(each):,.0f}" if each else "" for each in found]
        table.add_row(contender.name, *figures, contender.setting)
    return table


def push_latencies(contender: Peer, pushes: int) -> list[float]:
    """Return the milliseconds from pushes to the starts of their handlers in an idle process."""
    contender.load(0)
    milliseconds = []
    with processes(worker_process, [(contender, 1, False)]) as (pipe,):
        push = contender.pusher()
        for _ in range(pushes + 3):
            time.sleep(random.uniform(0.02, 0.05))
            push(time.monotonic_ns())
            pushed, began = received(pipe)
            milliseconds.append((began - pushed) / 1e6)
    return milliseconds[3:]  # both connect during the first ones


def compare_latencies(contenders: list[Peer], rounds: int, pushes: int) -> Table:
    """Return a table of the latencies of all rounds."""
    found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    order = [each for _ in range(rounds) for each in random.sample(contenders, len(contenders))]
    for contender in track(order, "latency", console=console, transient=True):
        found[contender.name] += push_latencies(contender, pushes // rounds)
    title = "from the start of a push to the start of its handler, on an idle queue"
    table = new_table(title, "pushes", "median ms", "99 % ms")
    for name, values in found.items():
        cuts = statistics.quantiles(values, n=100)
        table.add_row(name, f"{len(values):,}", f"{cuts[49]:.2f}", f"{cuts[98]:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.tasks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("cluster", nargs="?", help="cluster file, to measure a cluster as well")
    parser.add_argument("--quick", action="store_true", help="small numbers")
    given = parser.parse_args()
    rounds, jobs, pushes = (2, 300, 20) if given.quick else (5, 10_000, 200)
    with tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-") as root:
        print_machine(Path(root))
        urls = {"embedded": f"{root}/jobs"} | ({"cluster": given.cluster} if given.cluster else {})
        ours = [Library(*each, work) for each in urls.items() for work in (*HANDLERS, "job")]
        others = [*task_peers(Path(root))]
        console.print(compare_rates([*ours, *others], rounds, jobs))
        waiting = [each for each in ours if each.work != "handler(tr, item)"]
        contenders = [*waiting, *others]
        console.print(compare_latencies(contenders, rounds, pushes))


if __name__ == "__main__":
    main()
