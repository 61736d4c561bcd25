"""The command `fdbq workers`."""

from __future__ import annotations

from fdbqueue.admin import WorkerInfo
from fdbqueue.admin import workers as found_workers
from fdbqueue.types import Database
from fdbqueue.worker.presence import worker_as_json

from .command import command
from .output import age_text, show_table


@command()
def workers(db: Database) -> None:
    """List the workers of all queues: queues, jobs, concurrency, running time and name.

    A worker is listed while it runs. If it was killed, it stays listed until the leases of its jobs
    are over, or for up to two and a half minutes if it had none. "jobs" is the number of jobs that
    it holds. That number is up to 20 seconds old; the first job is shown after a second.

    A worker runs up to "concurrency" jobs at a time. If it runs fewer jobs of one of its queues,
    the limit follows the name of that queue, as in "mail images=2".

    \b
    Example:
      fdbq workers
    """
    titles = ("queues", "jobs", "concurrency", "runs for", "name")
    show_table(titles, [found_workers(db)], worker_as_json, _row, "no workers")


def _row(worker: WorkerInfo) -> list[str]:
    limits = (
        name if most >= worker.concurrency else f"{name}={most}"
        for name, most in worker.queues.items()
    )
    numbers = [str(worker.jobs), str(worker.concurrency)]
    return [" ".join(limits), *numbers, age_text(worker.since) or "", worker.name]
