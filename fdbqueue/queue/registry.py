"""Named queues: open, rename, migrate and drop them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.steps import Call, Steps, Stop, drive
from fdbqueue.coordination.waiting import Lines, Wanted, until_found
from fdbqueue.database.binding import is_database
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import read
from fdbqueue.errors import QueueExists, QueueNotFound
from fdbqueue.layout import migration
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import NAME_RECEIPTS, name_key
from fdbqueue.operations.names import drop_unfinished, find, find_existing, leave
from fdbqueue.queue.base import Stored, find_stored, open_stored
from fdbqueue.queue.fifo import Queue
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.queue.task import TaskQueue
from fdbqueue.types import Database, Transaction, Transactor

_T = TypeVar("_T")


def rename(tr: Transactor, name: str, new_name: str) -> None:
    """Give a queue another name; its items stay where they are.

    Clients that have the queue open can go on using it, and no other queue is ever stored in the
    same place. To ensure that, a rename leaves a small row behind; a database has at most 17 of
    these. Cost: two to five reads, and two or three keys written.

    Args:
        tr: A transaction or a database.
        name: The name of the queue.
        new_name: Its new name.

    Raises:
        QueueNotFound: There is no queue with this name.
        QueueExists: Another queue has the new name.
        InvalidQueueName: A queue cannot have one of the names.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x")
        >>> rename(db, "mail", "e-mail")
        >>> fdbqueue.admin.queue_names(db)
        ['e-mail']
    """
    keys = name_key(name), name_key(new_name)

    def body(tr: Transaction) -> None:
        subspace = find_existing(tr, name)
        if find(tr, new_name) is not None:
            raise QueueExists(new_name)
        del tr[keys[0]]
        tr[keys[1]] = subspace.key()
        leave(tr, name, subspace)

    _change(tr, body)


def migrate(tr: Transactor, queue: str | Subspace) -> bool:
    """Convert a queue that an earlier release stored; return false if there is no need.

    Items, claims, dead letters and options stay as they are. Stop the clients of earlier releases
    first: until they are replaced, their pushes and claims fail with `LayoutVersionMismatch`.
    Afterwards those releases cannot use the queue any more. Conflicts with every operation on the
    queue.

    Cost: range reads of the counters, of the index rows of delayed, claimed and expiring items, and
    of the dead letters, which are counted. They have to end within the five seconds of a
    transaction. The number of ready items that do not expire does not matter.

    Args:
        tr: A transaction or a database.
        queue: The name of the queue, or its subspace.

    Raises:
        QueueNotFound: There is no queue with this name.
        InvalidQueueName: A queue cannot have this name.
        LayoutVersionMismatch: The queue has an older layout, or a newer one.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x")
        >>> migrate(db, "mail")
        False
    """

    def body(tr: Transaction) -> bool:
        subspace = queue if isinstance(queue, Subspace) else find_existing(tr, queue)
        return migration.migrate(tr, Layout(subspace))

    return _change(tr, body)


def drop(tr: Transactor, name: str) -> None:
    """Delete a queue: its items, its options and its name.

    Also deletes what an unfinished restore or copy of a queue with this name has written. A later
    push by a client that still has the queue open creates it again, empty. Conflicts with all reads
    of the queue. Cost: two reads and two range clears, whatever the number of items.

    Args:
        tr: A transaction or a database.
        name: The name of the queue.

    Raises:
        QueueNotFound: There is no queue with this name.
        InvalidQueueName: A queue cannot have this name.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> _ = fdbqueue.PriorityQueue.named(db, "mail").push(db, "x")
        >>> drop(db, "mail")
        >>> fdbqueue.admin.queue_names(db)
        []
    """
    key = name_key(name)

    def body(tr: Transaction) -> None:
        if drop_unfinished(tr, name) and find(tr, name) is None:
            return
        subspace = find_existing(tr, name)
        del tr[subspace.range()]
        del tr[key]

    _change(tr, body)


def _change(tr: Transactor, body: Callable[[Any], _T]) -> _T:
    return run_once(tr, body, NAME_RECEIPTS) if is_database(tr) else body(tr)


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

    def look() -> Steps[PriorityQueue | Queue | TaskQueue | None]:
        queue: PriorityQueue | Queue | TaskQueue | None = yield Call(find_now)
        return queue

    def keys(tr: Transaction) -> list[bytes]:
        return [name_key(name)] if find(tr, name) is None else []

    def seconds_left(_: Transaction) -> float:
        return math.inf

    wanted = Wanted(name, keys, seconds_left)
    return drive(until_found(Lines(), db, seconds, look, wanted), stop)


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
