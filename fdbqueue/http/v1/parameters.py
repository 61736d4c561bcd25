"""Parameters of the routes below `/v1`: names, filters and pages, and what a token allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from fdbqueue.http.fields import MAX_ITEMS, MAX_WAIT, NAME_SCHEMA, with_fields
from fdbqueue.http.routing import name_for
from fdbqueue.http.v1.answers import PROBLEMS
from fdbqueue.options import Filters
from fdbqueue.queue.base import MAX_SCAN
from fdbqueue.types import State

_NAME = "The queue's name, with `/` as `%2F`."

ReadOf: TypeAlias = Annotated[str, name_for("read", _NAME)]
"""The name of a queue, for a request that reads it."""

WriteOf: TypeAlias = Annotated[str, name_for("write", _NAME)]
"""The name of a queue, for a request that changes single items."""

AdminOf: TypeAlias = Annotated[str, name_for("admin", _NAME)]
"""The name of a queue, for a request that changes the queue, or items in bulk."""

Page: TypeAlias = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="How many at most.")]
Wait: TypeAlias = Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait.")]
AfterQueue: TypeAlias = Annotated[
    str | None,
    Query(
        description="The name of a queue: only those that follow it.",
        json_schema_extra=NAME_SCHEMA,
    ),
]


@with_fields(Filters)
class Counting(BaseModel):
    """The query parameters that choose among the items in a state."""

    state: State = "ready"
    priority: str | None = Field(None, description="JSON: only the items of this priority.")
    after: str | None = Field(None, description="An item's id: only the items that follow it.")
    scan: int = Field(MAX_SCAN, ge=1, le=MAX_SCAN, description="How many items to look at at most.")


class Searching(Counting):
    """The query parameters for a page of items."""

    limit: int = Field(100, ge=1, le=MAX_ITEMS, description="How many items at most.")
    reverse: bool = False


def _names(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters of a route, with those that it shares with others."""
    for each in dependant.query_params:
        model = each.field_info.annotation
        yield from getattr(model, "model_fields", [each.alias])
    for shared in dependant.dependencies:
        yield from _names(shared)


async def known_parameters(request: Request) -> None:
    """Refuse a request with a query parameter that its route does not have."""
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
