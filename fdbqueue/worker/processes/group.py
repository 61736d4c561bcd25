"""Several workers of one process, which run together and end together."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import NoReturn

from fdbqueue.database.binding import database_name
from fdbqueue.types import Database
from fdbqueue.worker.endings import WorkerReport, no_progress, sum_of
from fdbqueue.worker.handler import IN_THREAD
from fdbqueue.worker.health import serving_health
from fdbqueue.worker.processes.supervisor import parent
from fdbqueue.worker.signals import stopping_on_signals
from fdbqueue.worker.slots import Slots
from fdbqueue.worker.telemetry import Log
from fdbqueue.worker.worker import (
    Worker,
    finish,
    held_jobs,
    hung_jobs,
    share_slots,
    trouble_of,
)

_log = Log("fdbqueue.worker")

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_has_hung = False  # whether threads may be left that Python cannot end
_LOOK = 0.1  # seconds after which the handler of a signal runs, at the latest
_MEMORY = 1.0  # seconds between looks at the memory of the process


def run_together(
    workers: Sequence[Worker],
    *,
    concurrency: int,
    weights: Sequence[float] | None = None,
    drain: bool = False,
    progress: Callable[[WorkerReport], object] = no_progress,
    max_jobs: int | None = None,
    max_memory: int | None = None,
    health: int | str | None = None,
    kill: Callable[[], object] = lambda: None,
) -> WorkerReport:
    """Run workers in threads until all of them have ended; the error of one stops the others.

    In the main thread, SIGTERM and SIGINT stop all of them. If this process is supervised, its
    parent does so too, and gets the report.

    Args:
        workers: The workers. A free slot goes to the first of them whose queue has jobs.
        concurrency: The number of jobs of all of them that run at a time.
        weights: The weight of each of them, by which they get slots instead of in their order.
        drain: Whether they stop once no job can be claimed and none is running.
        progress: Called with the work of all of them after each job.
        max_jobs: The number of ended jobs after which no others begin.
        max_memory: The bytes of resident memory after which no others begin.
        health: Where to answer health checks, as for `Worker.run`; the first of several processes
            does so.
        kill: Called before a second signal, also one to the parent, ends the process.

    Returns:
        The work of all of them.
    """
    global _has_hung
    errors: list[BaseException] = []
    limits = _Limits(workers, max_jobs, max_memory)
    if len(workers) > 1:  # a single one claims ahead
        slots = Slots(concurrency, by_weight=weights is not None, drain=drain)
        for worker, weight in zip(workers, weights or [1.0] * len(workers)):
            share_slots(worker, slots, weight)

    def stop() -> None:
        limits.is_over = True
        for worker in workers:
            worker.stop()

    def note(_: WorkerReport) -> None:
        report = sum_of(worker.report for worker in workers)
        progress(report)
        limits.check(report)

    # Most programs ask for nothing after a job, and a quick job takes little longer than this.
    asks = progress is not no_progress or limits.are_set

    def run(worker: Worker) -> None:
        try:
            worker.run(drain=drain, progress=note if asks else no_progress)
        except BaseException as error:
            errors.append(error)
            stop()

    def trouble() -> str | None:
        return next(filter(None, map(trouble_of, workers)), None)

    threads = [
        threading.Thread(target=copy_context().run, args=(run, worker)) for worker in workers
    ]
    with (
        serving_health(own_health(health), trouble),
        stopping_on_signals(stop, "claimed jobs", lambda: sum(map(held_jobs, workers)), kill),
    ):
        if parent is not None:
            parent.stop_with(stop, kill)
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # if another thread gets a signal, it does not end a `join`
                thread.join(_LOOK)
    _has_hung = any(map(hung_jobs, workers))
    if errors:
        raise errors[0]
    report = sum_of(worker.report for worker in workers)
    if parent is not None:
        parent.report(report, is_drained=drain and not limits.is_over)
    return report


def own_health(health: int | str | None) -> int | str | None:
    """Return where this process answers health checks; of several processes, the first one does.

    >>> own_health(9200)
    9200
    """
    return health if parent is None or parent.number == 1 else None


def summary_of(db: Database, queues: Iterable[str], jobs: Iterable[str], processes: int) -> str:
    """Return a line for the log: on what workers work, and how to choose another database.

    >>> import fdbqueue
    >>> summary_of(fdbqueue.open("memory:"), ["mail"], ["shop.send"], 2)
    'working on memory: (--db, $FDBQ_DB or App.bind choose another database): queues mail; ...'
    """
    return (
        f"working on {database_name(db)} (--db, $FDBQ_DB or App.bind choose another database): "
        f"queues {', '.join(queues)}; jobs {', '.join(jobs)}; processes {processes}"
    )


def exit_after_work(code: int) -> NoReturn:
    """Exit from this process, although threads may hang that Python would wait for."""
    in_thread = [each for each in threading.enumerate() if each.name.startswith(IN_THREAD)]
    if _has_hung or any(map(_goes_on, in_thread)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _goes_on(thread: threading.Thread) -> bool:
    thread.join(_LOOK)  # most have no function left to call, and end at once
    return thread.is_alive()


class _Limits:
    """When the workers of a process finish by themselves, so that another process takes over."""

    def __init__(
        self, workers: Sequence[Worker], max_jobs: int | None, max_memory: int | None
    ) -> None:
        self._workers = workers
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._looked_at = 0.0
        self.is_over = False

    @property
    def are_set(self) -> bool:
        """True if there is a limit, or a parent that replaces this process."""
        return (self._max_jobs, self._max_memory, parent) != (None, None, None)

    def check(self, report: WorkerReport) -> None:
        """Let the workers finish if a limit is reached, and say which one."""
        if self.is_over:
            return
        if reason := self._reason(report):
            self.is_over = True
            _log.warning("ending after the running jobs: %s", reason)
            for worker in self._workers:
                finish(worker)

    def _reason(self, report: WorkerReport) -> str | None:
        jobs = report.done + report.failed + report.lost
        if self._max_jobs is not None and jobs >= self._max_jobs:
            return f"{jobs:,} jobs have ended, of at most {self._max_jobs:,}"
        if parent is not None and any(map(hung_jobs, self._workers)):
            return "a job hangs, whose thread only the end of the process ends"
        now = time.monotonic()
        if self._max_memory is not None and now - self._looked_at >= _MEMORY:
            self._looked_at = now
            memory = int(_STATM.read_text().split()[1]) * _PAGE
            if memory > self._max_memory:
                return f"its memory has grown to {memory:,} bytes, of at most {self._max_memory:,}"
        return None
