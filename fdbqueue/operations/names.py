"""Queue names: find, register, give up."""

from __future__ import annotations

from difflib import get_close_matches

from fdb.subspace_impl import Subspace

from fdbqueue.errors import QueueNotFound, QueueRenamed
from fdbqueue.layout.names import (
    NAMES,
    decode_name,
    decode_subspace,
    default_subspace,
    first_name,
    name_key,
    renames_key,
    restored_subspace,
    unfinished_key,
)
from fdbqueue.layout.values import decode_count, encode_count
from fdbqueue.types import ReadTransaction, Transaction

_NAMES = NAMES.range().start, NAMES.range().stop
_NEAR = 50  # names on either side of one that no queue has, which are compared with it
_MAX_SUGGESTIONS = 3
_MAX_OTHERS = 10


def find(tr: ReadTransaction, name: str) -> Subspace | None:
    """Return the named queue's subspace, or `None`."""
    prefix = tr[name_key(name)].value
    return None if prefix is None else decode_subspace(prefix)


def find_existing(tr: Transaction, name: str) -> Subspace:
    """Return the named queue's subspace; raise `QueueNotFound`."""
    subspace = find(tr, name)
    if subspace is not None:
        return subspace
    begin, end = _NAMES
    key = name_key(name)
    # Few names, as clients may ask again and again.
    near = (
        tr.snapshot.get_range(begin, key, limit=_NEAR, reverse=True),
        tr.snapshot.get_range(key, end, limit=_NEAR),
    )
    before, after = ([decode_name(row.key) for row in rows] for rows in near)
    similar = get_close_matches(name, [*before, *after], _MAX_SUGGESTIONS)
    few = _MAX_OTHERS // 2
    others = [] if similar else [*reversed(before[:few]), *after[:few]]
    raise QueueNotFound(name, similar, others)


def name_of(tr: ReadTransaction, prefix: bytes) -> str | None:
    """Return the name of the queue with this prefix, or `None`.

    Cost: a read; for a renamed, restored or copied queue, all names.
    """
    first = first_name(prefix)
    if first is not None and tr[name_key(first)].value == prefix:
        return first
    rows = getattr(tr, "snapshot", tr).get_range(*_NAMES)
    return next((decode_name(row.key) for row in rows if row.value == prefix), None)


def location(tr: Transaction, name: str) -> Subspace:
    """Return the subspace that the named queue has or would get."""
    return find(tr, name) or _next_subspace(tr, name)[0]


def _next_subspace(tr: Transaction, name: str) -> tuple[Subspace, int]:
    number = decode_count(tr[renames_key(name)].value)
    return default_subspace(name, number), number


def leave(tr: Transaction, name: str, subspace: Subspace) -> None:
    """Reserve a queue's subspace for good, before a rename."""
    next_subspace, number = _next_subspace(tr, name)
    if subspace.key() == next_subspace.key():
        tr[renames_key(name)] = encode_count(number + 1)


def drop_unfinished(tr: Transaction, name: str) -> bool:
    """Delete an unfinished restore of this name; return whether there was one."""
    key = unfinished_key(name)
    stored = tr[key].value
    if stored is None:
        return False
    del tr[restored_subspace(stored).range()]
    del tr[key]
    return True


def check_name(tr: ReadTransaction, name: str, subspace: Subspace) -> None:
    """Raise `QueueRenamed` if another queue has the name now."""
    stored = find(tr, name)
    if stored is not None and stored.key() != subspace.key():
        raise QueueRenamed(name)


def register(tr: Transaction, name: str, subspace: Subspace) -> None:
    """Store the location of the queue with this name; raise `QueueRenamed`."""
    check_name(tr, name, subspace)
    tr[name_key(name)] = subspace.key()
