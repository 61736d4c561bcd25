"""What can be asked for: each route is a method of a queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.database import run
from fdbqueue.http.models import (
    HIGHEST,
    Batch,
    BatchPushed,
    Counts,
    Error,
    Found,
    Page,
    Popped,
    Push,
    Pushed,
    Queues,
    QueueSize,
    Status,
)
from fdbqueue.idempotency import push_once
from fdbqueue.types import Item

__all__ = ["Served", "router"]

_T = TypeVar("_T")

_KNOWN_FOR = 1.0  # seconds for which a name is taken to be that of the same queue
_LONGEST_WAIT = 300.0  # seconds


class Served:
    """The queues of a database, as they were asked for."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self._queues: dict[str, tuple[float, aio.PriorityQueue]] = {}

    async def queue(self, name: str, must_exist: bool = True) -> aio.PriorityQueue:
        """The queue of a name; raises `QueueNotFound`."""
        known_until, queue = self._queues.get(name, (0.0, None))
        now = time.monotonic()
        if queue is not None and now < known_until:
            return queue
        found = await (aio.PriorityQueue.existing if must_exist else aio.PriorityQueue.named)(
            self.db, name
        )
        options = found.queue.given_options
        if options.codec != "json" or options.priorities is not int:
            raise HTTPException(
                409, "this queue's items are not JSON, or its priorities no integers; use Python"
            )
        # Threads share transactions if they share the queue object.
        if queue is None or queue.queue.subspace != found.queue.subspace:
            queue = found
        self._queues[name] = (now + _KNOWN_FOR, queue)
        return queue

    def forget(self, name: str) -> None:
        """A queue of this name was dropped."""
        self._queues.pop(name, None)


async def _served(request: Request) -> Served:
    served: Served = request.app.state.served
    return served


Name = Annotated[str, Path(description="The queue's name: printable text up to 255 bytes.")]
Depth = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
ServedQueues = Annotated[Served, Depends(_served)]

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request is not what it should be."},
    401: {"model": Error, "description": "A token is needed."},
    403: {"model": Error, "description": "The token may only read."},
    404: {"model": Error, "description": "There is no such queue, or no such item."},
    409: {"model": Error, "description": "The queue is not one for HTTP, or changed meanwhile."},
    415: {"model": Error, "description": "The body is not sent as JSON."},
    413: {"model": Error, "description": "The body is too large."},
    422: {"model": Error, "description": "A value cannot be used."},
    429: {"model": Error, "description": "The queue is full, or too many requests came."},
    503: {"model": Error, "description": "The database cannot be used now."},
}

router = APIRouter(responses=_ERRORS)


def _found(queue: aio.PriorityQueue, item: Item) -> Found:
    pushed_at = queue.queue.pushed_at(item)
    return Found(
        id=item.id,
        priority=item.priority,
        item=item.value,
        pushed_at=None if pushed_at is None else pushed_at.isoformat(),
    )


@router.post("/queue/{name:path}/push", status_code=201)
async def push(
    served: ServedQueues,
    name: Name,
    body: Push,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Pushed:
    """Put an item behind those of its priority; the queue is made by its first push.

    With an `Idempotency-Key`, a request that is repeated stores nothing more, and has the same
    answer, for a day. 429 if the queue is full.
    """
    queue = await served.queue(name, must_exist=False)
    if idempotency_key is None:
        item = await queue.push(served.db, body.item, body.priority, raise_if_full=True)
        return Pushed(id=item.id)
    arguments = idempotency_key, [body.item], [body.priority]
    ids = await aio.run(push_once, served.db, queue.queue, *arguments)
    if not ids:
        raise HTTPException(429, "the queue is full; nothing was stored")
    return Pushed(id=ids[0])


@router.post("/queue/{name:path}/batch", status_code=201)
async def push_batch(
    served: ServedQueues,
    name: Name,
    body: Batch,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> BatchPushed:
    """Push several items in one transaction: all of them or none, or as many as fit."""
    queue = await served.queue(name, must_exist=False)
    values = [each.item for each in body.items]
    priorities = [each.priority for each in body.items]
    if idempotency_key is None:
        items = await queue.push_many(
            served.db, values, priorities=priorities, as_many_as_fit=body.as_many_as_fit
        )
        ids = [item.id for item in items]
    else:
        arguments = idempotency_key, values, priorities
        ids = await aio.run(
            push_once, served.db, queue.queue, *arguments, as_many_as_fit=body.as_many_as_fit
        )
    if not ids:
        raise HTTPException(429, "the queue has no room for these; nothing was stored")
    return BatchPushed(ids=ids)


@router.post("/queue/{name:path}/pop")
async def pop(
    request: Request,
    served: ServedQueues,
    name: Name,
    depth: Depth = 1,
    wait: Annotated[
        float, Query(ge=0, le=_LONGEST_WAIT, description="Seconds to wait if there is no item.")
    ] = 0,
) -> Popped:
    """Take the first items: the lowest priority first, the oldest of each first.

    They are gone when the answer is sent. An empty list if there are none; with `wait`, if there
    are none for so long.
    """
    queue = await served.queue(name)
    taken = await _unless_gone(request, queue.pop_many(served.db, depth, wait=wait))
    return Popped(items=[_found(queue, item) for item in taken])


@router.get("/queue/{name:path}/peek")
async def peek(served: ServedQueues, name: Name, depth: Depth = 1) -> Popped:
    """What a pop would take, left where it is."""
    queue = await served.queue(name)
    items = await queue.peek_many(served.db, depth)
    return Popped(items=[_found(queue, item) for item in items])


@router.get("/queue/{name:path}/counts")
async def counts(served: ServedQueues, name: Name) -> Counts:
    """How many items each priority has; without reading them."""
    queue = await served.queue(name)
    by_priority = await queue.counts(served.db)
    return Counts(
        counts={str(priority): count for priority, count in by_priority.items()},
        size=sum(by_priority.values()),
    )


@router.get("/queue/{name:path}/items")
async def items(
    served: ServedQueues,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(description="An item's id: only what follows it.")] = None,
    priority: Annotated[int | None, Query(ge=0, le=HIGHEST)] = None,
) -> Page:
    """The items in order, page by page."""
    queue = await served.queue(name)
    found = [
        _found(queue, item)
        async for item in queue.items(served.db, priority=priority, limit=limit + 1, after=after)
    ]
    more = len(found) > limit
    return Page(items=found[:limit], next=found[limit - 1].id if more else None)


@router.delete("/queue/{name:path}/items/{item_id}", status_code=204)
async def remove(served: ServedQueues, name: Name, item_id: str) -> Response:
    """Take one item out of the queue, wherever it stands."""
    queue = await served.queue(name)
    if not await queue.remove(served.db, item_id):
        raise HTTPException(404, "there is no such item in the queue, now")
    return Response(status_code=204)


@router.delete("/queue/{name:path}", status_code=204)
async def drop(served: ServedQueues, name: Name) -> Response:
    """Drop a queue with all its items."""
    served.forget(name)
    await aio.drop_queue(served.db, name)
    return Response(status_code=204)


@router.get("/queues")
async def queues(served: ServedQueues) -> Queues:
    """All queues and how many items each has."""
    sizes = await aio.queues(served.db)
    return Queues(queues=[QueueSize(name=name, size=size) for name, size in sizes.items()])


@router.get("/health")
async def health() -> Status:
    """Whether the server runs."""
    return Status(status="ok")


@router.get("/ready")
async def ready(request: Request, served: ServedQueues) -> Status:
    """Whether the database answers, and the server is not about to stop."""
    if request.app.state.stopping.is_set():
        raise HTTPException(503, "the server is about to stop")
    await aio.run(run, served.db, lambda tr: tr.get_read_version().wait())
    return Status(status="ok")


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """For Prometheus: sizes, what came and went, ages, requests and their latencies."""
    text = await aio.run(request.app.state.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _unless_gone(request: Request, popping: Coroutine[Any, Any, list[Item]]) -> list[Item]:
    """The items; nothing is taken for a client that went away, or when the server stops."""
    task = asyncio.ensure_future(popping)
    others = [
        asyncio.ensure_future(_disconnect(request)),
        asyncio.ensure_future(request.app.state.stopping.wait()),
    ]
    try:
        await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in others:
            each.cancel()
    if task.done():
        return task.result()
    task.cancel()
    with suppress(asyncio.CancelledError):
        return await task
    return []


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
