"""The routes below `/v1`: everything that the library does, for queues of every kind."""

from fastapi import APIRouter

from fdbqueue.http.v1 import items, jobs, queues

__all__ = ["router"]

router = APIRouter(prefix="/v1")
for _module in (jobs, items, queues):  # those whose speed matters first
    router.include_router(_module.router)
