"""Parameters of routes that FastAPI parses: the name of a queue, and what a token allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from fastapi import Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from fdbqueue.http.fields import MAX_ITEMS, MAX_WAIT, NAME_SCHEMA
from fdbqueue.http.routing import name_for
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
After: TypeAlias = Annotated[
    str | None, Query(description="An item's id: only the items that follow it.")
]
AfterQueue: TypeAlias = Annotated[
    str | None,
    Query(
        description="The name of a queue: only those that follow it.",
        json_schema_extra=NAME_SCHEMA,
    ),
]
Scan: TypeAlias = Annotated[
    int, Query(ge=1, le=MAX_SCAN, description="How many items to look at, at most.")
]


def _text(description: str) -> Any:
    return Query(min_length=1, max_length=1000, description=description)


@dataclass
class Filters:
    """The query parameters that choose among the items in a state."""

    state: State = "ready"
    priority: Annotated[str | None, _text("JSON: only the items of this priority.")] = None
    agent: Annotated[
        str | None, _text("Only tasks whose agent has this text in its name, ignoring case.")
    ] = None
    id: Annotated[str | None, _text("Only items that have this text in their id.")] = None
    error: Annotated[
        str | None, _text("Only items that have this text in their last error, ignoring case.")
    ] = None
    client: Annotated[
        str | None, _text("Only items held by a client with this text in its name, ignoring case.")
    ] = None
    job: Annotated[
        str | None, _text("Only jobs of this name, or of one that ends with it behind a dot.")
    ] = None
    group: Annotated[
        str | None,
        Query(max_length=255, description="Only items of this group; empty for those without one."),
    ] = None


def _names(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters of a route, with those that it shares with others."""
    yield from (each.alias for each in dependant.query_params)
    for each in dependant.dependencies:
        yield from _names(each)


async def known_parameters(request: Request) -> None:
    """Refuse a request with a query parameter that its route does not have."""
    route: APIRoute = request.scope["route"]
    known = set(_names(route.dependant))
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        has = f"; it has {', '.join(sorted(known))}" if known else ""
        raise HTTPException(422, f"{unknown[0]}: this route has no such query parameter{has}")
