"""The names of queues in a transaction: found, noted, left behind."""

from __future__ import annotations

from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.errors import QueueRenamed
from fdbqueue.layout import (
    RENAMES,
    decode_count,
    decode_subspace,
    default_subspace,
    encode_count,
    name_key,
    renames_key,
)

__all__ = ["find", "leave", "place", "register"]

MOST_TRACES = 16
"""How many names have a number of their own at most."""


def find(tr: Any, name: str) -> Subspace | None:
    """The subspace of the queue of this name; `None` if there is none."""
    prefix = tr[name_key(name)].value
    return None if prefix is None else decode_subspace(prefix)


def place(tr: Any, name: str) -> Subspace:
    """The subspace of the queue of this name, or that in which its first push makes it."""
    return find(tr, name) or _next_subspace(tr, name)[0]


def _next_subspace(tr: Any, name: str) -> tuple[Subspace, int]:
    """Return the subspace in which the next queue of this name is made, and its number."""
    own, common = tr[renames_key(name)], tr[renames_key(None)]
    number = max(decode_count(own.value), decode_count(common.value))
    return default_subspace(name, number), number


def leave(tr: Any, name: str, subspace: Subspace) -> None:
    """Let no other queue be made in the subspace of a queue that is given another name.

    Some client may have it open for as long as it runs, so this is for ever. It takes a trace only
    if the next queue of the name would be made there. Of many traces, which name has which number
    is forgotten: from then on the highest number is that of all names.
    """
    next_subspace, number = _next_subspace(tr, name)
    if subspace.key() != next_subspace.key():
        return
    tr[renames_key(name)] = encode_count(number + 1)
    traces = RENAMES.range()
    if len(list(tr.snapshot[traces])) > MOST_TRACES + 1:  # that of all names is one more
        highest = max(decode_count(row.value) for row in tr[traces])
        del tr[traces]
        tr[renames_key(None)] = encode_count(highest)


def register(tr: Any, name: str, subspace: Subspace) -> None:
    """Note where the queue of this name is; raises `QueueRenamed` if it is elsewhere."""
    if find(tr, name) not in (None, subspace):
        raise QueueRenamed(name)
    tr[name_key(name)] = subspace.key()
