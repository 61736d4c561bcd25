"""Compare workers with other job queues.

    python -m tests.benchmarks.tasks                   the embedded engine, ten minutes
    python -m tests.benchmarks.tasks fdb.cluster       a cluster as well; use a fresh one
    python -m tests.benchmarks.tasks --quick           small numbers, to see that it runs

Handlers are empty, and every queue is durable. In each round every contender, in random order, does
jobs for about two seconds. Figures are medians of the rounds, and ratios are computed within a
round. Each contender runs one or several jobs at a time in a process; its better setting counts.
Peers are measured if they and their servers are installed: `pip install huey rq dramatiq celery
redis procrastinate 'psycopg[binary]' dbos ballast-py`, `apt-get install redis-server postgresql`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

import fdbqueue
from tests.benchmarks.report import console, new_table, print_machine
from tests.benchmarks.task_contender import SPACE, Contender, Jobs, Library, started_jobs
from tests.benchmarks.task_peers import Ballast, Dbos, Huey, peers

PROCESSES = (1, 4)
SECONDS = 2  # of jobs that a contender does in a round, about
TRIAL = 100  # jobs of the first round
TRIALS = 2  # rounds that do not count, because they find out how many jobs take two seconds
MAX_WAIT = 120  # seconds for a message of a worker process


def worker_process(contender: Contender, concurrency: int, drain: bool, pipe: Any) -> None:
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


def received(pipe: Any) -> Any:
    if not pipe.poll(MAX_WAIT):
        raise RuntimeError(f"a worker did not answer for {MAX_WAIT} seconds")
    return pipe.recv()


@contextmanager
def workers(
    contender: Contender, concurrency: int, processes: int, drain: bool
) -> Iterator[list[Any]]:
    """Start worker processes; yield pipes to them when all have begun to work."""
    context = multiprocessing.get_context("spawn")
    started, pipes = [], []
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            arguments = (contender, concurrency, drain, theirs)
            process = context.Process(target=worker_process, args=arguments, daemon=True)
            process.start()
            theirs.close()  # the end of the process closes its pipe
            started.append(process)
            pipes.append(ours)
        for pipe in pipes:
            received(pipe)
        for pipe in pipes:
            pipe.send("go")
        yield pipes
    finally:
        for process in started:
            if not drain:
                process.terminate()
            process.join(5)
            process.kill()
            process.join()


def rate(contender: Contender, concurrency: int, processes: int, jobs: int) -> float:
    """Return the jobs a second from the moment all processes are ready until the last job starts.

    The time that a worker takes to stop does not count; rq's may wait for a second.
    """
    contender.load(jobs)
    with workers(contender, concurrency, processes, drain=True) as pipes:
        start = time.monotonic_ns()
        ends = [end for pipe in pipes for _, end in received(pipe)]
    if len(ends) < jobs:
        raise RuntimeError(f"{contender.name} did {len(ends)} of {jobs} jobs")
    nanoseconds: int = max(ends) - start
    return jobs / nanoseconds * 1e9


class Rates:
    """Jobs a second of every contender, by the numbers of processes and of jobs at a time."""

    def __init__(self, contenders: list[Contender]) -> None:
        self.contenders = contenders
        self.settings = list(product(PROCESSES, sorted({*contenders[0].concurrencies})))
        self.rates: dict[tuple[str, int, int], list[float]] = defaultdict(list)

    def measure(self, rounds: int, jobs: int) -> None:
        cases = [
            (contender, *setting)
            for contender, setting in product(self.contenders, self.settings)
            if setting[1] in contender.concurrencies
        ]
        enough = dict.fromkeys(cases, TRIAL)
        rounds += TRIALS
        order = [case for _ in range(rounds) for case in random.sample(cases, len(cases))]
        for number, case in enumerate(track(order, "rates", console=console)):
            contender, processes, concurrency = case
            measured = rate(contender, concurrency, processes, enough[case])
            if number < TRIALS * len(cases):
                enough[case] = max(TRIAL, min(jobs, int(SECONDS * measured)))
            else:
                self.rates[contender.name, processes, concurrency].append(measured)

    def best(self, name: str, processes: int) -> list[float]:
        """Return the rates of all rounds with the best number of jobs at a time."""
        tried = [rates for key, rates in self.rates.items() if key[:2] == (name, processes)]
        return max(tried, key=statistics.median)

    def ratio(self, name: str, other: str, processes: int) -> float:
        pairs = zip(self.best(name, processes), self.best(other, processes))
        return statistics.median(one / two for one, two in pairs)

    def table(self, what: str = "jobs a second") -> Table:
        title = f"{what}: processes x jobs at a time in each; the better setting in bold"
        columns = [f"{processes} x {concurrency}" for processes, concurrency in self.settings]
        table = new_table(title, *columns)
        table.add_column("setting")
        for contender in self.contenders:
            row = [
                self.figure(contender.name, processes, concurrency)
                for processes, concurrency in self.settings
            ]
            table.add_row(contender.name, *row, contender.setting)
        return table

    def figure(self, name: str, processes: int, concurrency: int) -> str:
        rates = self.rates.get((name, processes, concurrency))
        if rates is None:
            return ""
        figure = f"{statistics.median(rates):,.0f}"
        return f"[bold]{figure}[/bold]" if rates is self.best(name, processes) else figure


def push_latencies(contender: Contender, pushes: int) -> list[float]:
    """Return the milliseconds from pushes to the starts of their handlers in an idle process."""
    contender.load(0)
    milliseconds = []
    with workers(contender, concurrency=1, processes=1, drain=False) as (pipe,):
        push = contender.pusher()
        for _ in range(pushes + 3):
            time.sleep(random.uniform(0.02, 0.05))
            push(time.monotonic_ns())
            pushed, began = received(pipe)
            milliseconds.append((began - pushed) / 1e6)
    return milliseconds[3:]  # both connect during the first ones


def latencies(contenders: list[Contender], rounds: int, pushes: int) -> dict[str, list[float]]:
    """Return the latencies of all rounds for each contender."""
    found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    order = [each for _ in range(rounds) for each in random.sample(contenders, len(contenders))]
    for contender in track(order, "latency", console=console, transient=True):
        found[contender.name] += push_latencies(contender, pushes // rounds)
    return found


def latency_table(milliseconds: dict[str, list[float]]) -> Table:
    title = "from the start of a push to the start of its handler, on an idle queue"
    table = new_table(title, "pushes", "median ms", "99 % ms")
    for name, values in milliseconds.items():
        cuts = statistics.quantiles(values, n=100)
        table.add_row(name, f"{len(values):,}", f"{cuts[49]:.2f}", f"{cuts[98]:.2f}")
    return table


def goals(rates: Rates, milliseconds: dict[str, list[float]]) -> Table:
    """Compare what was measured with the goals."""
    table = new_table("goals", "goal", "1 process", "4 processes")
    own = [each for each in rates.contenders if isinstance(each, Library | Jobs)]
    ours = [each.name for each in own]
    theirs = [each.name for each in rates.contenders if each.name not in ours]
    engines = dict.fromkeys(each.engine for each in own)
    for engine, kind in product(engines, ("at least once", "exactly once")):
        pair = f"{engine}, @app.job, {kind}", f"{engine}, {kind}"
        ratios = [f"{rates.ratio(*pair, processes):.2f}" for processes in PROCESSES]
        table.add_row("jobs a second: {} / {}".format(*pair), ">= 0.9", *ratios)
    for our, their in product(ours, theirs):
        ratios = [f"{rates.ratio(our, their, processes):.2f}" for processes in PROCESSES]
        table.add_row(f"jobs a second: {our} / {their}", "> 1", *ratios)
    for our, their in product(ours, milliseconds):
        if our in milliseconds and their not in ours:
            ratio = statistics.median(milliseconds[their]) / statistics.median(milliseconds[our])
            table.add_row(f"median latency: {their} / {our}", "> 1", f"{ratio:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.tasks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("cluster", nargs="?", help="cluster file, to measure a cluster as well")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=10_000, help="the most jobs in a round")
    parser.add_argument(
        "--pushes", type=int, default=200, help="pushes in all rounds, for the latency"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.jobs, given.pushes = 2, 300, 20
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-"))
        print_machine(Path(root))
        # For each engine, a function from the name of a database to its URL.
        engines: dict[str, Callable[[str], str]] = {"embedded": lambda name: f"{root}/{name}"}
        if given.cluster:
            engines["cluster"] = lambda _: str(given.cluster)
            db = fdbqueue.open(given.cluster)
            stack.callback(db.clear_range_startswith, SPACE.key())
        ours: list[Library | Jobs] = []
        for name, url in engines.items():
            ours += [Library(name, url("jobs"), kind) for kind in (False, True)]
            ours += [Jobs(name, url("jobs"), kind) for kind in (False, True)]
            ours.append(Jobs(name, url("jobs"), keeps_results=True))
        others = list(peers(stack, console.print))
        rates = Rates([*ours, *others])
        rates.measure(given.rounds, given.jobs)
        console.print(rates.table())
        waiting = [each for each in ours if not each.in_transaction]
        polling = [
            type(each)(each.path, 0.01)
            for each in others
            if isinstance(each, (Huey, Ballast, Dbos))
        ]
        milliseconds = latencies([*waiting, *others, *polling], given.rounds, given.pushes)
        console.print(latency_table(milliseconds))
        console.print(goals(rates, milliseconds))


if __name__ == "__main__":
    main()
