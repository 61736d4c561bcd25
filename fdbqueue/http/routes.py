"""The routes, except for push and pop (see `push_pop`): each calls one method of a queue."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.database.retrying import run
from fdbqueue.errors import InvalidQueueName, QueueNotFound
from fdbqueue.http.idempotency import MAX_KEY, push_once
from fdbqueue.http.models import (
    ERRORS,
    HIGHEST,
    MAX_ITEMS,
    MAX_QUEUES,
    Batch,
    BatchPushed,
    Counts,
    Page,
    Popped,
    Queues,
    Stats,
    Status,
    as_json,
    found,
)
from fdbqueue.queue.base import store_of
from fdbqueue.queue.overview import stats_as_json
from fdbqueue.types import Database, QueueStats

__all__ = ["Served", "SharedReads", "router"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_KNOWN_FOR = 1.0  # seconds for which a name is taken to be that of the same queue


@dataclass
class _Read:
    """A read that some requests wait for; it begins at infinity until it has begun."""

    result: asyncio.Task[Any]
    began: float = math.inf


class SharedReads:
    """Reads of many queues, of which one runs at a time, and whose results requests share.

    The result that a request gets was read after the request came, or began at most `max_age`
    seconds before. A request that is cancelled does not end a read.

    Args:
        max_age: Seconds for which a result is kept for later requests.
    """

    def __init__(self, max_age: float = 0.0) -> None:
        self._max_age = max_age
        self._one_at_a_time = asyncio.Lock()
        self._reads: dict[Hashable, _Read] = {}

    async def get(
        self, read: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Return the result of `await read(...)`, or of another request for the same."""
        oldest = time.monotonic() - self._max_age
        self._reads = {kept: each for kept, each in self._reads.items() if each.began >= oldest}
        key = read, args, *kwargs.items()
        if key not in self._reads:
            result = asyncio.create_task(self._perform(key, partial(read, *args, **kwargs)))
            self._reads[key] = _Read(result)
        shared: _T = await asyncio.shield(self._reads[key].result)
        return shared

    async def _perform(self, key: Hashable, read: Callable[[], Awaitable[_T]]) -> _T:
        async with self._one_at_a_time:
            self._reads[key].began = time.monotonic()
            return await read()


_NUMBERS_KEPT = 1.0  # seconds


class Served:
    """The queues of a database, as they were asked for."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._queues: dict[str, tuple[float, aio.PriorityQueue]] = {}
        self._numbers = SharedReads()
        self._recent = SharedReads(_NUMBERS_KEPT)

    async def numbers(self, after: str | None, limit: int) -> dict[str, QueueStats]:
        """Return the numbers of a page of queues."""
        return await self._numbers.get(aio.overview, self.db, after=after, limit=limit)

    async def recent_numbers(self, after: str | None, limit: int) -> dict[str, QueueStats]:
        """Return the numbers of a page of queues, as they were a second ago or later."""
        return await self._recent.get(aio.overview, self.db, after=after, limit=limit)

    async def queue(self, name: str, must_exist: bool = True) -> aio.PriorityQueue:
        """The queue of a name; raises `QueueNotFound`."""
        if "\ufffd" in name:  # of bytes that are no UTF-8: different ones would be the same name
            raise InvalidQueueName(name, "it is not encoded in UTF-8")
        known_until, queue = self._queues.get(name, (0.0, None))
        now = time.monotonic()
        if queue is not None:
            if now < known_until:
                return queue
            self._queues[name] = (now + _KNOWN_FOR, queue)  # one request looks, not all
        open_queue = aio.PriorityQueue.existing if must_exist else aio.PriorityQueue.named
        try:
            found = await open_queue(self.db, name)
        except QueueNotFound:
            self.forget(name)
            raise
        options = store_of(found.queue).given_options
        if options.codec != "json" or options.priorities is not int:
            raise HTTPException(
                409, "this queue's items are not JSON, or its priorities no integers; use Python"
            )
        # Threads share transactions if they share the queue object.
        if queue is None or queue.subspace.key() != found.subspace.key():
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
Depth = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="How many items at most.")]
ServedQueues = Annotated[Served, Depends(_served)]

router = APIRouter(responses=ERRORS)


@router.post("/queue/{name:path}/batch", status_code=201)
async def push_batch(
    served: ServedQueues,
    name: Name,
    body: Batch,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=MAX_KEY)] = None,
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


@router.get("/queue/{name:path}/peek", response_model=Popped)
async def peek(served: ServedQueues, name: Name, depth: Depth = 1) -> Response:
    """Return the item that a pop would take, without removing it."""
    queue = await served.queue(name)
    items = await queue.peek_many(served.db, depth)
    return as_json({"items": [found(queue, item) for item in items]})


@router.get("/queue/{name:path}/counts")
async def counts(served: ServedQueues, name: Name) -> Counts:
    """Return the number of ready items of each priority, without reading the items."""
    queue = await served.queue(name)
    by_priority = await queue.counts(served.db)
    return Counts(
        counts={str(priority): count for priority, count in by_priority.items()},
        size=sum(by_priority.values()),
    )


@router.get("/queue/{name:path}/stats", response_model=Stats)
async def stats(served: ServedQueues, name: Name) -> Response:
    """Return how many items are in each state, the limits of the queue and its totals."""
    queue = await aio.existing_queue(served.db, name)
    return as_json(stats_as_json(await queue.stats(served.db)))


@router.get("/queue/{name:path}/items", response_model=Page)
async def items(
    served: ServedQueues,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = 100,
    after: Annotated[str | None, Query(description="An item's id: only what follows it.")] = None,
    priority: Annotated[int | None, Query(ge=0, le=HIGHEST)] = None,
) -> Response:
    """The ready items in order, page by page."""
    queue = await served.queue(name)
    page = [
        found(queue, item)
        async for item in queue.items(served.db, priority=priority, limit=limit + 1, after=after)
    ]
    more = len(page) > limit
    return as_json({"items": page[:limit], "next": page[limit - 1]["id"] if more else None})


@router.delete("/queue/{name:path}/items/{item_id}", status_code=204)
async def remove(served: ServedQueues, name: Name, item_id: str) -> Response:
    """Remove one ready or delayed item."""
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


@router.get("/queues", response_model=Queues)
async def queues(
    served: ServedQueues,
    limit: Annotated[
        int, Query(ge=1, le=MAX_QUEUES, description="How many queues at most.")
    ] = MAX_QUEUES,
    after: Annotated[
        str | None, Query(description="The name of a queue: only those that follow it.")
    ] = None,
) -> Response:
    """The queues in order of their names, page by page, and the numbers of each."""
    found = list((await served.numbers(after, limit + 1)).items())
    page = [{"name": name, **stats_as_json(stats)} for name, stats in found[:limit]]
    more = len(found) > limit
    return as_json({"queues": page, "next": page[-1]["name"] if more else None})


@router.get("/health")
async def health() -> Status:
    """Report that the server is running."""
    return Status(status="ok")


@router.get("/ready")
async def ready(request: Request, served: ServedQueues) -> Status:
    """Report whether the database answers and the server is not shutting down."""
    if request.app.state.stopping.is_set():
        raise HTTPException(503, "the server is about to stop")
    await aio.run(run, served.db, lambda tr: tr.get_read_version().wait())
    return Status(status="ok")


@router.get("/metrics", response_class=Response)
async def metrics(
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
