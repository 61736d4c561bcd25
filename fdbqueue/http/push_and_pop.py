"""Push and pop JSON objects with priorities from 0: an adapter over `/v1`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.exceptions import HTTPException

from fdbqueue.http.fields import MAX_ITEMS, MAX_WAIT
from fdbqueue.http.parameters import name_for
from fdbqueue.http.responses import json_response
from fdbqueue.http.served import Opened, opened_queue
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


async def _queue(request: Request, name: str, must_exist: bool = True) -> Opened:
    opened = await opened_queue(request, name, must_exist)
    options = options_of(opened.queue)
    if (options.kind, options.codec, options.priorities) != ("priority", "json", int):
        raise HTTPException(409, "this queue needs the routes below /v1, or Python")
    return opened


@router.post("/queue/{name:path}/push", status_code=201, response_model=StoredObject)
async def push(
    request: Request, name: _Name, body: NewObject, key: IdempotencyKey = None
) -> Response:
    """Append an item to its priority. The first push creates the queue. 429 if it is full."""
    opened = await _queue(request, name, must_exist=False)
    item = bodies.Push(item=body.item, priority=body.priority)
    id, _ = await push_item(opened, item, key)
    return json_response({"id": id}, 201)


@router.post("/queue/{name:path}/pop", response_model=answers.Popped)
async def pop(
    request: Request,
    name: _Name,
    depth: Annotated[int, Query(ge=1, le=MAX_ITEMS, description="The most items to pop.")] = 1,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait while the queue is empty.")
    ] = 0,
) -> Response:
    """Pop the first items, by priority and age; none if the queue is empty.

    If the client disconnects before the response is sent, the items return to their positions.
    """
    opened = await _queue(request, name)
    return await opened.popped(depth, wait, partial(found, opened.queue))
