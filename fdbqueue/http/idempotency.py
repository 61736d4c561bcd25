"""Pushes that a client may repeat: of those with one idempotency key, one is stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fdbqueue.database.receipts import run_once
from fdbqueue.errors import IdempotencyKeyReused, InvalidIdempotencyKey
from fdbqueue.layout import Layout
from fdbqueue.layout.values import decode_push, encode_push, push_digest
from fdbqueue.queue.base import store_of
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import Priority

__all__ = ["MAX_KEY", "push_once"]

_HOURS = 24
MAX_KEY = 255
"""Bytes of UTF-8; a header has as many characters."""

_MOST_DROPPED = 100  # outdated keys that one push drops


def push_once(
    db: Any,
    queue: PriorityQueue,
    key: str,
    values: Sequence[Any],
    priorities: Sequence[Priority],
    *,
    as_many_as_fit: bool = False,
) -> list[str]:
    """Push values, unless a push with the same idempotency key did; the ids of the items.

    A repeated push has the ids that the first one had, whatever became of the items meanwhile. A
    key is remembered for at least 24 hours and at most 25, by the clients' clocks: until the end of
    the hour in which the 24 hours are over. Then it is a new key. A push that found no room is not
    remembered. Each call drops up to 100 keys whose time is over.

    Takes effect exactly once; two at once with one key conflict, and the second is the repeated
    one. Cost: two reads and two keys beside those of the push.

    Parameters: `key`, 1 to 255 bytes of text, of the queue's own.

    Raises as `push_many`, `InvalidIdempotencyKey`, and `IdempotencyKeyReused` if the first
    push with this key was of other values, or with other priorities.

    Source: The Idempotency-Key HTTP Header Field, draft-ietf-httpapi-idempotency-key-header.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = PriorityQueue.named(db, "jobs")
    >>> once = push_once(db, jobs, "order 7", ["pack"], [0])
    >>> once == push_once(db, jobs, "order 7", ["pack"], [0]), jobs.size(db)
    (True, 1)
    """
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "replace")) <= MAX_KEY:
        raise InvalidIdempotencyKey(key, MAX_KEY)
    store = store_of(queue)
    layout = store.layout
    stored_key = layout.idempotency_key(key)
    hour = int(time.time() // 3600)
    payloads = map(store.codec.encode, values)
    digest = push_digest(as_many_as_fit, zip(payloads, map(repr, priorities)))

    def body(tr: Any) -> list[str]:
        stored = tr[stored_key]
        _drop_outdated(tr, layout, hour)
        if stored.present():
            stored_hour, stored_digest, ids = decode_push(stored.value)
            if stored_hour >= hour - _HOURS:
                if stored_digest != digest:
                    raise IdempotencyKeyReused(key)
                return ids
            del tr[layout.idempotency_hour(stored_hour, key)]
        items = queue.push_many(tr, values, priorities=priorities, as_many_as_fit=as_many_as_fit)
        if items:
            tr[stored_key] = encode_push(hour, digest, [item.id for item in items])
            tr[layout.idempotency_hour(hour, key)] = b""
        return [item.id for item in items]

    return run_once(db, body, layout.receipts)


def _drop_outdated(tr: Any, layout: Layout, hour: int) -> None:
    """Drop keys that are remembered no longer, as many as one push may; conflict with nothing."""
    outdated = layout.idempotency_keys_before(hour - _HOURS)
    notes = [row.key for row in tr.snapshot.get_range(*outdated, limit=_MOST_DROPPED)]
    keys = [layout.idempotency_key(layout.key_in_hour(note)) for note in notes]
    # Every read is under way before the first is waited for.
    reads = [tr.snapshot[key] for key in keys]
    for note, key, stored in zip(notes, keys, reads):
        del tr[note]
        if stored.present():  # and is still the same: a push may use the key again meanwhile
            tr.compare_and_clear(key, stored.value)
