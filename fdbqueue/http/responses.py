"""Responses: JSON, errors with their statuses, and items that return unless delivered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from fdbqueue import errors
from fdbqueue.queue.arguments import json_bytes
from fdbqueue.queue.batches import BatchNotFound
from fdbqueue.queue.steps import TooManyWaiting

REQUEST_ID = "fdbqueue.request_id"

GRANT = "fdbqueue.grant"

# Turns of the event loop until it notices that a client has disconnected: it reads the end of the
# connection, calls `connection_lost`, and resumes the waiting code.
_TURNS = 3

_LAST_BYTES = 16_384  # of a response, held back until the client has taken the bytes before them

_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0  # seconds between attempts to return items to a failing disk

_log = logging.getLogger("fdbqueue.http")


_CONFLICTS = (
    *(errors.ForeignClaim, errors.LayoutVersionMismatch, errors.LeaseLost, errors.NoResult),
    *(errors.OptionsMismatch, errors.QueueExists, errors.QueueRenamed, TooManyWaiting),
    *(errors.UndecodableItem, errors.UndecodableQueue, errors.UnknownCodec, errors.WrongState),
)

_STATUSES: dict[type[BaseException], int] = {
    errors.FdbqueueError: 422,  # a value that the library refuses
    **dict.fromkeys((errors.QueueNotFound, BatchNotFound), 404),
    **dict.fromkeys(_CONFLICTS, 409),
    errors.PushTooLarge: 413,
    errors.QueueFull: 429,
    errors.StorageError: 503,
}
"""The statuses of errors and their subclasses. Outside of `/v1`, 400 replaces 422."""

_LOCATIONS = ("body", "query", "path", "header")
_NOT_JSON = "send the body as JSON, with `Content-Type: application/json`"
_UNKNOWN = "it is unknown whether this took effect; check before you repeat it"
_TOO_LARGE = "this is too large for one transaction, which holds 10,000,000 bytes"
_NO_ANSWER = "the database did not answer in time; nothing was done"

_CODES: dict[int, tuple[int, str]] = {
    1021: (503, _UNKNOWN),
    2101: (413, _TOO_LARGE),
    2103: (413, _TOO_LARGE),
}
"""Status and message by FoundationDB's error code; 503 for others."""


def json_response(content: dict[str, Any], status: int = 200) -> Response:
    """Return a JSON response, without validation."""
    try:
        body = json_bytes(content)
    except ValueError as error:  # not of a value of the request
        raise RuntimeError(f"the answer cannot be encoded: {error}") from error
    return Response(body, status, media_type="application/json")


def path_of(scope: Scope) -> str:
    """Return the path of a request, below the one at which the application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def is_v1(scope: Scope) -> bool:
    """Return whether a request is below `/v1`."""
    return path_of(scope).startswith("/v1/")


def add_error_handlers(app: FastAPI) -> None:
    """Make an application answer errors."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(errors.FdbqueueError, _failed)
    for kind in errors.error_classes():
        app.add_exception_handler(kind, _unavailable)
    app.add_exception_handler(ValueError, _invalid_value)
    app.add_exception_handler(Exception, _unexpected)


def answer(
    request: Request,
    status: int,
    detail: str,
    headers: Any = None,
    error: Exception | None = None,
) -> Response:
    """Return an error response.

    The class of `error` is the problem's type, and its fields are included.
    """
    media_type = "application/json"
    content: dict[str, Any] = {"detail": detail}
    if is_v1(request.scope):
        media_type = "application/problem+json"
        content |= {
            "type": "about:blank" if error is None else f"urn:fdbqueue:{type(error).__name__}",
            "title": HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error",
            "status": status,
            "request_id": request.scope.get(REQUEST_ID),
        }
        fields = {} if error is None else vars(error)
        kinds = (str, int, type(None))
        content |= {name: value for name, value in fields.items() if isinstance(value, kinds)}
    elif status == 422:
        status = 400
    # The client's text may contain lone surrogates, which UTF-8 cannot encode.
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, headers, media_type)


async def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return answer(request, 400, f"the body is not JSON: {first['ctx']['error']}")
    is_json = "json" in request.headers.get("content-type", "")
    if not is_json and request.method == "POST" and first["loc"][:1] == ("body",):
        return answer(request, 415, _NOT_JSON)
    location = ".".join(str(part) for part in first["loc"] if part not in _LOCATIONS)
    reason = first["msg"].removeprefix("Value error, ")
    return answer(request, 422, f"{location or 'the body'}: {reason}")


async def _invalid_value(request: Request, error: Exception) -> Response:
    if type(error) is not ValueError:
        return await _unexpected(request, error)
    return answer(request, 422, str(error))


async def _refused(request: Request, error: Any) -> Response:
    return answer(request, error.status_code, str(error.detail), error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    return answer(request, 499, "the client closed the connection")


async def _failed(request: Request, error: Exception) -> Response:
    status = next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)
    if isinstance(error, errors.NoResult) and error.state is None:
        status = 404  # there is no such item
    if status == 503:
        _log.error("%s %s: %s", request.method, request.url.path, error)
        return answer(request, 503, "the database cannot be used; see the server's log")
    detail = str(error)
    grant = request.scope.get(GRANT)
    if isinstance(error, errors.QueueNotFound) and grant is not None and grant.queues != "*":
        detail = f"there is no queue named {error.name!r}"  # no names that the token cannot see
    return answer(request, status, detail, error=error)


async def _unavailable(request: Request, error: Any) -> Response:
    _log.error("%s %s: %s", request.method, request.url.path, error)
    return answer(request, *_CODES.get(error.code, (503, _NO_ANSWER)))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.exception("%s %s", request.method, request.url.path, exc_info=error)
    # The middleware that adds the id is not part of this response.
    id = request.scope.get(REQUEST_ID)
    headers = None if id is None else {"x-request-id": id}
    return answer(request, 500, "the server failed; see its log", headers)


class Delivered(Response):
    """A response with taken items, which return if it cannot be delivered.

    A server discards what is written for a disconnected client. So the end of the response waits
    until the server has had time to notice, and a later check shows whether it was discarded.
    """

    def __init__(
        self, content: Callable[[], dict[str, Any]], undo: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__()
        self._content = content
        self._undo = undo
        self._is_delivered = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond as an ASGI application."""
        try:
            await self._send(json_response(self._content()), receive, send)
        finally:
            if not self._is_delivered:
                await self._return()

    async def _return(self) -> None:
        """Return the items; retry while the disk fails."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._undo()
            except errors.StorageError as error:  # it stored nothing
                _log.warning("%s: items that no client got are put back in %g s", error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _send(self, answer: Response, receive: Receive, send: Send) -> None:
        """Send a response. After its end, its items belong to the client."""
        body = bytes(answer.body)
        head = {"status": answer.status_code, "headers": answer.raw_headers}
        await send({"type": "http.response.start", **head})
        if len(body) > _LAST_BYTES:
            for part in (body[:-_LAST_BYTES], b""):  # the server waits while its buffer is full
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
            self._is_delivered = not _is_gone(receive)
        await send({"type": "http.response.body", "body": b""})


def _is_gone(receive: Receive) -> bool:
    asking: Any = receive()
    try:
        asking.send(None)
    except StopIteration as answer:
        return bool(answer.value["type"] == "http.disconnect")
    asking.close()
    return False
