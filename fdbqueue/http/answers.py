"""How answers are made: of items, and of what is wrong."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from fdbqueue.aio import PriorityQueue
from fdbqueue.codec import json_bytes
from fdbqueue.http.models import Error
from fdbqueue.types import Item

__all__ = ["ERRORS", "as_json", "found"]

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request is not what it should be."},
    401: {"model": Error, "description": "A token is needed."},
    403: {"model": Error, "description": "The token may only read."},
    404: {"model": Error, "description": "There is no such queue, or no such item."},
    409: {"model": Error, "description": "The queue is not one for HTTP, or changed meanwhile."},
    415: {"model": Error, "description": "The body is not sent as JSON."},
    413: {"model": Error, "description": "The body is too large."},
    422: {"model": Error, "description": "A value cannot be used."},
    429: {"model": Error, "description": "The queue is full, or too many requests came."},
    503: {"model": Error, "description": "The database cannot be used now."},
}


def found(queue: PriorityQueue, item: Item) -> dict[str, Any]:
    """What a `Found` is."""
    pushed_at = queue.queue.pushed_at(item)
    return {
        "id": item.id,
        "priority": item.priority,
        "item": item.value,
        "pushed_at": None if pushed_at is None else pushed_at.isoformat(),
    }


def as_json(content: dict[str, Any], status: int = 200) -> Response:
    """An answer that is made of what needs no check."""
    return Response(json_bytes(content), status, media_type="application/json")
