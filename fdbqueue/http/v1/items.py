"""The items of a queue: pages, single items with their steps, and changes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.http.parameters import Counting, Searching, Wait, new_router
from fdbqueue.http.responses import json_response
from fdbqueue.http.security import grant_of
from fdbqueue.http.served import AdminQueue, Opened, ReadQueue, WriteQueue
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import (
    IdempotencyKey,
    change_report,
    exact_priority,
    found_info,
    once,
    steps_of,
    update_arguments,
)
from fdbqueue.queue.arguments import decode_json, json_bytes
from fdbqueue.queue.batches import Batches, batch_as_json, batches_of
from fdbqueue.queue.following import looks
from fdbqueue.queue.overview import as_json
from fdbqueue.types import ENDED, MatchCount, State, Transaction

router = new_router()

_LONGEST_STREAM = 60.0  # seconds, less than the time-outs of common proxies

_RETRIES: dict[str, State] = {"retry": "dead", "run_now": "delayed"}


def _chosen(opened: Opened, query: Counting) -> dict[str, Any]:
    chosen = query.model_dump()
    if query.priority is not None:
        try:
            value = decode_json(query.priority.encode())
        except ValueError as error:
            raise HTTPException(422, f"priority: this is not JSON: {error}") from None
        chosen["priority"] = exact_priority(opened.queue, value)
    return chosen


@router.get("/queues/{name}/items", response_model=answers.Infos)
async def items(opened: ReadQueue, query: Annotated[Searching, Query()]) -> Response:
    """Return the items in a state that match all filters, page by page; done items newest first.

    A request reads up to `scan` items: a page may have fewer items than `limit`, or none, although
    more match. The last page has `next` null.
    """
    page = await opened.handle.search(opened.db, **_chosen(opened, query))
    shown = [found_info(opened.queue, info) for info in page.items]
    return json_response({"items": shown, "next": page.next, "scanned": page.scanned})


@router.get("/queues/{name}/count", response_model=MatchCount)
async def count(opened: ReadQueue, query: Annotated[Counting, Query()]) -> Response:
    """Count the items in a state that match all filters, among up to `scan` items.

    To count further items, pass the answer's `next` as `after`.
    """
    return json_response(asdict(await opened.handle.count(opened.db, **_chosen(opened, query))))


@router.get("/queues/{name}/items/{item_id}", response_model=answers.Info)
async def get(opened: ReadQueue, item_id: str) -> Response:
    """Return everything about an item in any state, with its failed attempts."""
    info = await opened.handle.get(opened.db, item_id)
    if info is None:
        raise _unknown(item_id)
    return json_response(found_info(opened.queue, info))


def _unknown(item_id: str) -> HTTPException:
    return HTTPException(404, f"the queue has no item {item_id}; perhaps it has ended")


@router.get("/queues/{name}/items/{item_id}/events", response_class=StreamingResponse)
async def events(opened: ReadQueue, item_id: str) -> StreamingResponse:
    """Stream an item as server-sent events, when its state, progress or log changes.

    The data of each event is the item. The event `change` has an item that goes on, `end` one that
    is done or dead, or null once it has left the queue. The server ends the stream then, and after
    a minute: an `EventSource` connects again by itself, and a client closes it at `end`.
    """
    if await opened.handle.state(opened.db, item_id) is None:
        raise _unknown(item_id)
    return StreamingResponse(
        _events(opened, item_id),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(opened: Opened, item_id: str) -> AsyncIterator[str]:
    began, stopping = time.monotonic(), opened.request.app.state.stopping
    async for info in looks(opened.handle.queue, opened.db, item_id):
        if info is not None:
            has_ended = info.state in ENDED
            event = "end" if has_ended else "change"
            data = json_bytes(found_info(opened.queue, info)).decode()
            yield f"event: {event}\ndata: {data}\n\n"
            if has_ended:
                return
        else:
            yield ":\n\n"
        if stopping.is_set() or time.monotonic() - began > _LONGEST_STREAM:
            return
    yield "event: end\ndata: null\n\n"


@router.get("/queues/{name}/items/{item_id}/position", response_model=answers.Position)
async def position(opened: ReadQueue, item_id: str) -> Response:
    """Return the number of ready items ahead of this one; null if it is not ready."""
    return json_response({"position": await opened.handle.position(opened.db, item_id)})


@router.get("/queues/{name}/items/{item_id}/result", response_model=answers.Result)
async def result(opened: ReadQueue, item_id: str, wait: Wait = 0) -> Response:
    """Return a done item's result; with `wait`, wait for it.

    404 if the queue does not know the item, 409 if it has not ended, or is a dead letter.
    """
    returned = await opened.call_waiting("result", item_id, wait=wait)
    return json_response({"result": returned})


@router.delete("/queues/{name}/items/{item_id}", status_code=204)
async def remove(opened: WriteQueue, item_id: str) -> Response:
    """Remove an item in any state but claimed; for a task, cancel it."""
    changed = await opened.handle.remove(opened.db, item_id)
    why = "it is claimed; cancel it, or release it first"
    return await _changed(opened, item_id, changed, why)


async def _changed(opened: Opened, item_id: str, changed: bool, why: str) -> Response:
    if changed:
        return Response(status_code=204)
    if await opened.handle.state(opened.db, item_id) is None:
        raise _unknown(item_id)
    raise HTTPException(409, why)


@router.post("/queues/{name}/items/{item_id}/retry", status_code=204)
async def retry(opened: WriteQueue, item_id: str, body: bodies.RetryFrom | None = None) -> Response:
    """Return a dead letter to its place in the queue, with all its attempts again.

    Its failed attempts stay; the last one notes the retry and the client's address. With `step`,
    its job forgets this step and all later ones, and continues there.
    """
    by = opened.client
    if body is None or body.step is None:
        changed = await opened.handle.retry(opened.db, item_id, state="dead", by=by)
        why = "it is not a dead letter, or another item has its unique key"
    else:
        steps = steps_of(opened.queue)
        changed = await aio.run(steps.retry_from, opened.db, item_id, body.step, by=by)
        why = "it is not a dead letter, has no such step, or another item has its unique key"
    return await _changed(opened, item_id, changed, why)


@router.post("/queues/{name}/items/{item_id}/run-now", status_code=204)
async def run_now(opened: WriteQueue, item_id: str) -> Response:
    """Make a delayed item ready, unless it waits for other items or a signal."""
    changed = await opened.handle.retry(opened.db, item_id, state="delayed")
    why = "it is not delayed, or waits for a signal or for the ends of other items"
    return await _changed(opened, item_id, changed, why)


@router.post("/queues/{name}/items/{item_id}/release", status_code=204)
async def release(opened: WriteQueue, item_id: str) -> Response:
    """Take a claimed item away from its client."""
    changed = await opened.handle.release(opened.db, item_id)
    return await _changed(opened, item_id, bool(changed), "it is not claimed")


@router.post("/queues/{name}/items/{item_id}/cancel", status_code=204)
async def cancel(
    opened: WriteQueue, item_id: str, body: bodies.Cancel | None = None, key: IdempotencyKey = None
) -> Response:
    """Cancel a job.

    An item that has not begun ends at once, a claimed one with its claim. A job with steps goes on:
    the step at which it stands raises `JobCancelled`, so that it can compensate.
    """
    options = body.model_dump() if body else {}

    def change(tr: Transaction) -> list[str]:
        return [item_id] * opened.queue.cancel(tr, item_id, **options)

    changed = bool(await once(opened, key, change))
    return await _changed(opened, item_id, changed, "it has ended")


@router.patch("/queues/{name}/items/{item_id}", status_code=204)
async def update(opened: WriteQueue, item_id: str, body: bodies.Update) -> Response:
    """Change a ready or delayed item: the given fields. It keeps its id.

    With another priority or group it goes behind the last one there, otherwise it keeps its place.
    409 if a client has claimed it, it has ended, or its job has begun.
    """
    handle: Any = opened.handle
    if await handle.state(opened.db, item_id) is None:
        raise _unknown(item_id)
    await handle.update(opened.db, item_id, **update_arguments(opened.queue, body))
    return Response(status_code=204)


@router.post("/queues/{name}/change", response_model=answers.Changed)
async def change_all(opened: AdminQueue, body: bodies.ChangeAll) -> Response:
    """Change all matching items, 100 per transaction.

    The changes are `remove`, `retry` (dead letters), `run_now` (delayed items), `release` (claimed
    items), `cancel` and `update`.
    """
    given = body.model_dump()
    given["priority"] = exact_priority(opened.queue, given["priority"])
    given["to"] = body.to and update_arguments(opened.queue, body.to)
    retried = _RETRIES.get(body.change)
    if retried not in (None, body.state) and given["to"] is None:
        raise ValueError(f"{body.change!r} is not a change of {body.state} items")
    if body.change == "run_now":
        given["change"] = "retry"
    results = await opened.handle.change_all(opened.db, **given, by=opened.client)
    return json_response(change_report(results))


# Steps, signals and batches


@router.get("/queues/{name}/items/{item_id}/steps", response_model=answers.StepList)
async def item_steps(opened: ReadQueue, item_id: str) -> Response:
    """Return a job's steps, in the order in which they were stored."""
    steps = steps_of(opened.queue)
    found = await aio.run(steps.all, opened.db, item_id)
    return json_response({"steps": [*map(as_json, found)]})


@router.get("/queues/{name}/items/{item_id}/batches", response_model=answers.BatchList)
async def item_batches(opened: ReadQueue, item_id: str) -> Response:
    """Return the batch that a job waits for, and the batches in which it counts.

    Batches whose waiting job is in a queue that the token cannot read are omitted.
    """
    grant = grant_of(opened.request.scope)
    found = [
        batch_as_json(batch)
        for batch in await aio.run(batches_of, opened.db, opened.queue, item_id)
        if grant.includes(batch.queue or "")
    ]
    return json_response({"batches": found})


@router.post("/queues/{name}/items/{item_id}/close-batch", status_code=204)
async def close_batch(opened: WriteQueue, item_id: str) -> Response:
    """Let no more jobs into the batch at whose end this item runs."""
    await aio.run(Batches(opened.queue).finish, opened.db, item_id)
    return Response(status_code=204)


@router.post("/queues/{name}/signals", response_model=answers.Signalled)
async def signal(
    opened: WriteQueue, body: bodies.NewSignal, key: IdempotencyKey = None
) -> Response:
    """Send a signal; jobs that wait for its name and key continue in the same transaction."""
    steps = steps_of(opened.queue)

    def send(tr: Transaction) -> list[str]:
        return [str(steps.signal(tr, **body.model_dump()))]

    (n,) = await once(opened, key, send)
    return json_response({"signalled": int(n)})
