"""The routes below `/v1`: everything that the library does, for queues of every kind."""

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from fdbqueue.http.responses import answer
from fdbqueue.http.v1 import items, jobs, queues

_PREFIX = "/v1"
_ROUTERS = (jobs.router, items.router, queues.router)  # those whose speed matters first

router = APIRouter(prefix=_PREFIX)
for _router in _ROUTERS:
    router.include_router(_router)


async def not_allowed(request: Request, error: Any) -> Response:
    """Answer 405; below `/v1`, name all methods of the path, which several routes may share."""
    headers, path = error.headers, request.scope["path"]
    if path.startswith(f"{_PREFIX}/"):
        path = path.removeprefix(_PREFIX)
        routes = [route for router in _ROUTERS for route in router.routes]
        found = [each for each in routes if isinstance(each, Route) and each.path_regex.match(path)]
        methods = {method for route in found for method in route.methods or ()}
        headers = {"allow": ", ".join(sorted(methods))}
    return answer(request, 405, str(error.detail), headers)
