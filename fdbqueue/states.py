"""Where an item is: at its place, or kept elsewhere under that."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from fdbqueue.layout import Layout, decode_facts

__all__ = ["Found", "State", "find"]

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


def _kept(state: State, key: bytes, stored: bytes) -> Found:
    facts, value = decode_facts(stored)
    return Found(state, key, value, facts)
