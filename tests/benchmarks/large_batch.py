"""Time and memory of one large batch of empty jobs.

`python -m tests.benchmarks.large_batch --jobs 1000000` pushes the jobs of a batch in one process,
and then does them in another one, ten at a time. It prints how long both took, the peak of the
memory of both, and what the job at the end was told.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fdbqueue import App
from tests.benchmarks.report import console, print_machine

app = App(keep=None)


@app.job(name="job", queue="large-batch")
def job() -> None: ...


@app.job(name="report", queue="large-batch-reports")
def report(**ends: int) -> None:
    console.print(f"the job at the end: {ends}")


def push(url: str, jobs: int) -> None:
    app.bind(url)
    with app.batch(then=report) as batch:
        batch.push_many(job, (job.bind() for _ in range(jobs)))


def work(url: str, jobs: int) -> None:
    app.bind(url)
    done = app.work(concurrency=10, drain=True).done
    assert done == jobs + 1, f"{done} jobs were done"


def measured(name: str, function: Callable[[str, int], None], url: str, jobs: int) -> None:
    """Call a function; print how long it took, and how much memory the process has used."""
    began = time.perf_counter()
    function(url, jobs)
    seconds = time.perf_counter() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"{name}: {seconds:,.0f} s, {jobs / seconds:,.0f} a second, {megabytes:,.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.large_batch", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--database", help="the name of a database; by default a new one on disk")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="fdbqueue-benchmark-") as root:
        print_machine(Path(root))
        url = given.database or f"embedded:{root}/db"
        for name, function in (("pushed", push), ("done", work)):
            process = context.Process(target=measured, args=(name, function, url, given.jobs))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
