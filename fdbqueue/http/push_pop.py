"""The routes for push and pop, the ones whose speed matters.

They parse their own parameters, and describe them for OpenAPI, because FastAPI's parsing takes as
long as everything else together.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from fdbqueue import aio
from fdbqueue.aio import PriorityQueue
from fdbqueue.http.idempotency import MAX_KEY, push_once
from fdbqueue.http.models import ERRORS, MAX_ITEMS, Popped, Push, Pushed, as_json, found
from fdbqueue.types import Database, Item

__all__ = ["Taken", "router"]

_MAX_WAIT = 300.0  # seconds
_NUMBER = re.compile(r"[0-9.eE+-]+")


class _Direct(APIRoute):
    """A route whose function takes the request and returns the response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


router = APIRouter(route_class=_Direct, responses=ERRORS)


def _parameter(name: str, location: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": location,
        "required": location == "path",
        "description": description,
        "schema": schema,
    }


_NAME = _parameter(
    "name", "path", "The queue's name: printable text up to 255 bytes.", type="string"
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
)
async def push(request: Request) -> Response:
    """Append an item to its priority. The first push creates the queue.

    For a day, a request repeated with the same `Idempotency-Key` stores nothing more and gets the
    same response. 429 if the queue is full.
    """
    if "json" not in request.headers.get("content-type", ""):
        raise HTTPException(415, "send the body as JSON, with `Content-Type: application/json`")
    try:
        body = Push.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    served = request.app.state.served
    queue = await served.queue(request.path_params["name"], must_exist=False)
    key = request.headers.get("idempotency-key")
    if key is None:
        items = await queue.push_many(served.db, (body.item,), body.priority)
        return as_json({"id": items[0].id}, 201)
    ids = await aio.run(push_once, served.db, queue.queue, key, [body.item], [body.priority])
    if not ids:
        raise HTTPException(429, "the queue is full; nothing was stored")
    return as_json({"id": ids[0]}, 201)


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
    depth, wait = 1, 0.0
    if request.scope["query_string"]:
        depth = int(_number(request, _DEPTH, int))
        wait = _number(request, _WAIT, float)
    served = request.app.state.served
    queue = await served.queue(request.path_params["name"])
    if wait:
        taken = await _pop_for(request, queue, depth, wait)
    else:
        taken = await queue.pop_many(served.db, depth)
    return Taken(queue, served.db, taken)


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
    state = request.app.state
    ends = [
        asyncio.ensure_future(_disconnect(request)),
        asyncio.ensure_future(state.stopping.wait()),
    ]
    try:
        return await aio.pop_until(ends, queue, state.served.db, depth, wait)
    finally:
        for end in ends:
            end.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Turns of the event loop until it notices that a client has disconnected: it reads the end of the
# connection, calls `connection_lost`, and resumes the waiting code.
_TURNS = 3

_LAST_BYTES = 16_384  # of a response, held back until the client has taken the bytes before them


class Taken(Response):
    """A response with popped items, which returns them to the queue if it cannot be delivered.

    A server discards what is written for a client that it knows to have disconnected. So the end of
    the response is held back until the server has had time to notice. After it is written, one
    check shows whether it was discarded. If anything fails before (an item cannot be encoded, the
    request is cancelled), the items return as well.
    """

    def __init__(self, queue: PriorityQueue, db: Database, items: list[Item]) -> None:
        super().__init__()
        self._queue = queue
        self._db = db
        self._items = items

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond as an ASGI application."""
        try:
            answer = as_json({"items": [found(self._queue, item) for item in self._items]})
            await self._send(answer, receive, send)
        finally:
            if self._items:
                await self._queue.put_back(self._db, self._items)

    async def _send(self, answer: Response, receive: Receive, send: Send) -> None:
        """Send a response. Once its end is written, its items belong to the client."""
        body = bytes(answer.body)
        head = {"status": answer.status_code, "headers": answer.raw_headers}
        await send({"type": "http.response.start", **head})
        for part in (body[:-_LAST_BYTES], b""):  # the server waits here while its buffer is full
            await send({"type": "http.response.body", "body": part, "more_body": True})
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        last = body[-_LAST_BYTES:]
        await send({"type": "http.response.body", "body": last, "more_body": True})
        # If it could not be written, the connection is closed before this turn ends. A client that
        # closes the connection after reading its response is not noticed that soon.
        try:
            await asyncio.sleep(0)
        finally:
            if not _is_gone(receive):
                self._items = []
        await send({"type": "http.response.body", "body": b""})


def _is_gone(receive: Receive) -> bool:
    """Return whether the server has seen the client disconnect, without waiting."""
    asking: Any = receive()
    try:
        asking.send(None)
    except StopIteration as answer:
        return bool(answer.value["type"] == "http.disconnect")
    asking.close()
    return False
