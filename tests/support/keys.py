"""The keys of a queue, for tests of what is stored."""

from __future__ import annotations

from typing import Any

from fdbqueue.layout.keys import Layout


def layout_of(queue: Any) -> Layout:
    """Return the keys of a queue."""
    return Layout(queue.subspace)


def waiting_clients(db: Any, queue: Any) -> set[bytes]:
    """Return the keys of the clients that wait for items, in any process."""
    layout = layout_of(queue)
    return {row.key for row in db.get_range(*layout.range_of(layout.waiters))}
