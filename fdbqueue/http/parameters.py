"""Route parameters: names of queues, filters, and pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from fdbqueue.http.fields import MAX_ITEMS, MAX_WAIT, NAME_SCHEMA, with_fields
from fdbqueue.http.responses import is_v1
from fdbqueue.http.security import Role, authorize
from fdbqueue.http.v1.answers import PROBLEMS
from fdbqueue.options import Filters
from fdbqueue.queue.base import MAX_SCAN
from fdbqueue.types import State

_SEPARATORS = re.compile("%(25|2[fF])")


def name_for(role: Role, description: str) -> Any:
    """Return the dependency for a queue's name, which the token must allow."""

    async def name_of_queue(
        request: Request,
        name: str = Path(
            description=description,
            json_schema_extra=NAME_SCHEMA,  # the queue checks it
        ),
    ) -> str:
        name = decoded(name) if is_v1(request.scope) else name
        authorize(request, role, name)
        return name

    return Depends(name_of_queue)


class SegmentPaths:
    """ASGI middleware that leaves `%2F` and `%25` encoded in paths below `/v1`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""
        raw = scope.get("raw_path")
        if raw and b"%" in raw and is_v1(scope):
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


NAME = "The queue's name, with `/` as `%2F`."

WriteOf: TypeAlias = Annotated[str, name_for("write", NAME)]
"""The name of a queue to which the request pushes."""

AdminOf: TypeAlias = Annotated[str, name_for("admin", NAME)]
"""The name of a queue that need not exist."""

Page: TypeAlias = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="How many at most.")]
Wait: TypeAlias = Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait.")]
AfterQueue: TypeAlias = Annotated[
    str | None,
    Query(
        description="Only queues whose names follow this one.",
        json_schema_extra=NAME_SCHEMA,
    ),
]


@with_fields(Filters)
class Counting(BaseModel):
    """The query parameters that filter the items in a state."""

    state: State = "ready"
    priority: str | None = Field(None, description="JSON: only the items of this priority.")
    after: str | None = Field(None, description="An item's id: only the items that follow it.")
    scan: int = Field(MAX_SCAN, ge=1, le=MAX_SCAN, description="How many items to look at at most.")


class Searching(Counting):
    """The query parameters for a page of items."""

    limit: int = Field(100, ge=1, le=MAX_ITEMS, description="How many items at most.")
    reverse: bool = False


def _names(dependant: Dependant) -> Iterator[str]:
    for each in dependant.query_params:
        model = each.field_info.annotation
        yield from getattr(model, "model_fields", [each.alias])
    for shared in dependant.dependencies:
        yield from _names(shared)


async def known_parameters(request: Request) -> None:
    """Refuse query parameters that the route lacks."""
    if not request.scope["query_string"]:
        return
    route: APIRoute = request.scope["route"]
    known = set(_names(route.dependant))
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        has = f"; it has {', '.join(sorted(known))}" if known else ""
        raise HTTPException(422, f"{unknown[0]}: this route has no such query parameter{has}")


def new_router() -> APIRouter:
    """Return a router for routes below `/v1`."""
    return APIRouter(prefix="/v1", responses=PROBLEMS, dependencies=[Depends(known_parameters)])
