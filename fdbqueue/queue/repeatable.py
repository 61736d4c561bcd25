"""Pushes that can be repeated: imports of lines, and requests with an idempotency key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import IOBase
from typing import Any

from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.pages import in_batches
from fdbqueue.errors import FdbqueueError, IdempotencyKeyReused, InvalidLine, PushTooLarge
from fdbqueue.layout.codecs import parse_json
from fdbqueue.layout.values import decode_push, encode_push
from fdbqueue.operations.items import BATCH_BYTES, NewItem
from fdbqueue.operations.push import PushRequest
from fdbqueue.operations.timers import drop_ended
from fdbqueue.options import PushManyOptions
from fdbqueue.queue.arguments import validate_group, validate_key
from fdbqueue.queue.base import BaseQueue, new_items, store_of
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import Database, Json, Transaction

_BATCH_LINES = 1000
MAX_LINE = 50_000_000
"""Bytes of a line: the largest payload with each byte as in `\\u0061`, and other fields."""

_REMEMBERED = "4w"


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import.

    Attributes:
        stored: Lines that were stored now.
        skipped: Lines that an earlier run had stored.
        full: Whether the queue had no room for the remaining lines.
    """

    stored: int
    skipped: int
    full: bool = False


def import_lines(
    db: Database,
    queue: PriorityQueue,
    lines: Iterable[bytes],
    source: str | None,
    *,
    priority: object = 0,
    priority_field: str | None = None,
    value_field: str | None = None,
    group: str | None = None,
    group_field: str | None = None,
) -> ImportReport:
    """Push each line, a JSON value, in order; skip lines that an earlier run of this import stored.

    Each line gets a unique key for four weeks, made of the source, its number and its bytes, so a
    concurrent run skips it, too. `clear` deletes the keys. Each transaction stores up to 1,000
    lines. If the queue is full, a later run continues there.

    Args:
        db: A database.
        queue: The queue.
        lines: The lines, or a binary file.
        source: A name of this import, such as a path. With `None`, every line is pushed.
        priority: The default priority, in its JSON form (a list for a tuple).
        priority_field: The field of each line with its priority.
        value_field: The field to push instead of the whole line.
        group: The default group.
        group_field: The field of each line with its group.

    Raises:
        InvalidLine: A line is not valid, or longer than 50 MB. The lines before it are stored.

    Example:
        >>> import_lines(db, jobs, [b'{"n": 1, "p": 5}'], "a file", priority_field="p")
        ImportReport(stored=1, skipped=0, full=False)
        >>> import_lines(db, jobs, [b'{"n": 1, "p": 5}'], "a file", priority_field="p")
        ImportReport(stored=0, skipped=1, full=False)
    """
    group = validate_group(group)
    store, stored, skipped = store_of(queue), 0, 0

    def item_of(number: int, line: bytes) -> NewItem:
        value = _parse(line)
        level: Any = priority if priority_field is None else _field(value, priority_field)
        own = value.get(group_field) if group_field and isinstance(value, dict) else None
        options: PushManyOptions = {"group": group if own is None else own}
        if source is not None:
            options |= {"unique": [_key(source, number, line)], "unique_for": _REMEMBERED}
        pushed = value if value_field is None else _field(value, value_field)
        return new_items(store, [pushed], [store.levels.from_json(level)], **options)[0]

    for batch in in_batches(
        _items(lines, source, item_of), lambda item: len(item.payload), _BATCH_LINES, BATCH_BYTES
    ):
        push = partial(
            store.pusher.push_unique, push=PushRequest(batch, True), relies_on_full=False
        )
        pushed = store.change(db, push)
        new = sum(each.is_new for each in pushed)
        stored, skipped = stored + new, skipped + len(pushed) - new
        if len(pushed) < len(batch):
            return ImportReport(stored, skipped, full=True)
    return ImportReport(stored, skipped)


def _items(
    lines: Iterable[bytes], source: str | None, item_of: Callable[[int, bytes], NewItem]
) -> Iterator[NewItem]:
    """Yield the item of each line that is not empty; raise `InvalidLine`."""
    if isinstance(lines, IOBase):  # of a long line, only as much as shows that it is too long
        lines = iter(partial(lines.readline, MAX_LINE + 1), b"")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = item_of(number, line)
        except (FdbqueueError, ValueError) as error:
            raise InvalidLine(number, str(error), source) from error
        yield item


def _parse(line: bytes) -> Json:
    if len(line) > MAX_LINE:
        raise ValueError(f"it is longer than {MAX_LINE:,} bytes")
    try:
        value: Json = parse_json(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    return value


def _key(source: str, number: int, line: bytes) -> str:
    content = b"%d %b\n%b" % (number, source.encode(), line.rstrip(b"\r\n"))
    return f"import {hashlib.sha256(content).hexdigest()[:32]}"


def _field(value: Json, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"it is not an object with a field {name!r}")
    return value[name]


_MILLISECONDS = 24 * 3_600_000  # for which a key is remembered
_MAX_RECORD = 100_000  # bytes of the ids that a push has returned, in one value
_MAX_DROPPED = 100  # outdated keys that one push deletes


def remembered(
    db: Database,
    queue: BaseQueue[Any],
    key: str,
    digest: bytes,
    push: Callable[[Transaction], list[str]],
) -> list[str]:
    """Call `push(tr)` unless a request with this key did; return the ids of the items.

    The push takes effect exactly once. A queue remembers a key for 24 hours by the clients' clocks,
    but not a push without room. Concurrent requests with one key conflict. Cost: two reads and two
    keys more than the push.

    The key is 1 to 255 bytes of text, and `digest` a digest of the request. `push` returns the ids
    of the items, none without room.

    Raises:
        PushTooLarge: The ids of the items take over 100,000 bytes.
        IdempotencyKeyReused: The first request with this key had another digest.

    Source: The Idempotency-Key HTTP Header Field, draft-ietf-httpapi-idempotency-key-header.

    Example:
        >>> push = lambda tr: [jobs.push(tr, "pack").id]
        >>> once = remembered(db, jobs, "order 7", b"digest", push)
        >>> once == remembered(db, jobs, "order 7", b"digest", push), jobs.size(db)
        (True, 1)
    """
    validate_key("an idempotency key", key)
    layout = store_of(queue).layout
    stored_key = layout.entry_key(layout.idempotency_keys, key)
    index, now = layout.idempotency_ends, milliseconds()

    def body(tr: Transaction) -> list[str]:
        reading = tr[stored_key]
        drop_ended(tr, layout, now, index, layout.idempotency_keys, _MAX_DROPPED)
        if (stored := reading.value) is not None:
            ends, stored_digest, ids = decode_push(stored)
            if ends > now:
                if stored_digest != digest:
                    raise IdempotencyKeyReused(key)
                return ids
            del tr[layout.entry_key(index, ends, key)]
        ids = push(tr)
        if ids:
            record = encode_push(now + _MILLISECONDS, digest, ids)
            if len(record) > _MAX_RECORD:
                raise PushTooLarge(len(ids), len(record), _MAX_RECORD)
            tr[stored_key] = tr[layout.entry_key(index, now + _MILLISECONDS, key)] = record
        return ids

    return run_once(db, body, layout.receipts)
