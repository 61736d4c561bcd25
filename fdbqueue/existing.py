"""Queues of any kind, opened by their names alone."""

from __future__ import annotations

from typing import Any

from fdbqueue.database import read
from fdbqueue.directory import find
from fdbqueue.errors import QueueNotFound
from fdbqueue.layout import Layout, decode_options
from fdbqueue.priority_queue import PriorityQueue
from fdbqueue.task_queue import TaskQueue

__all__ = ["existing_queue"]


def existing_queue(db: Any, name: str) -> PriorityQueue | TaskQueue:
    """The queue of this name, of the kind that it has.

    Raises `QueueNotFound`, `InvalidQueueName` and `LayoutVersionMismatch`.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = TaskQueue.named(db, "tasks").push(db)
    >>> type(existing_queue(db, "tasks")).__name__
    'TaskQueue'
    """

    def body(tr: Any) -> str:
        subspace = find(tr, name)
        if subspace is None:
            raise QueueNotFound(name)
        layout = Layout(subspace)
        return decode_options(tr[layout.options].value).kind

    if read(db, body) == "task":
        return TaskQueue.named(db, name)
    return PriorityQueue.named(db, name)
