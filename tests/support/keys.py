"""The keys of a queue, for tests of what is stored."""

from __future__ import annotations

from typing import Any

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


def rows_in(db: Any, queue: Any, *spaces: str) -> list[Any]:
    """Return the rows of some key spaces of a queue, by their names in `Layout`."""
    prefixes = [getattr(layout_of(queue), space) for space in spaces]
    return [row for prefix in prefixes for row in db.get_range_startswith(prefix)]


def number_in(db: Any, queue: Any, *spaces: str) -> int:
    """Return the number of these rows."""
    return len(rows_in(db, queue, *spaces))


def push_undecodable(db: Any, name: str) -> None:
    """Push an item to a new queue, and give it a counter of no priority."""
    queue = PriorityQueue.named(db, name)
    queue.push(db, 1)
    db[layout_of(queue).counts + b"\x03"] = (1).to_bytes(8, "little")
