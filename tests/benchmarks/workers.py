"""Worker processes on one directory: `fdbq work` beside huey's consumer, jobs a second.

Both queues are durable. The workers run until each has done a job; then the time begins. After
every run all jobs are accounted for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

import fdbqueue
from fdbqueue import PriorityQueue
from tests.benchmarks import jobs
from tests.benchmarks.comparison import Comparison, Run, Runner, account, evaluate, new_summary
from tests.benchmarks.report import console

ROOT = Path(__file__).parent.parent.parent
MAX_START = 30  # seconds for all workers to do their first job
SETTLING = 0.3  # seconds from the first job of the last worker until the time begins
MAX_CLAIMED = 100  # jobs that a worker has claimed ahead, and that others cannot get
MAX_STOP = 60  # seconds for the workers to end
HANDLERS = {"empty handler": 0.0, "handler that waits 5 ms": 0.005}


class Workers(Protocol):
    """A queue with worker processes."""

    name: ClassVar[str]

    def __init__(self, path: Path) -> None: ...

    def fill(self, count: int) -> None:
        """Push the jobs 0 to `count` - 1."""

    def commands(self, processes: int) -> list[list[str]]:
        """Return the commands that start a number of worker processes."""

    def drain(self) -> list[int]:
        """Remove and return the jobs that are left."""


class FdbqWork:
    """`fdbq work`, a command for each process."""

    name: ClassVar[str] = "fdbq work"

    def __init__(self, path: Path) -> None:
        self._path = path / "fdbqueue"

    def _open(self) -> tuple[Any, PriorityQueue]:
        db = fdbqueue.open(self._path)
        return db, PriorityQueue.named(db, "jobs")

    def fill(self, count: int) -> None:
        db, queue = self._open()
        for first in range(0, count, 1000):
            queue.push_many(db, list(range(first, min(first + 1000, count))))
        db.close()

    def commands(self, processes: int) -> list[list[str]]:
        command = [sys.executable, "-m", "fdbq", "work", "jobs", f"{jobs.__name__}:handle"]
        return [[*command, "--db", str(self._path)]] * processes

    def drain(self) -> list[int]:
        db, queue = self._open()
        numbers = []
        while items := queue.pop_many(db, 1000):
            numbers += [item.value for item in items]
        report = fdbqueue.admin.check(db, queue)
        db.close()
        if not report.ok:
            raise RuntimeError(str(report))
        return numbers


class HueyConsumer:
    """`huey_consumer` with process workers, which it forks. It deletes a job before it runs it."""

    name: ClassVar[str] = "huey_consumer -k process"

    def __init__(self, path: Path) -> None:
        self._file = path / "huey.db"

    def _open(self) -> tuple[Any, Any]:
        huey = import_module("huey").SqliteHuey(filename=str(self._file), fsync=True)
        return huey, huey.task()(jobs.do)

    def fill(self, count: int) -> None:
        huey, task = self._open()
        statement = "INSERT INTO task (queue, data, priority) VALUES (?, ?, 0)"
        messages = (huey.serialize_task(task.s(number)) for number in range(count))
        with huey.storage.db(commit=True) as cursor:
            cursor.executemany(statement, ((huey.name, message) for message in messages))
        huey.storage.close()

    def commands(self, processes: int) -> list[list[str]]:
        command = [sys.executable, "-m", "huey.bin.huey_consumer", f"{jobs.__name__}.huey"]
        options = ["--worker-type", "process", "--workers", str(processes)]
        return [[*command, *options, "--graceful-signal", "TERM", "--no-periodic", "--quiet"]]

    def drain(self) -> list[int]:
        huey, _ = self._open()
        messages = huey.storage.enqueued_items()
        huey.storage.close()
        return [huey.deserialize_task(message).args[0] for message in messages]


def run_once(
    kind: type[Workers], processes: int, wait: float, seconds: float, root: Path, count: int
) -> Run | None:
    """Run workers on a new queue of `count` jobs; return `None` if there were too few.

    Raises:
        RuntimeError: A job was lost or done twice, or a worker failed.
    """
    path = Path(tempfile.mkdtemp(dir=root))
    records, started, errors = path / "records", path / "started", path / "errors"
    records.write_bytes(bytes(count * jobs.RECORD.size))
    started.mkdir()
    environment = {
        **os.environ,
        jobs.SECONDS: str(wait),
        jobs.RECORDS: str(records),
        jobs.WORKERS: str(started),
        jobs.HUEY: str(path / "huey.db"),
    }
    workers = kind(path)
    workers.fill(count)
    running: list[subprocess.Popen[bytes]] = []
    try:
        with errors.open("a") as log:
            for command in workers.commands(processes):
                running.append(
                    subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
                )
        deadline = time.monotonic() + MAX_START
        # A worker that gets no job in this time counts as one that does none.
        while len(list(started.iterdir())) < processes and time.monotonic() < deadline:
            if any(process.poll() for process in running):
                break  # with an error, which is raised below
            time.sleep(0.02)
        time.sleep(SETTLING)
        begin = time.monotonic_ns()
        time.sleep(seconds)
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            if process.wait(MAX_STOP):
                raise RuntimeError(f"{process.args!r} failed:\n{errors.read_text()}")
        left = workers.drain()
        done = list(jobs.RECORD.iter_unpack(records.read_bytes()))
    finally:
        for process in running:
            process.kill()
            process.wait()
        shutil.rmtree(path)
    numbers = [number for number, (_, _, times) in enumerate(done) for _ in range(times)]
    account([range(count)], [left, numbers])
    if len(left) <= MAX_CLAIMED * processes:
        return None
    ends: dict[int, list[float]] = defaultdict(list)
    for when, process, times in done:
        if times:
            ends[process].append((when - begin) / 1e9)
    idle: list[list[float]] = [[]] * (processes - len(ends))
    return evaluate([*ends.values(), *idle], seconds)


def compare_workers(
    root: Path, counts: Sequence[int], rounds: int, seconds: float, with_peers: bool
) -> None:
    """Compare worker processes with an empty handler and with one that takes a while."""
    kinds: list[type[Workers]] = [FdbqWork]
    if with_peers and find_spec("huey"):
        kinds.append(HueyConsumer)

    def runner(kind: type[Workers], wait: float) -> Runner:
        def run(processes: int, length: int) -> Run | None:
            rate = 1.2 * processes / wait if wait else 8000  # jobs a second; more are unlikely
            count = int(rate * (seconds + 5)) * length
            return run_once(kind, processes, wait, seconds, root, count)

        return run

    summary = new_summary("jobs a second, durable", counts)
    for handler, wait in HANDLERS.items():
        runners = {kind.name: runner(kind, wait) for kind in kinds}
        comparison = Comparison(f"workers, {handler}, durable", runners, counts)
        comparison.measure(rounds)
        console.print(comparison.details())
        comparison.add_to(summary, f", {handler}")
    console.print(summary)
