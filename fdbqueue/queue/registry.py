"""The queues that have a name: listed, opened, renamed, dropped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import is_database
from fdbqueue.database.receipts import run_once
from fdbqueue.database.retrying import read
from fdbqueue.errors import QueueExists, QueueNotFound
from fdbqueue.layout import ROOT, Layout, name_key
from fdbqueue.operations.names import find, leave
from fdbqueue.queue.base import Stored, find_stored, open_stored
from fdbqueue.queue.fifo import Queue
from fdbqueue.queue.overview import read_queues
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.queue.task import TaskQueue

__all__ = [
    "drop_queue",
    "existing_queue",
    "open_queue",
    "queue_names",
    "queues",
    "rename_queue",
    "subspaces",
]

_RECEIPTS = ROOT[2]


def queue_names(tr: Any) -> list[str]:
    """The names of all queues that were ever pushed to, in order.

    Cost: a range read, one row for each queue, whatever their lengths.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> for name in ["mail", "jobs"]:
    ...     _ = fdbqueue.PriorityQueue.named(db, name).push(db, "x")
    >>> queue_names(db)
    ['jobs', 'mail']
    """
    return list(subspaces(tr))


def queues(tr: Any) -> dict[str, int]:
    """The names of all queues and how many items each has, in order of the names.

    Given a database in pages of 200 queues, each its own transaction. Cost: for each page a range
    read, and the reads of two counters for each queue, all at once.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push_many(db, ["x", "y"])
    >>> queues(db)
    {'mail': 2}
    """

    def sizes(tr: Any, page: dict[str, Subspace]) -> list[tuple[str, int]]:
        begun = {name: Layout(subspace).begin_size(tr) for name, subspace in page.items()}
        return [(name, max(0, size())) for name, size in begun.items()]

    return dict(read_queues(tr, sizes))


def rename_queue(tr: Any, name: str, new_name: str) -> None:
    """Give a queue another name; its items stay where they are.

    Clients that have the queue open go on using it, and no other queue is ever made in its place:
    a rename leaves a small row behind, of which there are at most 17 in a database. Given a
    database it takes effect exactly once; in a transaction the caller's own retry rules hold. Cost:
    two to five reads, two or three keys written.

    Raises `QueueNotFound`, `QueueExists`, `InvalidQueueName`; nothing is changed then.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x")
    >>> rename_queue(db, "mail", "e-mail")
    >>> queue_names(db)
    ['e-mail']
    """
    keys = name_key(name), name_key(new_name)

    def body(tr: Any) -> None:
        found = find(tr, name)
        if found is None:
            raise QueueNotFound(name)
        if find(tr, new_name) is not None:
            raise QueueExists(new_name)
        del tr[keys[0]]
        tr[keys[1]] = found.key()
        leave(tr, name, found)

    _change(tr, body)


def drop_queue(tr: Any, name: str) -> None:
    """Drop a queue: its items, its options and its name.

    A push by who has it open makes it anew, empty. Given a database it takes effect exactly once;
    in a transaction the caller's own retry rules hold. Conflicts with all reads of the queue. Cost:
    a read and two clears, whatever the number of items.

    Raises `QueueNotFound` and `InvalidQueueName`.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x")
    >>> drop_queue(db, "mail")
    >>> queue_names(db)
    []
    """
    key = name_key(name)

    def body(tr: Any) -> None:
        found = find(tr, name)
        if found is None:
            raise QueueNotFound(name)
        del tr[found.range()]
        del tr[key]

    _change(tr, body)


def subspaces(tr: Any) -> dict[str, Subspace]:
    """Return where each named queue is, in order of the names; in pages, as `queues`."""
    return dict(read_queues(tr, lambda tr, page: list(page.items())))


def _change(tr: Any, body: Callable[[Any], None]) -> None:
    if is_database(tr):
        run_once(tr, body, _RECEIPTS)
    else:
        body(tr)


def existing_queue(db: Any, name: str) -> PriorityQueue | Queue | TaskQueue:
    """The queue of this name, of the kind that it has.

    Raises `QueueNotFound`, `InvalidQueueName` and `LayoutVersionMismatch`.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> _ = TaskQueue.named(db, "tasks").push(db)
    >>> type(existing_queue(db, "tasks")).__name__
    'TaskQueue'
    """

    return _of_any_kind(read(db, partial(find_stored, name=name, must_exist=True)))


def open_queue(db: Any, name: str) -> PriorityQueue | Queue | TaskQueue:
    """Return the queue of this name, of the kind that it has; a new one is a priority queue."""
    return _of_any_kind(read(db, partial(find_stored, name=name)))


_KINDS: dict[str, type[PriorityQueue | Queue | TaskQueue]] = {
    "priority": PriorityQueue,
    "fifo": Queue,
    "task": TaskQueue,
}


def _of_any_kind(stored: Stored) -> PriorityQueue | Queue | TaskQueue:
    kind = "priority" if stored.options is None else stored.options.kind
    return open_stored(_KINDS[kind], stored)
