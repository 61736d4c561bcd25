"""The application: its routes, middleware and error responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fdbqueue import aio
from fdbqueue.database.binding import error_classes
from fdbqueue.database.retrying import run
from fdbqueue.errors import (
    FdbqueueError,
    ForeignClaim,
    LayoutVersionMismatch,
    LeaseLost,
    NoResult,
    OptionsMismatch,
    QueueExists,
    QueueFull,
    QueueNotFound,
    QueueRenamed,
    StorageError,
    UndecodableItem,
    UndecodableQueue,
    UnknownCodec,
    WrongState,
)
from fdbqueue.http import dashboard, v1
from fdbqueue.http.metrics import Metrics
from fdbqueue.http.n_queue import push_pop, routes
from fdbqueue.http.n_queue.models import ERRORS
from fdbqueue.http.responses import REQUEST_ID, problem
from fdbqueue.http.routing import RequestLog, SegmentPaths, fast_routes
from fdbqueue.http.security import Guard, Limits, Tokens, grant_of
from fdbqueue.http.served import Served
from fdbqueue.types import Database

__all__ = ["create_app"]

_log = logging.getLogger("fdbqueue.http")

_STATUS: list[tuple[type[FdbqueueError], int]] = [
    (QueueNotFound, 404),
    (LeaseLost, 409),
    (ForeignClaim, 409),
    (WrongState, 409),
    (QueueExists, 409),
    (QueueFull, 429),
    (QueueRenamed, 409),
    (OptionsMismatch, 409),
    (UnknownCodec, 409),
    (LayoutVersionMismatch, 409),
    (UndecodableItem, 409),
    (UndecodableQueue, 409),
    (StorageError, 503),
    (FdbqueueError, 422),
]


_router = APIRouter(responses=ERRORS)


class _Status(BaseModel):
    """The status of a healthy server."""

    status: str


def create_app(
    db: Database,
    *,
    tokens: Tokens | None = None,
    limits: Limits | None = None,
    origins: Sequence[str] = (),
) -> FastAPI:
    """Return an ASGI application that serves the named queues of a database.

    Before stopping, a server should call `app.state.stop()`, which ends waiting requests.

    Args:
        db: A database.
        tokens: The tokens that requests must carry; `None` allows every request.
        limits: The limits of requests; `None` limits only the size of bodies.
        origins: The origins whose pages may use the API from a browser, such as
            `https://app.example.com`.

    Raises:
        ValueError: One of `origins` is not an origin.

    Example:
        >>> import fdbqueue
        >>> create_app(fdbqueue.open("memory:")).title
        'fdbqueue'
    """
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
    app.router.routes += [*v1.fast_routes(), *fast_routes(push_pop.router)]  # before all others
    app.include_router(dashboard.router)
    app.include_router(v1.router)
    app.include_router(push_pop.router)
    app.include_router(routes.router)
    app.include_router(_router)
    app.add_middleware(app.state.metrics.middleware)
    app.add_middleware(
        Guard, tokens=tokens or Tokens(), limits=limits or Limits(), origins=frozenset(origins)
    )
    if origins:
        _allow_origins(app, origins)
    app.add_middleware(SegmentPaths, prefix="/v1/")
    app.add_middleware(RequestLog)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(FdbqueueError, _failed)
    for kind in error_classes():
        app.add_exception_handler(kind, _unavailable)
    app.add_exception_handler(Exception, _unexpected)
    return app


@_router.get("/health")
async def _health() -> _Status:
    """Report that the server is running."""
    return _Status(status="ok")


@_router.get("/ready")
async def _ready(request: Request) -> _Status:
    """Report whether the database answers and the server is not shutting down."""
    if request.app.state.stopping.is_set():
        raise HTTPException(503, "the server is about to stop")
    await aio.run(run, request.app.state.served.db, lambda tr: tr.get_read_version().wait())
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
    """For Prometheus: items by state, totals, ages, requests and their latencies."""
    text = await request.app.state.metrics.text(all_queues=queues == "all")
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of other origins use the API (CORS)."""
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


def _answer(
    request: Request,
    status: int,
    detail: str,
    headers: Any = None,
    error: Exception | None = None,
) -> JSONResponse:
    media_type, content = problem(request.scope, status, detail, error)
    return JSONResponse(content, status, headers, media_type)


async def _invalid(request: Request, error: Any) -> JSONResponse:
    """Answer a request with an invalid body or parameter; name the first problem."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _answer(request, 400, f"the body is not JSON: {first['ctx']['error']}")
    is_json = "json" in request.headers.get("content-type", "")
    if not is_json and request.method == "POST" and first["loc"][:1] == ("body",):
        return _answer(request, 415, "send the body as JSON, with `Content-Type: application/json`")
    is_v1 = request.url.path.startswith("/v1/")
    skipped = ("body", "query", "path") if is_v1 else ("body",)
    location = ".".join(str(part) for part in first["loc"] if part not in skipped)
    reason = first["msg"].removeprefix("Value error, ")
    return _answer(request, 422, f"{location or 'the body'}: {reason}")


async def _refused(request: Request, error: Any) -> JSONResponse:
    headers = error.headers
    if error.status_code == 405 and request.url.path.startswith("/v1/"):
        headers = {"allow": ", ".join(v1.allowed_methods(request.scope))}
    return _answer(request, error.status_code, str(error.detail), headers)


async def _gone(request: Request, error: Exception) -> JSONResponse:
    """Return the status to count for a client that left, or was too slow to send its body."""
    return _answer(request, 499, "the client closed the connection")


async def _failed(request: Request, error: Exception) -> JSONResponse:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    if isinstance(error, NoResult):
        status = 404 if error.state is None else 409
    if status == 503:
        _log.error("%s %s: %s", request.method, request.url.path, error)
        return _answer(request, 503, "the database cannot be used; see the server's log")
    detail = str(error)
    grant = grant_of(request)
    if isinstance(error, QueueNotFound) and grant is not None and grant.queues != "*":
        detail = f"there is no queue named {error.name!r}"  # no names that the token cannot see
    return _answer(request, status, detail, error=error)


async def _unavailable(request: Request, error: Any) -> JSONResponse:
    """Answer a request whose transaction failed or has an unknown result."""
    _log.error("%s %s: %s", request.method, request.url.path, error)
    if error.code == 1021:
        return _answer(
            request, 503, "it is unknown whether this took effect; check before you repeat it"
        )
    if error.code in (2101, 2103):
        return _answer(
            request, 413, "this is too large for one transaction, which holds 10,000,000 bytes"
        )
    return _answer(request, 503, "the database did not answer in time; nothing was done")


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.exception("%s %s", request.method, request.url.path, exc_info=error)
    # The middleware that adds the id is not part of this response.
    id = request.scope.get(REQUEST_ID)
    headers = None if id is None else {"x-request-id": id}
    return _answer(request, 500, "the server failed; see its log", headers)
