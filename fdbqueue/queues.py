"""The queues that have a name: which there are."""

from __future__ import annotations

from typing import Any

from fdbqueue.database import is_database, run
from fdbqueue.errors import QueueNotFound
from fdbqueue.layout import ROOT, Layout, named_subspace
from fdbqueue.priority_queue import PriorityQueue

__all__ = ["existing_queue", "queue_names"]


def queue_names(tr: Any) -> list[str]:
    """The names of all queues that were ever pushed to, in order.

    Snapshot reads, one row for each queue, whatever their lengths.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> for name in ["mail", "jobs"]:
    ...     _ = PriorityQueue.named(db, name).push(db, "x")
    >>> queue_names(db)
    ['jobs', 'mail']
    """
    if is_database(tr):
        return run(tr, queue_names)
    names = []
    begin, end = Layout.range_of(ROOT.key())
    while rows := list(tr.snapshot.get_range(begin, end, limit=1)):
        name = ROOT.unpack(rows[0].key)[0]
        names.append(name)
        begin = named_subspace(name).range().stop
    return names


def existing_queue(db: Any, name: str, **options: Any) -> PriorityQueue:
    """The queue of this name; raises `QueueNotFound` if it was never pushed to.

    >>> import fdbqueue
    >>> existing_queue(fdbqueue.open("memory:"), "nope")
    Traceback (most recent call last):
    fdbqueue.errors.QueueNotFound: there is no queue named 'nope'; ...
    """
    queue = PriorityQueue.named(db, name, **options)
    begin, end = queue.subspace.range().start, queue.subspace.range().stop
    if not run(db, lambda tr: list(tr.get_range(begin, end, limit=1))):
        raise QueueNotFound(name)
    return queue
