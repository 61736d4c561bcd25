"""The command for batches of jobs: batch."""

from __future__ import annotations

from dataclasses import asdict

import click

from fdbqueue.queue.batches import Batches
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import Database

from .common import command_options, echo, item_queue, json_line, queue_argument, unsupported


@click.command()
@queue_argument
@click.argument("id", metavar="ID")
@command_options()
def batch(db: Database, queue: str, id: str, as_json: bool) -> None:
    """Show how far the batch ID of QUEUE is: its jobs that were pushed, and how they have ended.

    QUEUE and ID are those of the job that runs at its end.

    \b
    Example:
      fdbq batch reports FBcD1wABAaIVC2yNeLOuRsaQk5dWHQA
    """
    opened = item_queue(db, queue, must_exist=True)
    if not isinstance(opened, PriorityQueue):
        raise unsupported(opened, queue, "batches")
    progress = Batches(opened).progress(db, id)
    if as_json:
        echo(json_line({"id": id, **asdict(progress), "left": progress.left}))
        return
    state = "open" if progress.is_open else "ended" if progress.has_ended else "closed"
    cancelled = ", cancelled" if progress.is_cancelled else ""
    echo(
        f"{state}{cancelled}: {progress.pushed} jobs, {progress.done} done, {progress.dead} dead, "
        f"{progress.cancelled} cancelled, {progress.left} left"
    )
