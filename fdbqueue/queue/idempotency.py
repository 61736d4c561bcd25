"""Repeatable pushes: of all requests with one idempotency key, only the first stores items."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fdbqueue.database.exactly_once import run_once
from fdbqueue.errors import IdempotencyKeyReused, InvalidIdempotencyKey, PushTooLarge
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_push, encode_push
from fdbqueue.queue.arguments import MAX_TEXT
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.types import Database, Transaction

_HOURS = 24
_MAX_RECORD = 100_000  # bytes of the ids that a push has returned, in one value
_MAX_DROPPED = 100  # outdated keys that one push deletes


def remembered(
    db: Database,
    queue: BaseQueue[Any],
    key: str,
    digest: bytes,
    push: Callable[[Transaction], list[str]],
) -> list[str]:
    """Call `push(tr)`, unless a request with this key did; return the ids of the items.

    A repeated request gets the ids of the first one, even if the items have ended since. A key is
    remembered for 24 to 25 hours by the clients' clocks, until the end of the hour in which the 24
    hours are over. After that it counts as new. A push that found no room is not remembered. Each
    call deletes up to 100 outdated keys.

    The push takes effect exactly once. Two concurrent requests with one key conflict, and the
    second becomes the repeated one. Cost: two reads and two keys more than the push.

    Args:
        db: A database.
        queue: The queue.
        key: The idempotency key, 1 to 255 bytes of text. Each queue has its own keys.
        digest: A digest of the request; those of all requests with one key must be equal.
        push: Pushes in a transaction, and returns the ids of the items; none without room.

    Raises:
        InvalidIdempotencyKey: `key` is not such a text.
        PushTooLarge: The ids of the items take over 100,000 bytes.
        IdempotencyKeyReused: The first request with this key had another digest.
        FdbqueueError: As for `push`.

    Source: The Idempotency-Key HTTP Header Field, draft-ietf-httpapi-idempotency-key-header.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> push = lambda tr: [jobs.push(tr, "pack").id]
        >>> once = remembered(db, jobs, "order 7", b"digest", push)
        >>> once == remembered(db, jobs, "order 7", b"digest", push), jobs.size(db)
        (True, 1)
    """
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "replace")) <= MAX_TEXT:
        raise InvalidIdempotencyKey(key, MAX_TEXT)
    layout = store_of(queue).layout
    stored_key = layout.entry_key(layout.idempotency_keys, key)
    hour = int(time.time() // 3600)

    def body(tr: Transaction) -> list[str]:
        reading = tr[stored_key]
        _drop_outdated(tr, layout, hour)
        if (stored := reading.value) is not None:
            stored_hour, stored_digest, ids = decode_push(stored)
            if stored_hour >= hour - _HOURS:
                if stored_digest != digest:
                    raise IdempotencyKeyReused(key)
                return ids
            del tr[layout.entry_key(layout.idempotency_hours, stored_hour, key)]
        ids = push(tr)
        if ids:
            record = encode_push(hour, digest, ids)
            if len(record) > _MAX_RECORD:
                raise PushTooLarge(len(ids), len(record), _MAX_RECORD)
            tr[stored_key] = record
            tr[layout.entry_key(layout.idempotency_hours, hour, key)] = b""
        return ids

    return run_once(db, body, layout.receipts)


def _drop_outdated(tr: Transaction, layout: Layout, hour: int) -> None:
    """Delete some keys that are no longer remembered, without conflicts."""
    outdated = layout.entries_before(layout.idempotency_hours, hour - _HOURS)
    notes = [row.key for row in tr.snapshot.get_range(*outdated, limit=_MAX_DROPPED)]
    keys = [
        layout.undated_key(layout.idempotency_hours, layout.idempotency_keys, note)
        for note in notes
    ]
    # All reads start before the first is waited for.
    reads = [tr.snapshot[key] for key in keys]
    for note, key, reading in zip(notes, keys, reads):
        del tr[note]
        if (stored := reading.value) is not None:
            # Cleared only if unchanged: a concurrent push may reuse the key.
            tr.compare_and_clear(key, stored)
