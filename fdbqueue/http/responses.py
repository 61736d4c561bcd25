"""Responses: JSON, problems, and those that return what they carry if they are not delivered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Protocol

from fastapi import Request, Response
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from fdbqueue.errors import StorageError
from fdbqueue.layout.codecs import json_bytes

__all__ = [
    "CONNECTION",
    "REQUEST_ID",
    "Connection",
    "Delivered",
    "Numbers",
    "QueueNumbers",
    "Queues",
    "ends_of_wait",
    "json_response",
    "problem",
    "refuse",
]

REQUEST_ID = "fdbqueue.request_id"
"""The id of a request in its scope, below `/v1`."""

CONNECTION = "fdbqueue.connection"
"""The `Connection` of a request in its scope, if the server is `fdbq serve` without TLS."""

# Turns of the event loop until it notices that a client has disconnected: it reads the end of the
# connection, calls `connection_lost`, and resumes the waiting code.
_TURNS = 3

_LAST_BYTES = 16_384  # of a response, held back until the client has taken the bytes before them

_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0  # seconds between attempts to return items to a failing disk

_log = logging.getLogger("fdbqueue.http")


class Numbers(BaseModel):
    """The items of a queue by state, and its totals."""

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int
    by_priority: dict[str, int] = Field(description="The ready items of each priority.")
    oldest: str | None = Field(description="ISO 8601: when the oldest ready item was pushed.")
    next_due: str | None = Field(description="ISO 8601: when the next delayed item is ready.")
    paused: bool
    total_pushed: int
    total_completed: int
    total_failed: int
    total_retried: int
    total_expired: int
    total_removed: int
    total_died: int
    total_put_back: int
    total_rejected: int


class QueueNumbers(Numbers):
    """The numbers of a queue: its items by state, its totals, and its limits."""

    max_size: int | None
    max_attempts: int | None
    concurrency: int | None
    agent_concurrency: int | None
    keep_seconds: int | None
    keep_number: int | None
    kept_attempts: int
    traceback_bytes: int


class _NamedNumbers(Numbers):
    """The name of a queue, its items by state, and its totals."""

    name: str


class _UnknownNumbers(BaseModel):
    """The name of a queue whose numbers are unknown, as before `fdbq migrate`, and the reason."""

    name: str
    error: str


class Queues(BaseModel):
    """The queues, in order of their names, and the `after` of the next page, or null."""

    queues: list[_NamedNumbers | _UnknownNumbers]
    next: str | None


def json_response(content: dict[str, Any], status: int = 200) -> Response:
    """Return a JSON response with trusted content, without validation."""
    return Response(json_bytes(content), status, media_type="application/json")


def problem(
    scope: Scope, status: int, detail: str, error: Exception | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the media type and the content of the response to a request that failed.

    Args:
        scope: The request.
        status: The status of the response.
        detail: A sentence that says what is wrong.
        error: The error, whose class is the type of the problem, and whose fields it has.
    """
    # The client's text may contain lone surrogates, which UTF-8 cannot encode.
    clean = detail.encode("utf-8", "replace").decode()
    if not scope["path"].startswith("/v1/"):
        return "application/json", {"detail": clean}
    fields = {} if error is None else _fields(error)
    return "application/problem+json", {
        "type": "about:blank" if error is None else f"urn:fdbqueue:{type(error).__name__}",
        "title": HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error",
        "status": status,
        "detail": clean,
        "request_id": scope.get(REQUEST_ID),
        **fields,
    }


def _fields(error: Exception) -> dict[str, Any]:
    """Return the fields of an error that are JSON values."""
    kinds = (str, int, bool, type(None))
    fields = {name: value for name, value in vars(error).items() if isinstance(value, kinds)}
    clean: dict[str, Any] = json.loads(json.dumps(fields).encode("utf-8", "replace"))
    return clean


async def refuse(
    scope: Scope,
    send: Send,
    status: int,
    detail: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Answer a request with a status and a message, before it reaches the application."""
    media_type, content = problem(scope, status, detail)
    body = json.dumps(content).encode()
    fixed = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


class Connection(Protocol):
    """The connection that a response is written to."""

    def has_left(self) -> bool:
        """Return whether the client has disconnected, even if the event loop has not noticed."""
        ...

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or a write to it failed."""
        ...


class Delivered(Response):
    """A response with items that were taken, and that are returned if it cannot be delivered.

    A server discards what is written for a client that it knows to have disconnected. So the end of
    the response is held back until the server has had time to notice. After it is written, one
    check shows whether it was discarded. If anything fails before (an item cannot be encoded, the
    request is cancelled), the items return as well. Without TLS, `fdbq serve` can tell at once
    whether the client is still connected, and whether it could write.

    Args:
        answer: Returns the response.
        undo: Returns the items.
    """

    def __init__(self, answer: Callable[[], Response], undo: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._answer = answer
        self._undo = undo
        self._is_delivered = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond as an ASGI application."""
        try:
            await self._send(self._answer(), scope.get(CONNECTION), receive, send)
        finally:
            if not self._is_delivered:
                await self._return()

    async def _return(self) -> None:
        """Return the items; while the disk fails, try again, because nobody else has them."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._undo()
            except StorageError as error:  # it stored nothing
                _log.warning("%s: items that no client got are put back in %g s", error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _send(
        self, answer: Response, connection: Connection | None, receive: Receive, send: Send
    ) -> None:
        """Send a response. Once its end is written, its items belong to the client."""
        body = bytes(answer.body)
        head = {"status": answer.status_code, "headers": answer.raw_headers}
        await send({"type": "http.response.start", **head})
        if len(body) > _LAST_BYTES:
            for part in (body[:-_LAST_BYTES], b""):  # the server waits while its buffer is full
                await send({"type": "http.response.body", "body": part, "more_body": True})
        if connection is None or connection.has_left():
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        last = body[-_LAST_BYTES:]
        await send({"type": "http.response.body", "body": last, "more_body": True})
        # If it could not be written, the connection is closed before this turn ends. A client that
        # closes the connection after reading its response is not noticed that soon.
        try:
            if connection is None:
                await asyncio.sleep(0)
        finally:
            is_lost = _is_gone(receive) if connection is None else connection.is_closing()
            self._is_delivered = not is_lost
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


@asynccontextmanager
async def ends_of_wait(request: Request) -> AsyncGenerator[list[asyncio.Future[Any]]]:
    """Provide futures that are done once the client disconnects, or the server stops."""
    stopping: asyncio.Event = request.app.state.stopping
    ends: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(_disconnect(request)),
        asyncio.ensure_future(stopping.wait()),
    ]
    try:
        yield ends
    finally:
        for end in ends:
            end.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
