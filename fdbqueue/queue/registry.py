"""Open named queues of any kind, each as an object of its kind."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial

from fdbqueue.coordination.sans_io import Call, Stop, drive
from fdbqueue.coordination.waiting import Lines, Wanted, until_found
from fdbqueue.database.retrying import read
from fdbqueue.errors import QueueNotFound
from fdbqueue.layout.names import name_key
from fdbqueue.operations.names import find
from fdbqueue.queue.base import Stored, find_stored, open_stored
from fdbqueue.queue.priority import PriorityQueue, Queue
from fdbqueue.queue.task import TaskQueue
from fdbqueue.types import Database, Transaction, Transactor


def existing_queue(db: Transactor, name: str) -> PriorityQueue | Queue | TaskQueue:
    """Return the queue of this name as an object of its kind, with its stored options.

    Args:
        db: A database or a transaction.
        name: The name of the queue.

    Raises:
        QueueNotFound: There is no queue with this name.
        InvalidQueueName: A queue cannot have this name.
        LayoutVersionMismatch: Another release of this library stored the queue.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> _ = TaskQueue.named(db, "tasks").push(db)
        >>> type(existing_queue(db, "tasks")).__name__
        'TaskQueue'
    """
    return _of_any_kind(read(db, partial(find_stored, name=name, must_exist=True)))


def wait_for_queue(
    db: Database, name: str, stop: Stop, seconds: float = math.inf
) -> PriorityQueue | Queue | TaskQueue | None:
    """Return the queue of this name once there is one; `None` after the time, or after `stop`."""

    def find_now() -> PriorityQueue | Queue | TaskQueue | None:
        with suppress(QueueNotFound):
            return existing_queue(db, name)
        return None

    def keys(tr: Transaction) -> list[bytes]:
        return [name_key(name)] if find(tr, name) is None else []

    wanted = Wanted(name, keys)
    return drive(until_found(Lines(), db, seconds, Call(find_now).alone, wanted), stop)


def open_queue(db: Transactor, name: str) -> PriorityQueue | Queue | TaskQueue:
    """Return the queue of this name as an object of its kind; a new queue is a priority queue."""
    return _of_any_kind(read(db, partial(find_stored, name=name)))


_KINDS: dict[str, type[PriorityQueue | Queue | TaskQueue]] = {
    "priority": PriorityQueue,
    "fifo": Queue,
    "task": TaskQueue,
}


def _of_any_kind(stored: Stored) -> PriorityQueue | Queue | TaskQueue:
    kind = "priority" if stored.options is None else stored.options.kind
    return open_stored(_KINDS[kind], stored)
