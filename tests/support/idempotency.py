"""Pushes with an idempotency key, as the HTTP server makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from fdbqueue import PriorityQueue
from fdbqueue.queue.repeatable import remembered


def push_once(
    db: Any, queue: PriorityQueue, key: str, values: Iterable[Any], priorities: Iterable[Any]
) -> list[str]:
    digest = hashlib.sha256(repr((values, priorities)).encode()).digest()

    def push(tr: Any) -> list[str]:
        items = queue.push_many(tr, [*values], priorities=[*priorities])
        return [item.id for item in items]

    return remembered(db, queue, key, digest, push)
