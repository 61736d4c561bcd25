"""Thousands of queues, made in a few transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.database.retrying import run
from fdbqueue.layout.names import default_subspace, name_key

_ROWS = 5000  # that one transaction writes


def copy_queue(db: Any, source: PriorityQueue, names: list[str]) -> None:
    """Store copies of a queue under other names."""
    prefix = source.subspace.key()
    rows = [(row.key[len(prefix) :], row.value) for row in db.get_range_startswith(prefix)]

    def copy(tr: Any) -> None:
        for name in page:
            copied = default_subspace(name, 0).key()
            tr[name_key(name)] = copied
            for key, value in rows:
                tr[copied + key] = value

    size = max(1, _ROWS // len(rows))
    for begin in range(0, len(names), size):
        page = names[begin : begin + size]
        run(db, copy)


def make_queues(db: Any, name: str, number: int, busy: set[int] = frozenset()) -> dict[str, int]:
    """Make queues that were used and are empty, except some, which have two items.

    Returns:
        The size of each queue by name, in order of the names.
    """
    names = [f"{name}{n:06}" for n in range(number)]
    source = PriorityQueue.named(db, f"{name}source")
    source.push(db, "popped")
    source.pop(db)
    copy_queue(db, source, [each for n, each in enumerate(names) if n not in busy])
    source.push_many(db, ["one", "two"], priorities=[0, 7])
    copy_queue(db, source, [names[n] for n in sorted(busy)])
    fdbqueue.admin.drop(db, f"{name}source")
    return {each: 2 * (n in busy) for n, each in enumerate(names)}


def pages_of(look: Any, db: Any, after: str, size: int) -> Iterator[Any]:
    """Yield the pages that `look(db, after=..., limit=size)` returns behind a name."""
    while page := look(db, after=after, limit=size):
        yield page
        after = list(page)[-1]
