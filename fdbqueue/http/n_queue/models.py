"""The bodies of requests and responses, and functions that build responses."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fdbqueue.aio import PriorityQueue
from fdbqueue.types import Item

__all__ = [
    "ERRORS",
    "HIGHEST",
    "MAX_ITEMS",
    "MAX_QUEUES",
    "Batch",
    "BatchPushed",
    "Counts",
    "Error",
    "Found",
    "Page",
    "Popped",
    "Push",
    "Pushed",
    "found",
]

MAX_ITEMS = 1000
"""How many items one request pushes, pops or lists at most."""

MAX_QUEUES = 1000
"""How many queues one request lists at most."""

HIGHEST = 2**53 - 1
"""The highest priority: the largest integer that every JSON reader represents exactly."""


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Push(_Request):
    """An item to push."""

    item: dict[str, Any] = Field(description="A JSON object.")
    priority: int = Field(0, ge=0, le=HIGHEST, description="The lowest is popped first.")


class Batch(_Request):
    """Items to push in one transaction."""

    items: list[Push] = Field(min_length=1, max_length=MAX_ITEMS)
    as_many_as_fit: bool = Field(
        False, description="Push the first items if the queue has no room for all."
    )


class Pushed(BaseModel):
    """The stored item."""

    id: str


class BatchPushed(BaseModel):
    """The stored items, in the order of the request."""

    ids: list[str]


class Found(BaseModel):
    """An item of a queue."""

    id: str
    priority: int
    item: Any
    pushed_at: str | None = Field(description="ISO 8601, by the clock of the pushing client.")


class Popped(BaseModel):
    """The items, in order; none if the queue is empty."""

    items: list[Found]


class Page(BaseModel):
    """The items, in order, and the `after` of the next page, or null."""

    items: list[Found]
    next: str | None


class Counts(BaseModel):
    """The number of ready items of each priority, and of all."""

    counts: dict[str, int]
    size: int


class Error(BaseModel):
    """The reason why a request failed."""

    detail: str


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request is malformed."},
    401: {"model": Error, "description": "The request needs a token."},
    403: {"model": Error, "description": "The token allows only reads."},
    404: {"model": Error, "description": "The queue or the item does not exist."},
    409: {"model": Error, "description": "The queue cannot be used over HTTP, or has changed."},
    415: {"model": Error, "description": "The body was not sent as JSON."},
    413: {"model": Error, "description": "The body is too large."},
    422: {"model": Error, "description": "A value is invalid."},
    429: {"model": Error, "description": "The queue is full, or there were too many requests."},
    503: {"model": Error, "description": "The database is unavailable."},
}


def found(queue: PriorityQueue, item: Item) -> dict[str, Any]:
    """Return the content of a `Found` for an item."""
    pushed_at = queue.queue.pushed_at(item)
    return {
        "id": item.id,
        "priority": item.priority,
        "item": item.value,
        "pushed_at": None if pushed_at is None else pushed_at.isoformat(),
    }
