"""The routes for push and pop, whose speed matters.

They parse their own parameters, and describe them for OpenAPI, because FastAPI's parsing takes as
long as everything else together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.http.idempotency import MAX_KEY, push_once
from fdbqueue.http.n_queue.links import of_item, of_queue
from fdbqueue.http.n_queue.models import ERRORS, MAX_ITEMS, Popped, Push, Pushed, found
from fdbqueue.http.n_queue.routes import priority_queue
from fdbqueue.http.responses import Delivered, ends_of_wait, json_response
from fdbqueue.http.routing import NAME_SCHEMA, DirectRoute, links
from fdbqueue.http.security import authorize
from fdbqueue.types import Database, Item

__all__ = ["router"]

_MAX_WAIT = 300.0  # seconds
_NUMBER = re.compile(r"[0-9.eE+-]+")


router = APIRouter(route_class=DirectRoute, responses=ERRORS)


def _parameter(name: str, location: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": location,
        "required": location == "path",
        "description": description,
        "schema": schema,
    }


_NAME = _parameter(
    "name",
    "path",
    "The queue's name: printable text up to 255 bytes.",
    type="string",
    **NAME_SCHEMA,
)
_KEY = _parameter(
    "Idempotency-Key",
    "header",
    "A request repeated with the same key within a day stores nothing more.",
    type="string",
    minLength=1,
    maxLength=MAX_KEY,
)
_DEPTH = _parameter(
    "depth",
    "query",
    "The most items to pop.",
    type="integer",
    minimum=1,
    maximum=MAX_ITEMS,
    default=1,
)
_WAIT = _parameter(
    "wait",
    "query",
    "Seconds to wait while the queue is empty.",
    type="number",
    minimum=0,
    maximum=_MAX_WAIT,
    default=0,
)
_BODY = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Push"}}},
}


@router.post(
    "/queue/{name:path}/push",
    status_code=201,
    response_model=Pushed,
    openapi_extra={"parameters": [_NAME, _KEY], "requestBody": _BODY},
    responses=links(201, of_queue(), of_item("$response.body#/id")),
)
async def push(request: Request) -> Response:
    """Append an item to its priority. The first push creates the queue.

    For a day, a request repeated with the same `Idempotency-Key` stores nothing more and gets the
    same response. 429 if the queue is full.
    """
    name = _written(request)
    if "json" not in request.headers.get("content-type", ""):
        raise HTTPException(415, "send the body as JSON, with `Content-Type: application/json`")
    try:
        body = Push.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    served = request.app.state.served
    queue = await priority_queue(served, name, must_exist=False)
    key = request.headers.get("idempotency-key")
    if key is None:
        items = await queue.push_many(served.db, (body.item,), body.priority)
        return json_response({"id": items[0].id}, 201)
    ids = await aio.run(push_once, served.db, queue.queue, key, [body.item], [body.priority])
    if not ids:
        raise HTTPException(429, "the queue is full; nothing was stored")
    return json_response({"id": ids[0]}, 201)


@router.post(
    "/queue/{name:path}/pop",
    response_model=Popped,
    openapi_extra={"parameters": [_NAME, _DEPTH, _WAIT]},
)
async def pop(request: Request) -> Response:
    """Pop the first items: the lowest priority first, within a priority the oldest first.

    The items are removed once the response is sent. If the client disconnects before that, they
    return to their positions. The list is empty if the queue is; with `wait`, if it stayed empty
    for that many seconds.
    """
    name = _written(request)
    depth, wait = 1, 0.0
    if request.scope["query_string"]:
        depth = int(_number(request, _DEPTH, int))
        wait = _number(request, _WAIT, float)
    served = request.app.state.served
    queue = await priority_queue(served, name)
    if wait:
        taken = await _pop_for(request, queue, depth, wait)
    else:
        taken = await queue.pop_many(served.db, depth)

    def answer() -> Response:
        return json_response({"items": [found(queue, item) for item in taken]})

    return Delivered(answer, partial(_put_back, queue, served.db, taken))


def _written(request: Request) -> str:
    """Return the name of the queue of a request that changes its items."""
    name: str = request.path_params["name"]
    authorize(request, "write", name)
    return name


async def _put_back(queue: aio.PriorityQueue, db: Database, items: list[Item]) -> None:
    if items:
        await queue.put_back(db, items)


def _number(request: Request, parameter: dict[str, Any], kind: Callable[[str], float]) -> float:
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


async def _pop_for(
    request: Request, queue: aio.PriorityQueue, depth: int, wait: float
) -> list[Item]:
    """Pop, and wait for items until the client disconnects or the server stops."""
    async with ends_of_wait(request) as ends:
        db = request.app.state.served.db
        items: list[Item] = await aio.until(ends, queue, "pop_many", db, depth, wait=wait)
        return items
