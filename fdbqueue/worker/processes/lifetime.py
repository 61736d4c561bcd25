"""How a process runs its worker, and when it ends so that another process takes over."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fdbqueue.database.binding import database_name
from fdbqueue.types import Database
from fdbqueue.worker.endings import WorkerReport
from fdbqueue.worker.functions.coroutines import IN_THREAD
from fdbqueue.worker.processes.supervisor import parent
from fdbqueue.worker.telemetry import Log
from fdbqueue.worker.timeouts import has_hung

if TYPE_CHECKING:
    from fdbqueue.worker.shutdown import Shutdown
    from fdbqueue.worker.worker import Worker

_log = Log("fdbqueue.worker")

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK = 0.1  # seconds for which the end of a process waits for each thread
_MEMORY = 1.0  # seconds between looks at the memory of the process


def run_worker(
    worker: Worker,
    shutdown: Shutdown,
    *,
    drain: bool = False,
    health: int | str | None = None,
) -> WorkerReport:
    """Run the worker of this process. If it is supervised, its parent stops it and gets the report.

    Args:
        worker: The worker.
        shutdown: Its shutdown.
        drain: As for `Worker.run`.
        health: As for `Worker.run`; the first of several processes answers.
    """
    if parent is not None:
        parent.stop_with(worker.stop, shutdown.kill)
    report = worker.run(drain=drain, health=own_health(health))
    if parent is not None:
        parent.report(report, is_drained=drain and not shutdown.stop.is_set)
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
    if has_hung() or any(map(_goes_on, in_thread)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _goes_on(thread: threading.Thread) -> bool:
    thread.join(_LOOK)  # most have no function left to call, and end at once
    return thread.is_alive()


def limit_of(
    max_jobs: int | None, max_memory: int | None
) -> Callable[[WorkerReport], str | None] | None:
    """Return what tells a worker why it finishes by itself; `None` if it never does.

    Args:
        max_jobs: The number of ended jobs after which no others begin.
        max_memory: The bytes of resident memory after which no others begin.
    """
    if (max_jobs, max_memory, parent) == (None, None, None):
        return None
    looked_at = 0.0

    def reason(report: WorkerReport) -> str | None:
        nonlocal looked_at
        jobs = report.done + report.failed + report.lost
        if max_jobs is not None and jobs >= max_jobs:
            return f"{jobs:,} jobs have ended, of at most {max_jobs:,}"
        if parent is not None and has_hung():
            return "a job hangs, whose thread only the end of the process ends"
        now = time.monotonic()
        if max_memory is not None and now - looked_at >= _MEMORY:
            looked_at = now
            memory = int(_STATM.read_text().split()[1]) * _PAGE
            if memory > max_memory:
                return f"its memory has grown to {memory:,} bytes, of at most {max_memory:,}"
        return None

    return reason
