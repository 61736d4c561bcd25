"""What requests and answers look like, and how answers are made."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from fdbqueue.aio import PriorityQueue
from fdbqueue.layout.codecs import json_bytes
from fdbqueue.types import Item

__all__ = [
    "ERRORS",
    "HIGHEST",
    "MAX_ITEMS",
    "Batch",
    "BatchPushed",
    "Counts",
    "Error",
    "Found",
    "Page",
    "Popped",
    "Push",
    "Pushed",
    "QueueSize",
    "Queues",
    "Status",
    "as_json",
    "found",
]

MAX_ITEMS = 1000
"""How many items one request pushes, pops or lists at most."""

HIGHEST = 2**53 - 1
"""The highest priority: as far as numbers are exact wherever JSON is read."""


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Push(_Request):
    """An item to push."""

    item: dict[str, Any] = Field(description="A JSON object.")
    priority: int = Field(0, ge=0, le=HIGHEST, description="The lowest comes out first.")


class Batch(_Request):
    """Items to push in one transaction."""

    items: list[Push] = Field(min_length=1, max_length=MAX_ITEMS)
    as_many_as_fit: bool = Field(
        False, description="If the queue has no room for all: the first ones, instead of none."
    )


class Pushed(BaseModel):
    """What was stored."""

    id: str


class BatchPushed(BaseModel):
    """What was stored, in the order of the request."""

    ids: list[str]


class Found(BaseModel):
    """An item of a queue."""

    id: str
    priority: int
    item: Any
    pushed_at: str | None = Field(description="By the clock of who pushed it; ISO 8601.")


class Popped(BaseModel):
    """Items in order; none if the queue is empty."""

    items: list[Found]


class Page(BaseModel):
    """Items in order, and the `after` of the next page, or null."""

    items: list[Found]
    next: str | None


class Counts(BaseModel):
    """How many items each priority has."""

    counts: dict[str, int]
    size: int


class QueueSize(BaseModel):
    """A queue."""

    name: str
    size: int


class Queues(BaseModel):
    """All queues, in order of their names."""

    queues: list[QueueSize]


class Status(BaseModel):
    """That all is well."""

    status: str


class Error(BaseModel):
    """Why nothing was done."""

    detail: str


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
