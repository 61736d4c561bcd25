"""The routes, except for push and pop (see `push_pop`): each calls one method of a queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.errors import OptionsMismatch
from fdbqueue.http.idempotency import MAX_KEY, push_once
from fdbqueue.http.n_queue.links import of_item, of_queue
from fdbqueue.http.n_queue.models import (
    ERRORS,
    HIGHEST,
    MAX_ITEMS,
    MAX_QUEUES,
    Batch,
    BatchPushed,
    Counts,
    Page,
    Popped,
    found,
)
from fdbqueue.http.responses import QueueNumbers, Queues, json_response
from fdbqueue.http.routing import NAME_SCHEMA, SAME_QUEUE, links, next_page
from fdbqueue.http.security import Role, authorize
from fdbqueue.http.served import Served, served, validate_encoding
from fdbqueue.queue.base import store_of
from fdbqueue.queue.overview import stats_as_json

__all__ = ["priority_queue", "router"]

_Name = Annotated[
    str,
    Path(
        description="The queue's name: printable text up to 255 bytes.",
        json_schema_extra=NAME_SCHEMA,  # the queue checks it
    ),
]


def _of_role(role: Role) -> Any:
    async def name_of_queue(request: Request, name: _Name) -> str:
        authorize(request, role, name)
        return name

    return Depends(name_of_queue)


ReadOf = Annotated[str, _of_role("read")]
WriteOf = Annotated[str, _of_role("write")]
AdminOf = Annotated[str, _of_role("admin")]
Depth = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="How many items at most.")]
ServedQueues = Annotated[Served, Depends(served)]

router = APIRouter(responses=ERRORS)


async def priority_queue(served: Served, name: str, must_exist: bool = True) -> aio.PriorityQueue:
    """Return a queue of JSON items with integer priorities; refuse another one."""
    queue = await served.queue(name, must_exist)
    if not isinstance(queue, aio.PriorityQueue):
        kind = "fifo" if isinstance(queue, aio.Queue) else "task"
        raise OptionsMismatch("kind", "priority", kind)
    options = store_of(queue.queue).given_options
    if options.codec != "json" or options.priorities is not int:
        raise HTTPException(
            409, "this queue's items are not JSON, or its priorities no integers; use Python"
        )
    return queue


@router.post(
    "/queue/{name:path}/batch",
    status_code=201,
    responses=links(201, of_queue(), of_item("$response.body#/ids/0")),
)
async def push_batch(
    served: ServedQueues,
    name: WriteOf,
    body: Batch,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=MAX_KEY)] = None,
) -> BatchPushed:
    """Push several items in one transaction: all of them or none, or as many as fit."""
    queue = await priority_queue(served, name, must_exist=False)
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


@router.get(
    "/queue/{name:path}/peek",
    response_model=Popped,
    responses=links(200, of_queue("pop"), of_item("$response.body#/items/0/id")),
)
async def peek(served: ServedQueues, name: ReadOf, depth: Depth = 1) -> Response:
    """Return the item that a pop would take, without removing it."""
    queue = await priority_queue(served, name)
    items = await queue.peek_many(served.db, depth)
    return json_response({"items": [found(queue, item) for item in items]})


@router.get("/queue/{name:path}/counts")
async def counts(served: ServedQueues, name: ReadOf) -> Counts:
    """Return the number of ready items of each priority, without reading the items."""
    queue = await priority_queue(served, name)
    by_priority = await queue.counts(served.db)
    return Counts(
        counts={str(priority): count for priority, count in by_priority.items()},
        size=sum(by_priority.values()),
    )


@router.get("/queue/{name:path}/stats", response_model=QueueNumbers)
async def stats(served: ServedQueues, name: ReadOf) -> Response:
    """Return how many items are in each state, the limits of the queue and its totals."""
    queue = await aio.existing_queue(served.db, name)
    return json_response(stats_as_json(await queue.stats(served.db)))


@router.get(
    "/queue/{name:path}/items",
    response_model=Page,
    responses=links(
        200,
        of_queue("pop"),
        of_item("$response.body#/items/0/id"),
        next_page("/queue/{name}/items", "items", "priority", name=SAME_QUEUE),
    ),
)
async def items(
    served: ServedQueues,
    name: ReadOf,
    limit: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = 100,
    after: Annotated[str | None, Query(description="An item's id: only what follows it.")] = None,
    priority: Annotated[int | None, Query(ge=0, le=HIGHEST)] = None,
) -> Response:
    """The ready items in order, page by page."""
    queue = await priority_queue(served, name)
    page = [
        found(queue, item)
        async for item in queue.items(served.db, priority=priority, limit=limit + 1, after=after)
    ]
    more = len(page) > limit
    return json_response({"items": page[:limit], "next": page[limit - 1]["id"] if more else None})


@router.delete("/queue/{name:path}/items/{item_id}", status_code=204)
async def remove(served: ServedQueues, name: AdminOf, item_id: str) -> Response:
    """Remove one ready or delayed item."""
    queue = await priority_queue(served, name)
    if not await queue.remove(served.db, item_id):
        raise HTTPException(404, "there is no such item in the queue, now")
    return Response(status_code=204)


@router.delete("/queue/{name:path}", status_code=204)
async def drop(served: ServedQueues, name: AdminOf) -> Response:
    """Drop a queue with all its items."""
    validate_encoding(name)
    served.forget(name)
    await aio.drop_queue(served.db, name)
    return Response(status_code=204)


@router.get(
    "/queues",
    response_model=Queues,
    responses=links(
        200, of_queue(name="$response.body#/queues/0/name"), next_page("/queues", "queues")
    ),
)
async def queues(
    served: ServedQueues,
    limit: Annotated[
        int, Query(ge=1, le=MAX_QUEUES, description="How many queues at most.")
    ] = MAX_QUEUES,
    after: Annotated[
        str | None,
        Query(
            description="The name of a queue: only those that follow it.",
            json_schema_extra=NAME_SCHEMA,
        ),
    ] = None,
) -> Response:
    """The queues in order of their names, page by page, and the numbers of each."""
    found = list((await served.numbers(after, limit + 1)).items())
    page = [{"name": name, **stats_as_json(stats)} for name, stats in found[:limit]]
    more = len(found) > limit
    return json_response({"queues": page, "next": page[-1]["name"] if more else None})
