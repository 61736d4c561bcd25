"""The keys of a queue, for tests of what is stored."""

from __future__ import annotations

from typing import Any

import fdb.tuple

from fdbqueue import PriorityQueue
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.names import name_key


def layout_of(queue: Any) -> Layout:
    """Return the keys of a queue."""
    return Layout(queue.subspace)


def waiting_clients(db: Any, queue: Any) -> set[bytes]:
    """Return the keys of the clients that wait for items, in any process."""
    layout = layout_of(queue)
    return {row.key for row in db.get_range(*layout.range_of(layout.waiters))}


def lose(db: Any, name: str) -> None:
    """Delete the rows of a queue, as a client does that knows nothing of what refers to it."""
    db.clear_range_startswith(PriorityQueue.existing(db, name).subspace.key())
    del db[name_key(name)]


def push_to_layout(db: Any, name: str, version: int) -> None:
    """Push an item to a new queue, and let it be of another layout."""
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1)
    give_layout(db, queue, version)


def give_layout(db: Any, queue: Any, version: int) -> None:
    """Let a queue be of another layout, which has another number for its total."""
    layout = layout_of(queue)
    db[layout.options] = fdb.tuple.pack((version, *fdb.tuple.unpack(db[layout.options])[1:]))
    db[layout.totals + fdb.tuple.pack((0,))] = bytes(db[layout.total_in])
    del db[layout.total_in]
