"""The routes below `/v1`: everything that the library does, for queues of every kind."""

from fastapi import APIRouter
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from fdbqueue.http import routing
from fdbqueue.http.v1 import items, jobs, me, queues

__all__ = ["allowed_methods", "fast_routes", "router"]

_PREFIX = "/v1"
_ROUTERS = (jobs.router, items.router, queues.router, me.router)  # those whose speed matters first

router = APIRouter(prefix=_PREFIX)
for _router in _ROUTERS:
    router.include_router(_router)


def fast_routes() -> list[BaseRoute]:
    """Return the routes that answer the requests whose speed matters."""
    return routing.fast_routes(jobs.router, _PREFIX)


def allowed_methods(scope: Scope) -> list[str]:
    """Return the methods that the path of a request has; several routes may share it."""
    path = scope["path"].removeprefix(_PREFIX)
    methods: set[str] = set()
    for each in _ROUTERS:
        for route in each.routes:
            if isinstance(route, Route) and route.path_regex.match(path):
                methods |= route.methods or set()
    return sorted(methods)
