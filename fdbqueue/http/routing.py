"""Parts of routes: paths with names in them, requests that are not parsed, and JSON responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from fdbqueue.layout.codecs import json_bytes

_SEPARATORS = re.compile("%(25|2[fF])")

__all__ = ["DirectRoute", "SegmentPaths", "decoded", "json_response"]


class DirectRoute(APIRoute):
    """A route whose function takes the request and returns the response.

    FastAPI's parsing takes as long as everything else together.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


def json_response(content: dict[str, Any], status: int = 200) -> Response:
    """Return a JSON response with trusted content, without validation."""
    return Response(json_bytes(content), status, media_type="application/json")


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


def decoded(name: str) -> str:
    """Return a name in a path of `SegmentPaths`.

    >>> decoded("mail%2Fout"), decoded("100%25")
    ('mail/out', '100%')
    """
    return unquote(name)
