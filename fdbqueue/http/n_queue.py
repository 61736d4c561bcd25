"""The routes of the N-queue below `/queue`: an adapter over `v1`, for queues of JSON objects.

The queues are priority queues whose priorities are integers from 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.errors import OptionsMismatch
from fdbqueue.http.fields import MAX_ITEMS, MAX_WAIT, NAME_SCHEMA
from fdbqueue.http.responses import json_response
from fdbqueue.http.routing import (
    IDEMPOTENCY_KEY,
    SAME_QUEUE,
    Links,
    links,
    links_to,
    name_for,
    next_page,
    parameter,
    read_json,
)
from fdbqueue.http.security import authorize
from fdbqueue.http.served import Served, ServedQueues, call_waiting, popped, validate_encoding
from fdbqueue.http.v1.bodies import (
    PROBLEM_DESCRIPTIONS,
    BatchPushed,
    QueueNumbers,
    Queues,
)
from fdbqueue.http.v1.parameters import AfterQueue
from fdbqueue.http.v1.values import options_of
from fdbqueue.queue.arguments import MAX_TEXT
from fdbqueue.queue.overview import stats_as_json
from fdbqueue.queue.transfer.idempotency import push_once
from fdbqueue.types import Item

_HIGHEST = 2**53 - 1
"""The highest priority: the largest integer that every JSON reader represents exactly."""

_NUMBER = re.compile(r"[0-9.eE+-]+")


# Bodies


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Push(_Request):
    """An item to push."""

    item: dict[str, Any] = Field(description="A JSON object.")
    priority: int = Field(0, ge=0, le=_HIGHEST, description="The lowest is popped first.")


class Batch(_Request):
    """Items to push in one transaction."""

    items: list[Push] = Field(min_length=1, max_length=MAX_ITEMS)
    as_many_as_fit: bool = Field(
        False, description="Push the first items if the queue has no room for all."
    )


class Pushed(BaseModel):
    """The stored item."""

    id: str


class Found(BaseModel):
    """An item of a queue."""

    id: str
    priority: int
    item: Any
    pushed_at: str | None = Field(description="ISO 8601, by the clock of the pushing client.")


class Popped(BaseModel):
    """The items, in order; none if the queue is empty."""

    items: list[Found]


class Page(Popped):
    """The items, in order, and the `after` of the next page, or null."""

    next: str | None


class Counts(BaseModel):
    """The number of ready items of each priority, and of all."""

    counts: dict[str, int]
    size: int


class Error(BaseModel):
    """The reason why a request failed."""

    detail: str


_DESCRIPTIONS = {
    **PROBLEM_DESCRIPTIONS,
    403: "The token allows only reads.",
    409: "The queue cannot be used over HTTP, or has changed.",
}

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text}
    for status, text in _DESCRIPTIONS.items()
    if status != 412  # no route has an ETag
}
"""The responses to requests that fail, for OpenAPI."""


# Parameters

_NAME = "The queue's name: printable text up to 255 bytes."

_ReadOf: TypeAlias = Annotated[str, name_for("read", _NAME)]
_AdminOf: TypeAlias = Annotated[str, name_for("admin", _NAME)]
_WriteOf: TypeAlias = Annotated[str, name_for("write", _NAME)]

_NAMED = parameter("name", "path", _NAME, type="string", **NAME_SCHEMA)
_DEPTH = parameter(
    *("depth", "query", "The most items to pop."),
    type="integer",
    minimum=1,
    maximum=MAX_ITEMS,
    default=1,
)
_WAIT = parameter(
    *("wait", "query", "Seconds to wait while the queue is empty."),
    type="number",
    minimum=0,
    maximum=MAX_WAIT,
    default=0,
)
_BODY = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Push"}}},
}


def _number(request: Request, parameter: dict[str, Any], kind: Callable[[str], float]) -> float:
    """Return a number of the query of a direct route."""
    name, schema = parameter["name"], parameter["schema"]
    text = request.query_params.get(name)
    if text is None:
        default: float = schema["default"]
        return default
    low, high = schema["minimum"], schema["maximum"]
    if _NUMBER.fullmatch(text):  # Python also accepts 1_0 and digits of every script
        with suppress(ValueError):
            number = kind(text)
            if math.isfinite(number) and low <= number <= high:
                return number
    raise HTTPException(422, f"{name}: expected {schema['type']} from {low} to {high:g}")


# Links

_ROUTES = {
    "push": "POST /push",
    "push_batch": "POST /batch",
    "pop": "POST /pop",
    "peek": "GET /peek",
    "counts": "GET /counts",
    "stats": "GET /stats",
    "items": "GET /items",
    "drop": "DELETE",
}
"""The functions of the routes, with their methods and the rest of their paths."""


def _of_queue(*only: str, name: str = SAME_QUEUE) -> Links:
    """Return links to the operations of a queue, by default all."""
    return links_to("/queue/{name}", {each: _ROUTES[each] for each in only or _ROUTES}, name=name)


def _of_item(item_id: str) -> Links:
    """Return a link to the operation that removes an item."""
    routes = {"remove": "DELETE /items/{item_id}"}
    return links_to("/queue/{name}", routes, name=SAME_QUEUE, item_id=item_id)


# Routes

direct = APIRouter(responses=ERRORS)
others = APIRouter(responses=ERRORS)


async def _priority_queue(served: Served, name: str, must_exist: bool = True) -> aio.PriorityQueue:
    """Return a queue of JSON items with integer priorities; refuse another one."""
    queue = await served.queue(name, must_exist)
    options = options_of(queue.queue)
    if not isinstance(queue, aio.PriorityQueue):
        raise OptionsMismatch("kind", "priority", options.kind)
    if options.codec != "json" or options.priorities is not int:
        raise HTTPException(
            409, "this queue's items are not JSON, or its priorities no integers; use Python"
        )
    return queue


def _found(queue: aio.PriorityQueue, item: Item) -> dict[str, Any]:
    """Return an item as JSON."""
    pushed_at = queue.pushed_at(item)
    return {
        "id": item.id,
        "priority": item.priority,
        "item": item.value,
        "pushed_at": pushed_at and pushed_at.isoformat(),
    }


async def _push(
    served: Served, name: str, items: list[Push], key: str | None, as_many_as_fit: bool = False
) -> list[str]:
    """Push items in one transaction and return their ids; an empty list if there is no room."""
    queue = await _priority_queue(served, name, must_exist=False)
    values = [each.item for each in items]
    priorities = [each.priority for each in items]
    if key is None:
        stored = await queue.push_many(
            served.db, values, priorities=priorities, as_many_as_fit=as_many_as_fit
        )
        return [item.id for item in stored]
    push = partial(push_once, as_many_as_fit=as_many_as_fit)
    return await aio.run(push, served.db, queue.queue, key, values, priorities)


@direct.post(
    "/queue/{name:path}/push",
    status_code=201,
    response_model=Pushed,
    openapi_extra={"parameters": [_NAMED, IDEMPOTENCY_KEY], "requestBody": _BODY},
    responses=links(201, _of_queue(), _of_item("$response.body#/id")),
)
async def push(request: Request) -> Response:
    """Append an item to its priority. The first push creates the queue.

    For a day, a request repeated with the same `Idempotency-Key` stores nothing more and gets the
    same response. 429 if the queue is full.
    """
    name: str = request.path_params["name"]
    authorize(request, "write", name)
    body = await read_json(request, Push)
    key = request.headers.get("idempotency-key")
    ids = await _push(request.app.state.served, name, [body], key)
    if not ids:
        raise HTTPException(429, "the queue is full; nothing was stored")
    return json_response({"id": ids[0]}, 201)


@direct.post(
    "/queue/{name:path}/pop",
    response_model=Popped,
    openapi_extra={"parameters": [_NAMED, _DEPTH, _WAIT]},
)
async def pop(request: Request) -> Response:
    """Pop the first items: the lowest priority first, within a priority the oldest first.

    The items are removed once the response is sent. If the client disconnects before that, they
    return to their positions. The list is empty if the queue is; with `wait`, if it stayed empty
    for that many seconds.
    """
    name: str = request.path_params["name"]
    authorize(request, "write", name)
    depth, wait = 1, 0.0
    if request.scope["query_string"]:
        depth = int(_number(request, _DEPTH, int))
        wait = _number(request, _WAIT, float)
    served: Served = request.app.state.served
    queue = await _priority_queue(served, name)
    items = await call_waiting(request, queue, "pop_many", depth, wait=wait)
    return popped(served.db, queue, items, partial(_found, queue))


@others.post(
    "/queue/{name:path}/batch",
    status_code=201,
    responses=links(201, _of_queue(), _of_item("$response.body#/ids/0")),
)
async def push_batch(
    served: ServedQueues,
    name: _WriteOf,
    body: Batch,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=MAX_TEXT)] = None,
) -> BatchPushed:
    """Push several items in one transaction: all of them or none, or as many as fit."""
    ids = await _push(served, name, body.items, idempotency_key, body.as_many_as_fit)
    if not ids:
        raise HTTPException(429, "the queue has no room for these; nothing was stored")
    return BatchPushed(ids=ids)


@others.get(
    "/queue/{name:path}/peek",
    response_model=Popped,
    responses=links(200, _of_queue("pop"), _of_item("$response.body#/items/0/id")),
)
async def peek(
    served: ServedQueues,
    name: _ReadOf,
    depth: Annotated[int, Query(ge=1, le=MAX_ITEMS, description="How many items at most.")] = 1,
) -> Response:
    """Return the item that a pop would take, without removing it."""
    queue = await _priority_queue(served, name)
    items = await queue.peek_many(served.db, depth)
    return json_response({"items": [_found(queue, item) for item in items]})


@others.get("/queue/{name:path}/counts")
async def counts(served: ServedQueues, name: _ReadOf) -> Counts:
    """Return the number of ready items of each priority, without reading the items."""
    queue = await _priority_queue(served, name)
    by_priority = await queue.counts(served.db)
    return Counts(
        counts={str(priority): count for priority, count in by_priority.items()},
        size=sum(by_priority.values()),
    )


@others.get("/queue/{name:path}/stats", response_model=QueueNumbers)
async def stats(served: ServedQueues, name: _ReadOf) -> Response:
    """Return how many items are in each state, the limits of the queue and its totals."""
    queue = await aio.existing_queue(served.db, name)
    return json_response(stats_as_json(await queue.stats(served.db)))


@others.get(
    "/queue/{name:path}/items",
    response_model=Page,
    responses=links(
        200,
        _of_queue("pop"),
        _of_item("$response.body#/items/0/id"),
        next_page("/queue/{name}/items", "items", "priority", name=SAME_QUEUE),
    ),
)
async def items(
    served: ServedQueues,
    name: _ReadOf,
    limit: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = 100,
    after: Annotated[str | None, Query(description="An item's id: only what follows it.")] = None,
    priority: Annotated[int | None, Query(ge=0, le=_HIGHEST)] = None,
) -> Response:
    """The ready items in order, page by page."""
    queue = await _priority_queue(served, name)
    found = await queue.items(served.db, priority=priority, limit=limit + 1, after=after)
    page = [_found(queue, item) for item in found[:limit]]
    return json_response({"items": page, "next": page[-1]["id"] if found[limit:] else None})


@others.delete("/queue/{name:path}/items/{item_id}", status_code=204)
async def remove(served: ServedQueues, name: _AdminOf, item_id: str) -> Response:
    """Remove one item, in any state but claimed."""
    queue = await _priority_queue(served, name)
    if not await queue.remove(served.db, item_id):
        raise HTTPException(404, "there is no such item in the queue, now")
    return Response(status_code=204)


@others.delete("/queue/{name:path}", status_code=204)
async def drop(served: ServedQueues, name: _AdminOf) -> Response:
    """Drop a queue with all its items."""
    validate_encoding(name)
    served.forget(name)
    await aio.drop(served.db, name)
    return Response(status_code=204)


@others.get(
    "/queues",
    response_model=Queues,
    responses=links(
        200, _of_queue(name="$response.body#/queues/0/name"), next_page("/queues", "queues")
    ),
)
async def queues(
    request: Request,
    served: ServedQueues,
    limit: Annotated[
        int, Query(ge=1, le=MAX_ITEMS, description="How many queues at most.")
    ] = MAX_ITEMS,
    after: AfterQueue = None,
) -> Response:
    """The queues in order of their names, page by page, and the numbers of each."""
    return await served.page(request, limit, after, "")
