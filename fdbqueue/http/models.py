"""What requests and answers look like."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "HIGHEST",
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
]


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

    items: list[Push] = Field(min_length=1, max_length=1000)
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
