"""The command `fdbq workers`."""

from __future__ import annotations

from fdbqueue.admin import WorkerInfo
from fdbqueue.admin import workers as found_workers
from fdbqueue.queue.overview import as_json
from fdbqueue.types import Database

from .command import command
from .output import age_text, show_table


@command()
def workers(db: Database) -> None:
    """List the workers of all queues: queues, jobs, concurrency, running time and name.

    A killed worker stays listed until its jobs' leases are over, or without jobs for up to two and
    a half minutes. "jobs" counts the jobs that it held up to 20 seconds ago. A lower limit for a
    queue follows its name, as in "mail images=2".

    \b
    Example:
      fdbq workers
    """
    titles = ("queues", "jobs", "concurrency", "runs for", "name")
    show_table(titles, found_workers(db), as_json, _row, "no workers")


def _row(worker: WorkerInfo) -> list[str]:
    limits = (
        name if most >= worker.concurrency else f"{name}={most}"
        for name, most in worker.queues.items()
    )
    numbers = [str(worker.jobs), str(worker.concurrency)]
    return [" ".join(limits), *numbers, age_text(worker.since) or "", worker.name]
