"""Queue names within a transaction: find, register, give up."""

from __future__ import annotations

from difflib import get_close_matches

from fdb.subspace_impl import Subspace

from fdbqueue.errors import QueueNotFound, QueueRenamed
from fdbqueue.layout import (
    NAMES,
    RENAMES,
    decode_count,
    decode_name,
    decode_subspace,
    default_subspace,
    encode_count,
    name_key,
    renames_key,
)
from fdbqueue.types import Transaction

__all__ = ["find", "find_existing", "leave", "location", "register"]

_NAMES = NAMES.range().start, NAMES.range().stop
_MAX_NAMES = 1000  # that are compared with a name that no queue has
_MAX_SUGGESTIONS = 3

MAX_TRACES = 16
"""The maximum number of names with a separate number."""


def find(tr: Transaction, name: str) -> Subspace | None:
    """Return the subspace of the queue with this name; `None` if there is none."""
    prefix = tr[name_key(name)].value
    return None if prefix is None else decode_subspace(prefix)


def find_existing(tr: Transaction, name: str) -> Subspace:
    """Return the subspace of the queue with this name.

    Raises:
        QueueNotFound: There is none. Its message suggests similar names, of the first 1,000.
    """
    subspace = find(tr, name)
    if subspace is not None:
        return subspace
    names = [decode_name(row.key) for row in tr.snapshot.get_range(*_NAMES, limit=_MAX_NAMES)]
    raise QueueNotFound(name, get_close_matches(name, names, _MAX_SUGGESTIONS))


def location(tr: Transaction, name: str) -> Subspace:
    """Return the subspace that the queue with this name has, or would get by its first push."""
    return find(tr, name) or _next_subspace(tr, name)[0]


def _next_subspace(tr: Transaction, name: str) -> tuple[Subspace, int]:
    """Return the subspace and the number that the next queue with this name gets."""
    named, common = tr[renames_key(name)], tr[renames_key(None)]
    number = max(decode_count(named.value), decode_count(common.value))
    return default_subspace(name, number), number


def leave(tr: Transaction, name: str, subspace: Subspace) -> None:
    """Prevent other queues from using the subspace of a queue that is being renamed.

    This is permanent, because a client may keep the queue open for any time. It writes a *trace*,
    the number of the next queue with the name, but only if that queue would use this subspace.
    Above 16 traces, the highest number replaces all others and applies to all names.
    """
    next_subspace, number = _next_subspace(tr, name)
    if subspace.key() != next_subspace.key():
        return
    tr[renames_key(name)] = encode_count(number + 1)
    traces = RENAMES.range()
    if len(list(tr.snapshot[traces])) > MAX_TRACES + 1:  # and the common number
        highest = max(decode_count(row.value) for row in tr[traces])
        del tr[traces]
        tr[renames_key(None)] = encode_count(highest)


def register(tr: Transaction, name: str, subspace: Subspace) -> None:
    """Store the location of the queue with this name.

    Raises:
        QueueRenamed: The name belongs to another queue.
    """
    stored = find(tr, name)
    if stored is not None and stored.key() != subspace.key():
        raise QueueRenamed(name)
    tr[name_key(name)] = subspace.key()
