"""Push and pop JSON objects with priorities from 0: an adapter over `/v1`."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.http.fields import MAX_ITEMS, MAX_WAIT
from fdbqueue.http.parameters import name_for
from fdbqueue.http.responses import json_response
from fdbqueue.http.served import Served, ServedQueues, popped
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import IdempotencyKey, found, options_of, push_item

_HIGHEST = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""

_Name: TypeAlias = Annotated[
    str, name_for("write", "The queue's name: printable text up to 255 bytes.")
]


class NewObject(BaseModel):
    """An item to push."""

    model_config = ConfigDict(strict=True, extra="forbid")

    item: dict[str, JsonValue] = Field(description="A JSON object.")
    priority: int = Field(0, ge=0, le=_HIGHEST, description="The lowest is popped first.")


class StoredObject(BaseModel):
    """The stored item."""

    id: str


class Error(BaseModel):
    """The reason why a request failed."""

    detail: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text} for status, text in answers.DESCRIPTIONS.items()
}

router = APIRouter(responses=ERRORS)


async def _queue(served: Served, name: str, must_exist: bool = True) -> aio.PriorityQueue:
    handle = await served.queue(name, must_exist)
    options = options_of(handle.queue)
    is_plain = options.codec == "json" and options.priorities is int
    if not (isinstance(handle, aio.PriorityQueue) and is_plain):
        raise HTTPException(409, "this queue needs the routes below /v1, or Python")
    return handle


@router.post("/queue/{name:path}/push", status_code=201, response_model=StoredObject)
async def push(
    request: Request,
    served: ServedQueues,
    name: _Name,
    body: NewObject,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Append an item to its priority. The first push creates the queue. 429 if it is full."""
    handle = await _queue(served, name, must_exist=False)
    item = bodies.Push(item=body.item, priority=body.priority)
    id, _ = await push_item(request, handle, item, idempotency_key)
    return json_response({"id": id}, 201)


@router.post("/queue/{name:path}/pop", response_model=answers.Popped)
async def pop(
    request: Request,
    served: ServedQueues,
    name: _Name,
    depth: Annotated[int, Query(ge=1, le=MAX_ITEMS, description="The most items to pop.")] = 1,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait while the queue is empty.")
    ] = 0,
) -> Response:
    """Pop the first items, by priority and age; none if the queue is empty.

    If the client disconnects before the response is sent, the items return to their positions.
    """
    handle = await _queue(served, name)
    return await popped(request, handle, depth, wait, lambda item: found(handle.queue, item))
