"""Where an item is: at its place, or kept elsewhere under that."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from fdbqueue.database import read
from fdbqueue.layout import Layout, decode_facts

__all__ = ["Found", "State", "count_elsewhere", "find"]

_PAGE = 1000  # rows that one transaction counts

State: TypeAlias = Literal["waiting", "delayed", "claimed", "dead"]
"""Where an item is."""


class Found(NamedTuple):
    """An item that a transaction read: its key while it waits, its value, facts where it is."""

    state: State
    key: bytes
    value: bytes
    facts: tuple[Any, ...] = ()


def find(tr: Any, layout: Layout, place: bytes) -> Found | None:
    """The item of this place; `None` if it is there no more, nor elsewhere.

    Conflicts with whatever changes the item. Cost: one read if it waits, else three more at once.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> item = jobs.push(db, "send", delay=60)
    >>> find(db.create_transaction(), jobs.layout, jobs.layout.place(item.key)).state
    'delayed'
    """
    key = layout.items + place
    value = tr[key].value
    if value is not None:
        return Found("waiting", key, value)
    delayed, claimed, dead = (tr[prefix + place] for prefix in layout.elsewhere)
    if delayed.present():
        return _kept("delayed", key, delayed.value)
    if claimed.present():
        return _kept("claimed", key, claimed.value)
    return _kept("dead", key, dead.value) if dead.present() else None


def count_elsewhere(db: Any, layout: Layout) -> dict[State, int]:
    """Return how many items are delayed, claimed and dead, which are not among the waiting ones.

    Cost: a scan, in transactions of 1,000 items each; the values of dead letters are read.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> item = jobs.push(db, "send", delay=60)
    >>> count_elsewhere(db, jobs.layout)
    {'delayed': 1, 'claimed': 0, 'dead': 0}
    """
    # Of delayed and claimed items an index is read, which has no values.
    return {
        "delayed": _count_rows(db, *layout.range_of(layout.dues)),
        "claimed": _count_rows(db, *layout.range_of(layout.leases)),
        "dead": _count_rows(db, *layout.range_of(layout.dead)),
    }


def _count_rows(db: Any, begin: bytes, end: bytes) -> int:
    def page(tr: Any) -> list[bytes]:
        return [row.key for row in tr.snapshot.get_range(begin, end, limit=_PAGE)]

    count = 0
    while keys := read(db, page):
        count += len(keys)
        begin = keys[-1] + b"\x00"
    return count


def _kept(state: State, key: bytes, stored: bytes) -> Found:
    facts, value = decode_facts(stored)
    return Found(state, key, value, facts)
