"""Parts of routes: names in paths, the log of requests, requests not parsed, and OpenAPI links."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.http.fields import NAME_SCHEMA
from fdbqueue.http.responses import NOT_JSON, REQUEST_ID
from fdbqueue.http.security import Role, authorize
from fdbqueue.queue.arguments import MAX_TEXT

_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")

_access = logging.getLogger("fdbqueue.http.access")

_SEPARATORS = re.compile("%(25|2[fF])")

Links: TypeAlias = dict[str, Any]
"""Links of the OpenAPI description, from a response to the requests that can follow."""

SAME_QUEUE = "$request.path.name"
"""The expression for the queue of the request."""


_B = TypeVar("_B", bound=BaseModel)


def name_for(role: Role, description: str) -> Any:
    """Return the dependency for the name of a queue, which the request's token must allow."""

    async def name_of_queue(
        request: Request,
        name: str = Path(
            description=description,
            json_schema_extra=NAME_SCHEMA,  # the queue checks it
        ),
    ) -> str:
        name = decoded(name) if request.url.path.startswith("/v1/") else name
        authorize(request, role, name)
        return name

    return Depends(name_of_queue)


def parameter(name: str, location: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return the description of a parameter that a direct route parses itself."""
    return {
        "name": name,
        "in": location,
        "required": location == "path",
        "description": description,
        "schema": schema,
    }


IDEMPOTENCY_KEY = parameter(
    "Idempotency-Key",
    "header",
    "A request repeated with the same key within a day stores nothing more.",
    type="string",
    minLength=1,
    maxLength=MAX_TEXT,
)
"""The description of the header, for a direct route."""


async def read_json(request: Request, model: type[_B], empty: bytes = b"") -> _B:
    """Return the body of a request to a direct route; `empty` stands for an empty one."""
    body = await request.body()
    if (body or not empty) and "json" not in request.headers.get("content-type", ""):
        raise HTTPException(415, NOT_JSON)
    try:
        return model.model_validate_json(body or empty)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


class _DirectRoute(Route):
    """A route whose function takes the request and returns the response.

    The selection of a FastAPI route among those of included routers, its parsing and its exit
    stacks take longer than everything else together.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], methods: set[str]) -> None:
        super().__init__(path, endpoint, methods=methods)
        self._methods = methods
        self._end = path.rpartition("}")[2]  # of the path, after its last parameter

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request with one of the methods only; other routes refuse the others."""
        # The end is faster to compare than the pattern of the whole path.
        if not scope["path"].endswith(self._end) or scope.get("method") not in self._methods:
            return Match.NONE, {}
        match, child_scope = super().matches(scope)
        child_scope["route"] = self
        return match, child_scope


def direct_routes(router: APIRouter, prefix: str = "") -> list[BaseRoute]:
    """Return routes that answer the requests of a router below a prefix, without FastAPI.

    The functions of the router take the request. Its own routes describe them to OpenAPI.
    """
    return [
        _DirectRoute(prefix + each.path, each.endpoint, each.methods or set())
        for each in router.routes
        if isinstance(each, APIRoute)
    ]


class SegmentPaths:
    """ASGI middleware that keeps an encoded `/` in a path apart from one between segments.

    Below a prefix, `%2F` and `%25` stay as they are when the path is decoded. `decoded` decodes the
    name of a queue in such a path.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""
        raw = scope.get("raw_path")
        if raw and b"%" in raw and scope["path"].startswith(self._prefix):
            path = raw.partition(b"?")[0].decode("latin-1")
            # An encoded "/" or "%" is encoded twice, so that it is still encoded afterwards.
            scope = {**scope, "path": unquote(_SEPARATORS.sub(r"%25\1", path))}
        await self._app(scope, receive, send)


class RequestLog:
    """ASGI middleware that gives requests below `/v1` an id, and logs requests if that is wanted.

    The id is the `X-Request-Id` of the request, or a new one. The response has it, and the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # A random part for the server, because a random id would cost more than its request.
        self._server = secrets.token_hex(6).encode()
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        header: tuple[bytes, bytes] | None = None
        if scope["path"].startswith("/v1/"):
            given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
            id = (
                given
                if _REQUEST_ID.fullmatch(given)
                else b"%b-%x" % (self._server, next(self._numbers))
            )
            scope[REQUEST_ID] = id.decode()
            header = (_HEADER, id)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if header is not None:
                    message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if _access.isEnabledFor(logging.INFO):
                client = (scope.get("client") or ("-",))[0]
                milliseconds = 1000 * (time.perf_counter() - begin)
                path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
                _access.info(
                    "%s %s %s %d %.1f ms %s",
                    client,
                    scope["method"],
                    path,
                    status,
                    milliseconds,
                    scope.get(REQUEST_ID, "-"),
                )


def decoded(name: str) -> str:
    """Return a name in a path of `SegmentPaths`.

    >>> decoded("mail%2Fout"), decoded("100%25")
    ('mail/out', '100%')
    """
    return unquote(name)


# Links


def links(status: int, *groups: Links) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route whose response with this status has links."""
    return {status: {"links": {name: link for group in groups for name, link in group.items()}}}


def links_to(path: str, routes: dict[str, str], **parameters: str) -> Links:
    """Return links to operations, named after them.

    Args:
        path: The beginning of the paths.
        routes: The functions of the operations, with their methods and the rest of the paths.
        parameters: The expressions for the parameters.
    """
    ids = [operation_id(path, function, route) for function, route in routes.items()]
    return {each: {"operationId": each, "parameters": {**parameters}} for each in ids}


def next_page(path: str, function: str, *same: str, **parameters: str) -> Links:
    """Return a link from a page to the next one; on the last page, its `after` is null.

    Args:
        path: The path of the operation.
        function: The function of the operation.
        same: The query parameters, apart from `limit`, that both requests have in common. An
            expression without a value leaves out its parameter.
        parameters: The expressions for other parameters.
    """
    query = {each: f"$request.query.{each}" for each in ("limit", *same)}
    (link,) = links_to(path, {function: "GET"}, **parameters, **query).values()
    link["parameters"]["after"] = "$response.body#/next"
    return {"next_page": link}


def operation_id(path: str, function: str, route: str) -> str:
    """Return the id that FastAPI gives to an operation.

    >>> operation_id("/v1/queues/{name}", "pop", "POST /pop")
    'pop_v1_queues__name__pop_post'
    """
    method, _, rest = route.partition(" ")
    return re.sub(r"\W", "_", f"{function}{path}{rest}_{method.lower()}")
