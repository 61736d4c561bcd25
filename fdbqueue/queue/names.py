"""Rename and drop named queues."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.errors import QueueExists
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import NAME_RECEIPTS, name_key
from fdbqueue.operations.maintainers.batches import leave_batches
from fdbqueue.operations.names import drop_unfinished, find, find_existing, leave
from fdbqueue.types import Transaction, Transactor

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


def drop(tr: Transactor, name: str) -> None:
    """Delete a queue: its items, its options and its name.

    A job of another queue that waits for its jobs goes on: these count as cancelled, and a step
    that ran one of them fails. A batch ends with the queue of the job at its end, as if that job
    were cancelled.

    Also deletes what an unfinished restore or copy of a queue with this name has written. A later
    push by a client that still has the queue open creates it again, empty. Conflicts with all reads
    of the queue.

    Cost: two reads and two range clears. If jobs of the queue ever counted in batches of other
    queues, all unfinished items are read. Given a database, this takes a transaction for each 1,000
    of them. The last one deletes the queue, so an interrupted drop can be repeated. Stop the
    clients of such a queue before: if they push jobs for which others wait meanwhile, `check` finds
    these waits.

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
    key, now = name_key(name), milliseconds()

    def body(tr: Transaction, after: bytes) -> bytes | None:
        if drop_unfinished(tr, name) and find(tr, name) is None:
            return None
        subspace = find_existing(tr, name)
        last = leave_batches(tr, Layout(subspace), now, after)
        if last is None:
            del tr[subspace.range()]
            del tr[key]
        return last

    after: bytes | None = b""
    while after is not None:
        after = _change(tr, partial(body, after=after))


def _change(tr: Transactor, body: Callable[[Any], _T]) -> _T:
    return run_once(tr, body, NAME_RECEIPTS) if is_database(tr) else body(tr)
