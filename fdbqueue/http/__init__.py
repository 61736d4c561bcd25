"""Queues over HTTP, for any language: `create_app(db)` returns an ASGI application.

The server needs the extra `server`: `pip install '.[server]'` in a clone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Route

from fdbqueue import aio
from fdbqueue.http import dashboard, push_and_pop
from fdbqueue.http.metrics import Metrics, RequestLog
from fdbqueue.http.parameters import SegmentPaths
from fdbqueue.http.responses import add_error_handlers, answer, path_of
from fdbqueue.http.security import Authorize, Grant, Guard, Login, Tokens, is_loopback
from fdbqueue.http.served import Served
from fdbqueue.http.server import listening_socket, server_config
from fdbqueue.http.v1 import groups, items, jobs, queues, schedules
from fdbqueue.types import Database

__all__ = ["Grant", "Tokens", "create_app", "is_loopback", "listening_socket", "server_config"]

_router = APIRouter(responses=push_and_pop.ERRORS)


class _Status(BaseModel):
    """The status of a healthy server."""

    status: str


def create_app(
    db: Database,
    *,
    tokens: Tokens | None = None,
    authorize: Authorize | None = None,
    max_body: int = 9_000_000,
    origins: Sequence[str] = (),
) -> FastAPI:
    """Return an ASGI application that serves the named queues of a database.

    Before it stops, a server should call `app.state.stop()`, which ends waiting requests.

    Args:
        db: A database.
        tokens: The accepted tokens; `None` allows every request from this machine.
        authorize: A function, called in a thread, or a coroutine function that returns the rights
            of a request, or `None` to refuse it. It also protects the dashboard.
        max_body: The largest request body, in bytes.
        origins: Sites whose pages may use the API, such as `https://app.example.com`.

    Raises:
        ValueError: One of `origins` is not an origin, or `tokens` and `authorize` are both given.

    Example:
        >>> import fdbqueue
        >>> create_app(fdbqueue.open("memory:")).title
        'fdbqueue'
    """
    if tokens and authorize:
        raise ValueError("give tokens or authorize, not both")
    app = FastAPI(
        title="fdbqueue",
        version=version("fdbqueue"),
        description="A transactional, durable priority queue.",
        docs_url=None,  # these pages of FastAPI load scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # it would lead to the host that the client has named
    )
    app.state.stopping = asyncio.Event()
    app.state.stop = app.state.stopping.set
    app.state.served = Served(db)
    app.state.metrics = Metrics(db)
    app.router.routes += _ROUTES
    access = Login(authorize) if authorize else tokens or Tokens()
    app.add_middleware(Guard, access=access, max_body=max_body, origins=frozenset(origins))
    if origins:
        _allow_origins(app, origins)
    app.add_middleware(RequestLog, observe=app.state.metrics.observe)
    app.add_middleware(SegmentPaths)
    add_error_handlers(app)
    app.add_exception_handler(405, _not_allowed)
    return app


async def _not_allowed(request: Request, error: Any) -> Response:
    """Answer 405 with all methods of the path."""
    path = path_of(request.scope)
    found = [each for each in _ROUTES if isinstance(each, Route) and each.path_regex.match(path)]
    methods = {method for route in found for method in route.methods or ()}
    return answer(request, 405, str(error.detail), {"allow": ", ".join(sorted(methods))})


@_router.get("/health")
async def _health() -> _Status:
    """Report that the server is running."""
    return _Status(status="ok")


@_router.get("/ready")
async def _ready(request: Request) -> _Status:
    """Report whether the database answers and the server is not stopping."""
    if request.app.state.stopping.is_set():
        raise HTTPException(503, "the server is about to stop")
    await aio.queue_names(request.app.state.served.db, limit=1)
    return _Status(status="ok")


@_router.get("/metrics", response_class=Response)
async def _metrics(
    request: Request,
    queues: Annotated[
        Literal["active", "all"],
        Query(
            description="`active`: queues that hold items, or were used since the first request"
            " for metrics."
        ),
    ] = "active",
) -> Response:
    """Return metrics for Prometheus: items by state, totals, ages, requests and latencies."""
    text = await request.app.state.metrics.text(all_queues=queues == "all")
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


_ROUTERS = (
    *(each.router for each in (jobs, items, queues, groups, schedules)),
    *(push_and_pop.router, dashboard.router, _router),
)
# All apps share the routes, because FastAPI takes 0.1 s to make them.
_ROUTES = [route for router in _ROUTERS for route in router.routes]


def _allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
            raise ValueError(f"an origin is like https://app.example.com, not {origin!r}")
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["DELETE", "GET", "PATCH", "POST", "PUT"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match"],
        expose_headers=["ETag", "Retry-After", "X-Request-Id"],
    )
