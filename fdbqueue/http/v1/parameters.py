"""Parameters of routes that FastAPI parses: the name of a queue, and what a token allows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Path, Query, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from fdbqueue.http.routing import decoded
from fdbqueue.http.security import Role, authorize
from fdbqueue.http.served import Served, served
from fdbqueue.http.v1.bodies import MAX_ITEMS, MAX_WAIT

__all__ = ["AdminOf", "Page", "ReadOf", "ServedQueues", "Wait", "WriteOf", "known_parameters"]

_Name = Annotated[str, Path(description="The queue's name, with `/` as `%2F`.")]


def _of_role(role: Role) -> Callable[[Request, str], Coroutine[Any, Any, str]]:
    async def name_of_queue(request: Request, name: _Name) -> str:
        name = decoded(name)
        authorize(request, role, name)
        return name

    return name_of_queue


ReadOf: TypeAlias = Annotated[str, Depends(_of_role("read"))]
"""The name of a queue, for a request that reads it."""

WriteOf: TypeAlias = Annotated[str, Depends(_of_role("write"))]
"""The name of a queue, for a request that changes single items."""

AdminOf: TypeAlias = Annotated[str, Depends(_of_role("admin"))]
"""The name of a queue, for a request that changes the queue, or items in bulk."""

ServedQueues: TypeAlias = Annotated[Served, Depends(served)]
Page: TypeAlias = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="How many at most.")]
Wait: TypeAlias = Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait.")]


async def known_parameters(request: Request) -> None:
    """Refuse a request with a query parameter that its route does not have."""
    route: APIRoute = request.scope["route"]
    known = {each.alias for each in route.dependant.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        has = f"; it has {', '.join(sorted(known))}" if known else ""
        raise HTTPException(422, f"{unknown[0]}: this route has no such query parameter{has}")
