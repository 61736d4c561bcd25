"""Copies of queues from one database to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from fdbqueue.database.binding import database_identity
from fdbqueue.errors import QueueChanged, RestoreRunning, SameQueue
from fdbqueue.queue.transfer.rows import (
    NewQueue,
    QueueCopy,
    Row,
    finish,
    links_of,
    notes_of,
    prefix_in,
    rows_of,
    stored_copy,
    summary_of,
    with_references,
)
from fdbqueue.types import Database


def copy(
    source: Database,
    target: Database,
    name: str,
    new_name: str | None = None,
    *,
    progress: Callable[[int], object] = lambda rows: None,
) -> QueueCopy:
    """Copy a queue to another database, with items in every state and its options.

    The items keep their ids, their order and their failed attempts. The source is not changed. The
    copy gets its name only after both sides were read again and compared, so no client sees half of
    it. An interrupted copy continues where it stopped when you start it again. If an equal copy
    already exists, nothing is done.

    If the queue changes during the copy, `QueueChanged` is raised. Pause the queue with `pause`,
    and stop the clients that push, pop or hold claims. Do so in any case if the copy is to replace
    the source: otherwise both would run the same jobs. A claimed item stays claimed until its lease
    is over by the clock. The copy of a paused queue is paused.

    A job that waits for jobs of another queue goes on if you copy that queue, too, under its own
    name. Copy the queue with the waiting job first. `QueueCopy.notes` says which links a copy
    leaves behind. `check` then finds the waiting jobs in the target, and its repair ends their
    wait. Within one database, a copy takes no part in batches of other queues.

    Cost: four reads of the whole queue, two of its copy, twice as many if a read takes longer than
    five seconds, and one transaction for every 1,000 rows or megabyte.

    Args:
        source: The database to copy from.
        target: The database to copy to.
        name: The name of the queue.
        new_name: Another name for the copy.
        progress: Called with the number of rows copied, now and then.

    Raises:
        QueueNotFound: The source has no queue with this name.
        QueueDiffers: The target has another queue with the name.
        QueueExists: Another client created a queue with the name meanwhile.
        SameQueue: The target is the source, and the copy would have the name of the queue.
        QueueChanged: The queue has changed. The target has no new queue.
        RestoreRunning: Another process copies or restores the same queue at the same time.
        InvalidQueueName: A queue cannot have one of the names.

    Example:
        >>> import fdbqueue
        >>> here, there = fdbqueue.open("memory:"), fdbqueue.open("memory:")
        >>> _ = fdbqueue.PriorityQueue.named(here, "jobs").push_many(here, ["a", "b"])
        >>> copy(here, there, "jobs").ready
        2
    """
    new_name = name if new_name is None else new_name
    is_same = _are_same(source, target)
    if new_name == name and is_same:
        raise SameQueue(name)
    named_rows = rows_of(source, name)
    links = links_of({name: named_rows})

    @cache
    def prefix_of(reference: bytes) -> bytes | None:
        return None if is_same else prefix_in(target, reference)

    def rows() -> Iterable[Row]:
        return with_references(named_rows(), prefix_of)

    stored = stored_copy(target, new_name, rows)
    if stored is not None:
        return stored
    queue = NewQueue(target, new_name)
    copied = queue.write(rows, progress)
    if queue.read() != copied:
        raise RestoreRunning(queue.name)
    if summary_of(rows()) != copied:
        raise QueueChanged(name)
    finish(target, [queue])
    return replace(copied, notes=notes_of(links, name, [name]))


def _are_same(source: Database, target: Database) -> bool:
    identity = database_identity(source)
    return source is target or (identity is not None and identity == database_identity(target))
