"""The command `fdbq batch`."""

from __future__ import annotations

from fdbqueue import existing_queue
from fdbqueue.queue.batches import Batches, BatchKind, ItemBatch, batch_as_json, batches_of
from fdbqueue.types import Database

from .command import ID, QUEUE, command
from .output import count_noun, fail, show

_WAITING: dict[BatchKind, str] = {"then": "then", "after": "before", "run": "for"}


@command(QUEUE, ID)
def batch(db: Database, queue: str, id: str, *, close: bool = False) -> None:
    """Show how far the batches of the job ID of QUEUE are: their jobs, and how they have ended.

    ID is that of the job at the end of a batch, or of one of its jobs that is still stored. A job
    may be one of several batches; each has a line.

    A batch stays open if the program dies that pushes its jobs. Use --close if no others are to
    come, so that the job at its end runs.

    Exits with code 1 if it has none, or is unknown.

    \b
    Example:
      fdbq batch reports FBcD1wABAaIVC2yNeLOuRsaQk5dWHQA
      fdbq batch reports FBcD1wABAaIVC2yNeLOuRsaQk5dWHQA --close

    Options:
        close: Let no more jobs in first; ID is that of the job at the end.
    """
    target = existing_queue(db, queue)
    if close:
        Batches(target).finish(db, id)
    found = batches_of(db, target, id)
    for each in found:
        show(batch_as_json(each), _line(each))
    if not found:
        fail(f"{queue} has no item {id} with a batch")


def _line(batch: ItemBatch) -> str:
    state = "open" if batch.is_open else "ended" if batch.has_ended else "closed"
    cancelled = ", cancelled" if batch.is_cancelled else ""
    line = (
        f"{state}{cancelled}: {count_noun(batch.pushed, 'job')}, {batch.done} done, "
        f"{batch.dead} dead, {batch.cancelled} cancelled, {batch.left} left"
    )
    if not batch.is_member:
        return line
    step = f"step {batch.step!r} of " if batch.step else ""
    queue = batch.queue or "a queue without a name"
    return f"{line}; {_WAITING[batch.kind]} {step}{batch.id} in {queue}"
