"""Queues, their options, numbers and load; the workers; and what a token allows."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.errors import OptionsMismatch, QueueExists
from fdbqueue.http.parameters import AdminOf, AfterQueue, Page, new_router
from fdbqueue.http.responses import json_response
from fdbqueue.http.security import authorize, grant_of
from fdbqueue.http.served import AdminQueue, Opened, ReadQueue, ServedQueues, validate_encoding
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import AnyQueue
from fdbqueue.queue.arguments import json_bytes
from fdbqueue.queue.base import change_once, find_stored
from fdbqueue.queue.check import CheckReport
from fdbqueue.queue.check import check as check_queue
from fdbqueue.queue.overview import as_json, by_job, stats_as_json
from fdbqueue.types import STATES, Options, Transaction
from fdbqueue.worker.presence import WorkerInfo

router = new_router()

_IfMatch = Annotated[
    str | None, Header(description="The ETag of the options: change them only if they have it.")
]


_WITH_ETAG: dict[str, Any] = {
    "headers": {"ETag": {"description": "The ETag of the options.", "schema": {"type": "string"}}}
}


@router.get("/queues", response_model=answers.Queues)
async def queues(
    request: Request,
    served: ServedQueues,
    limit: Page = 1000,
    after: AfterQueue = None,
    prefix: Annotated[
        str, Query(max_length=255, description="The beginning of the names to list.")
    ] = "",
) -> Response:
    """Return the queues by name, page by page, with their numbers."""
    grant = grant_of(request.scope)
    allowed = grant.queues.removesuffix("*")
    beginning = max(prefix, allowed, key=len)
    if not (beginning.startswith(prefix) and beginning.startswith(allowed)):
        return json_response({"queues": [], "next": None})
    numbers = await aio.overview(served.db, after=after, limit=limit + 1, prefix=beginning)
    found = [each for each in numbers.items() if grant.includes(each[0])]
    page = [{"name": name, **stats_as_json(stats)} for name, stats in found[:limit]]
    more = len(found) > limit
    return json_response({"queues": page, "next": found[limit - 1][0] if more else None})


@router.put(
    "/queues/{name}",
    status_code=201,
    response_model=answers.QueueDescription,
    responses={201: _WITH_ETAG},
)
async def create(
    request: Request, served: ServedQueues, name: AdminOf, body: bodies.CreateQueue
) -> Response:
    """Create a queue of any kind; 409 if the name is taken."""
    make: Any = {"priority": aio.PriorityQueue, "fifo": aio.Queue, "task": aio.TaskQueue}[body.kind]
    try:
        new = Opened(request, name, served.db, await make.named(served.db, name))
    except OptionsMismatch:
        raise QueueExists(name) from None

    def store(tr: Transaction) -> None:
        queue: AnyQueue = new.queue
        if find_stored(tr, queue.subspace).options is not None:
            raise QueueExists(name)
        # The maximum size is always set, so that the queue is stored.
        given: dict[str, Any] = {"max_size": None, **body.given()}
        given.pop("kind", None)
        queue.configure(tr, **given)

    await aio.run(change_once, new.queue, served.db, store)
    served.forget(name)
    return await _described(new, 201)


@router.get("/queues/{name}", response_model=answers.QueueDescription, responses={200: _WITH_ETAG})
async def get(opened: ReadQueue) -> Response:
    """Return the kind of a queue, its options with their ETag, and its numbers."""
    return await _described(opened)


async def _described(opened: Opened, status: int = 200) -> Response:
    stats = await opened.handle.stats(opened.db)
    options = stats.options
    assert options is not None
    numbers = stats_as_json(dataclasses.replace(stats, options=None))
    fields = {"name": opened.name, "kind": options.kind, "codec": options.codec}
    shown = _options_as_json(options)
    response = json_response({**fields, "options": shown, "stats": numbers}, status)
    response.headers["etag"] = _etag(options)
    return response


def _options_as_json(options: Options) -> dict[str, Any]:
    # A number of 0 and a time of `None` stand for no done items at all.
    shown = {name: getattr(options, name) for name in answers.Options.model_fields}
    return {**shown, "keep_number": options.keep_number or None}


def _etag(options: Options) -> str:
    digest = hashlib.sha256(json_bytes(_options_as_json(options))).hexdigest()
    return f'"{digest[:16]}"'


@router.patch(
    "/queues/{name}", response_model=answers.QueueDescription, responses={200: _WITH_ETAG}
)
async def change(
    opened: AdminQueue, body: bodies.NewOptions, if_match: _IfMatch = None
) -> Response:
    """Change options of a queue; null removes a limit.

    With `If-Match`, 412 if the options have changed since they had this ETag.
    """
    queue: AnyQueue = opened.queue

    def store(tr: Transaction) -> None:
        if if_match not in (None, "*", _etag(queue.options(tr))):
            raise HTTPException(412, "the options have changed; read them again")
        queue.configure(tr, **body.given())

    await aio.run(change_once, queue, opened.db, store)
    return await _described(opened)


@router.post("/queues/{name}/pause", status_code=204)
async def pause(opened: AdminQueue) -> Response:
    """Stop handing out items until `resume`; pushes are still accepted."""
    await opened.handle.configure(opened.db, paused=True)
    return Response(status_code=204)


@router.post("/queues/{name}/resume", status_code=204)
async def resume(opened: AdminQueue) -> Response:
    """Hand out items again."""
    await opened.handle.configure(opened.db, paused=False)
    return Response(status_code=204)


@router.post("/queues/{name}/clear", response_model=answers.Cleared)
async def clear(opened: AdminQueue) -> Response:
    """Remove all items and return how many there were; the options stay."""
    stats = await opened.handle.stats(opened.db)
    await opened.handle.clear(opened.db)
    return json_response(stats.by_state)


@router.delete("/queues/{name}", response_model=answers.Dropped)
async def drop(served: ServedQueues, name: AdminOf) -> Response:
    """Drop a queue with all its items. Return how many there were, or null if unknown.

    Jobs of other queues that wait for its jobs continue as if these were cancelled.
    """
    validate_encoding(name)
    found = await aio.overview(served.db, prefix=name, limit=1)
    served.forget(name)
    await aio.drop(served.db, name)
    stats = found.get(name)
    numbers: dict[Any, Any] = dict.fromkeys(STATES)
    if stats is not None and stats.error is None:
        numbers = stats.by_state
    return json_response(numbers)


@router.post("/queues/{name}/rename", status_code=204)
async def rename(
    request: Request, served: ServedQueues, name: AdminOf, body: bodies.Rename
) -> Response:
    """Rename a queue; its items, claims, dead letters and options are kept."""
    authorize(request, "admin", body.name)
    await aio.rename(served.db, name, body.name)
    served.forget(name)
    return Response(status_code=204)


@router.post("/queues/{name}/check", response_model=CheckReport)
async def check(opened: AdminQueue, body: bodies.Check) -> Response:
    """Compare a queue's counters and indexes with its items; `repair` corrects them."""
    report = await aio.run(partial(check_queue, repair=body.repair), opened.db, opened.queue)
    return json_response(dataclasses.asdict(report))


@router.get("/queues/{name}/stats", response_model=answers.QueueNumbers)
async def stats(opened: ReadQueue) -> Response:
    """Return a queue's items by state, limits and totals."""
    return json_response(stats_as_json(await opened.handle.stats(opened.db)))


@router.get("/queues/{name}/history", response_model=answers.History)
async def history(opened: ReadQueue) -> Response:
    """Return a queue's activity in the last 5 minutes, hour and day."""
    windows = await opened.handle.history(opened.db)
    return json_response({"windows": [*map(as_json, windows)]})


@router.get("/queues/{name}/jobs", response_model=answers.Jobs)
async def jobs(opened: ReadQueue) -> Response:
    """Return a queue's jobs by name, from up to 500 items in each state (the newest done ones)."""
    return json_response(await aio.run(by_job, opened.db, opened.queue))


@router.get("/queues/{name}/scale", response_model=answers.Scale)
async def scale(opened: ReadQueue) -> Response:
    """Return the load of a queue, for an autoscaler such as KEDA.

    Cost: reads counters and scans nothing.
    """
    numbers = await opened.handle.stats(opened.db)
    now = datetime.now(UTC)
    age = max(0.0, (now - (numbers.waiting_since(now) or now)).total_seconds())
    return json_response(
        {
            "ready": numbers.ready,
            "delayed": numbers.delayed,
            "claimed": numbers.claimed,
            # If the token allows only reads, no look makes a due item ready: that takes a worker.
            "backlog": numbers.ready + numbers.claimed + numbers.has_due(now),
            "oldest_age": round(age, 3),
            "paused": numbers.paused,
        }
    )


# Workers


@router.get("/workers", response_model=answers.WorkerList)
async def workers(request: Request, served: ServedQueues) -> Response:
    """Return the running workers of all queues, by start time."""
    return _shown(request, await aio.workers(served.db))


@router.get("/queues/{name}/workers", response_model=answers.WorkerList)
async def workers_of_queue(opened: ReadQueue) -> Response:
    """Return the running workers of a queue."""
    found = await aio.workers(opened.db)
    return _shown(opened.request, [each for each in found if opened.name in each.queues])


def _shown(request: Request, workers: list[WorkerInfo]) -> Response:
    """Return the workers, with the queues that the token includes."""
    grant = grant_of(request.scope)
    shown: list[dict[str, Any]] = []
    for each in workers:
        queues = {name: most for name, most in each.queues.items() if grant.includes(name)}
        if queues:
            shown.append({**as_json(each), "queues": queues})
    return json_response({"workers": shown})


# Tokens


@router.get("/me", response_model=answers.Me)
async def me(request: Request) -> Response:
    """Return the role and the queues of the request's token.

    Without tokens, every request has the role `admin`.
    """
    return json_response(grant_of(request.scope)._asdict())
