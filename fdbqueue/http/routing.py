"""Parts of routes: names in paths, and the log of requests."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.http.fields import NAME_SCHEMA
from fdbqueue.http.responses import REQUEST_ID
from fdbqueue.http.security import Role, authorize

_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")

_access = logging.getLogger("fdbqueue.http.access")

_SEPARATORS = re.compile("%(25|2[fF])")


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
    """ASGI middleware that gives requests below `/v1` an id, and logs and counts all requests.

    The id is the `X-Request-Id` of the request, or a new one. The response has it, and the log.

    Args:
        app: The application.
        observe: Takes the scope of a request, the status of its response, and the seconds that it
            took.
    """

    def __init__(self, app: ASGIApp, observe: Callable[[Scope, int, float], None]) -> None:
        self._app = app
        self._observe = observe
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
        status = 500

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
            seconds = time.perf_counter() - begin
            self._observe(scope, status, seconds)
            if _access.isEnabledFor(logging.INFO):
                client = (scope.get("client") or ("-",))[0]
                path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
                _access.info(
                    "%s %s %s %d %.1f ms %s",
                    client,
                    scope["method"],
                    path,
                    status,
                    1000 * seconds,
                    scope.get(REQUEST_ID, "-"),
                )


def decoded(name: str) -> str:
    """Return a name in a path of `SegmentPaths`.

    >>> decoded("mail%2Fout"), decoded("100%25")
    ('mail/out', '100%')
    """
    return unquote(name)
