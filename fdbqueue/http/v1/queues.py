"""Queues: their list, options, numbers and load; the workers; and what a token allows."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.errors import OptionsMismatch, QueueExists
from fdbqueue.http.responses import json_response
from fdbqueue.http.routing import links, next_page
from fdbqueue.http.security import Grant, authorize, grant_of
from fdbqueue.http.served import Handle, ServedQueues, validate_encoding
from fdbqueue.http.v1 import bodies
from fdbqueue.http.v1.links import of_queue
from fdbqueue.http.v1.parameters import (
    AdminOf,
    AfterQueue,
    Page,
    ReadOf,
    known_parameters,
)
from fdbqueue.http.v1.values import AnyQueue, require_agents
from fdbqueue.queue.base import change_once, read_stored
from fdbqueue.queue.check import check as check_queue
from fdbqueue.queue.overview import (
    STATES,
    by_job,
    by_state,
    history_as_json,
    json_bytes,
    stats_as_json,
)
from fdbqueue.types import Options, Transaction
from fdbqueue.worker.presence import WorkerInfo, worker_as_json

router = APIRouter(responses=bodies.PROBLEMS, dependencies=[Depends(known_parameters)])

_OTHERS = ("items", "stats", "scale", "workers_of_queue", "change")

_IfMatch = Annotated[
    str | None, Header(description="The ETag of the options: change them only if they have it.")
]


def _with_etag(status: int, *only: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that returns a queue with the ETag of its options."""
    etag = {"description": "The ETag of the options.", "schema": {"type": "string"}}
    responses = links(status, of_queue(*only, etag="$response.header.etag"))
    return {status: {**responses[status], "headers": {"ETag": etag}}}


@router.get(
    "/queues",
    response_model=bodies.Queues,
    responses=links(
        200,
        of_queue(name="$response.body#/queues/0/name"),
        next_page("/v1/queues", "queues", "prefix"),
    ),
)
async def queues(
    request: Request,
    served: ServedQueues,
    limit: Page = 1000,
    after: AfterQueue = None,
    prefix: Annotated[
        str, Query(max_length=255, description="The beginning of the names to list.")
    ] = "",
) -> Response:
    """Return the queues in order of their names, page by page, and the numbers of each."""
    return await served.page(request, limit, after, prefix)


@router.put(
    "/queues/{name}",
    status_code=201,
    response_model=bodies.QueueDescription,
    responses=_with_etag(201),
)
async def create(served: ServedQueues, name: AdminOf, body: bodies.CreateQueue) -> Response:
    """Create a queue of any kind; 409 if there is one of this name already."""
    if body.kind != "task" and (body.ageing is not None or body.agent_concurrency is not None):
        raise HTTPException(422, f"a {body.kind} queue has no agents and no ageing")
    make: Any = {"priority": aio.PriorityQueue, "fifo": aio.Queue, "task": aio.TaskQueue}[body.kind]
    options: dict[str, Any] = {}
    if body.ageing is not None:
        options["ageing"] = timedelta(seconds=body.ageing)
    try:
        handle: Handle = await make.named(served.db, name, **options)
    except OptionsMismatch:
        raise QueueExists(name) from None

    def store(tr: Transaction) -> None:
        queue: AnyQueue = handle.queue
        if read_stored(tr, queue.subspace).options is not None:
            raise QueueExists(name)
        given = body.model_fields_set - {"kind", "ageing"}
        # The maximum size is always set, so that the queue is stored.
        queue.configure(tr, **{each: getattr(body, each) for each in {*given, "max_size"}})

    await aio.run(change_once, handle.queue, served.db, store)
    served.forget(name)
    return await _described(served, name, 201)


@router.get(
    "/queues/{name}",
    response_model=bodies.QueueDescription,
    responses=_with_etag(200, *_OTHERS),
)
async def get(served: ServedQueues, name: ReadOf) -> Response:
    """Return the kind of a queue, its options with their ETag, and its numbers."""
    return await _described(served, name)


async def _described(served: ServedQueues, name: str, status: int = 200) -> Response:
    handle = await served.queue(name)
    stats = await handle.stats(served.db)
    options = stats.options
    assert options is not None
    numbers = stats_as_json(dataclasses.replace(stats, options=None))
    fields = {"name": name, "kind": options.kind, "codec": options.codec}
    shown = _options_as_json(options)
    response = json_response({**fields, "options": shown, "stats": numbers}, status)
    response.headers["etag"] = _etag(options)
    return response


def _options_as_json(options: Options) -> dict[str, Any]:
    # A number of 0 and a time of `None` stand for no done items at all.
    shown = {name: getattr(options, name) for name in bodies.QueueOptions.model_fields}
    return {**shown, "keep_number": options.keep_number or None}


def _etag(options: Options) -> str:
    digest = hashlib.sha256(json_bytes(_options_as_json(options))).hexdigest()
    return f'"{digest[:16]}"'


@router.patch(
    "/queues/{name}",
    response_model=bodies.QueueDescription,
    responses=_with_etag(200, "get", "change"),
)
async def change(
    served: ServedQueues, name: AdminOf, body: bodies.NewOptions, if_match: _IfMatch = None
) -> Response:
    """Change options of a queue: those that are given, and null removes a limit.

    With `If-Match`, 412 if the options have changed since they had this ETag.
    """
    queue: AnyQueue = (await served.queue(name)).queue
    require_agents(queue, "agent_concurrency", body.agent_concurrency)
    given = {field: getattr(body, field) for field in body.model_fields_set}

    def store(tr: Transaction) -> None:
        if if_match not in (None, "*", _etag(queue.options(tr))):
            raise HTTPException(412, "the options have changed; read them again")
        queue.configure(tr, **given)

    await aio.run(change_once, queue, served.db, store)
    return await _described(served, name)


@router.post(
    "/queues/{name}/pause", status_code=204, responses=links(204, of_queue("get", "resume"))
)
async def pause(served: ServedQueues, name: AdminOf) -> Response:
    """Stop handing out items until `resume`; pushes are still accepted."""
    await (await served.queue(name)).configure(served.db, paused=True)
    return Response(status_code=204)


@router.post(
    "/queues/{name}/resume",
    status_code=204,
    responses=links(204, of_queue("get", "pop", "claim", "pause")),
)
async def resume(served: ServedQueues, name: AdminOf) -> Response:
    """Hand out items again."""
    await (await served.queue(name)).configure(served.db, paused=False)
    return Response(status_code=204)


@router.post(
    "/queues/{name}/clear",
    response_model=bodies.Cleared,
    responses=links(200, of_queue("get", "push_one", "drop")),
)
async def clear(served: ServedQueues, name: AdminOf) -> Response:
    """Remove all items; the queue and its options stay. Return how many items there were."""
    handle = await served.queue(name)
    stats = await handle.stats(served.db)
    await handle.clear(served.db)
    return json_response(by_state(stats))


@router.delete(
    "/queues/{name}", response_model=bodies.Dropped, responses=links(200, of_queue("create"))
)
async def drop(served: ServedQueues, name: AdminOf) -> Response:
    """Drop a queue with all its items. Return how many items there were, or null if not known.

    Jobs of other queues that wait for its jobs go on as if these were cancelled; `notes` say so.
    """
    validate_encoding(name)
    found = await aio.overview(served.db, prefix=name, limit=1)
    served.forget(name)
    notes = await aio.drop(served.db, name)
    stats = found.get(name)
    numbers: dict[Any, Any] = dict.fromkeys(STATES)
    if stats is not None and stats.error is None:
        numbers = by_state(stats)
    return json_response({**numbers, "notes": notes})


@router.post(
    "/queues/{name}/rename",
    status_code=204,
    responses=links(204, of_queue(name="$request.body#/name")),
)
async def rename(
    request: Request, served: ServedQueues, name: AdminOf, body: bodies.Rename
) -> Response:
    """Rename a queue; its items, claims, dead letters and options are kept."""
    authorize(request, "admin", body.name)
    await aio.rename(served.db, name, body.name)
    served.forget(name)
    return Response(status_code=204)


@router.post(
    "/queues/{name}/check", response_model=dict[str, Any], responses=links(200, of_queue("stats"))
)
async def check(served: ServedQueues, name: AdminOf, body: bodies.Check) -> Response:
    """Compare the counters and indexes of a queue with its items; correct them with `repair`."""
    handle = await served.queue(name)
    report = await aio.run(partial(check_queue, repair=body.repair), served.db, handle.queue)
    return json_response(dataclasses.asdict(report))


@router.get("/queues/{name}/stats", response_model=bodies.QueueNumbers)
async def stats(served: ServedQueues, name: ReadOf) -> Response:
    """Return how many items are in each state, the limits of the queue and its totals."""
    handle = await served.queue(name)
    return json_response(stats_as_json(await handle.stats(served.db)))


@router.get("/queues/{name}/history", response_model=bodies.History)
async def history(served: ServedQueues, name: ReadOf) -> Response:
    """Return what happened in a queue within the last 5 minutes, hour and day."""
    handle = await served.queue(name)
    windows = await handle.history(served.db)
    return json_response({"windows": [*map(history_as_json, windows)]})


@router.get("/queues/{name}/jobs", response_model=bodies.Jobs)
async def jobs(served: ServedQueues, name: ReadOf) -> Response:
    """Return the jobs of a queue by name, from a sample of up to 500 items in each state.

    Of the done items that the queue keeps, these are the newest.
    """
    handle = await served.queue(name)
    return json_response(await aio.run(by_job, served.db, handle.queue))


@router.get("/queues/{name}/scale", response_model=bodies.Scale)
async def scale(served: ServedQueues, name: ReadOf) -> Response:
    """Return the load of a queue, for an autoscaler such as KEDA.

    Cost: the counters of the queue; nothing is scanned.
    """
    handle = await served.queue(name)
    numbers = await handle.stats(served.db)
    age, now = 0.0, datetime.now(timezone.utc)
    if numbers.oldest is not None:
        age = max(0.0, (now - numbers.oldest).total_seconds())
    # If the token allows only reads, no look makes a due item ready: that takes a worker.
    is_due = numbers.next_due is not None and numbers.next_due <= now
    return json_response(
        {
            "ready": numbers.ready,
            "delayed": numbers.delayed,
            "claimed": numbers.claimed,
            "backlog": numbers.ready + numbers.claimed + is_due,
            "oldest_age": round(age, 3),
            "paused": numbers.paused,
        }
    )


# Workers


@router.get("/workers", response_model=bodies.WorkerList)
async def workers(request: Request, served: ServedQueues) -> Response:
    """Return the running workers of all queues, in the order in which they started."""
    grant = grant_of(request)
    found = await aio.workers(served.db)
    if grant is not None:
        found = [*filter(None, (_granted(each, grant) for each in found))]
    return json_response({"workers": [*map(worker_as_json, found)]})


@router.get("/queues/{name}/workers", response_model=bodies.WorkerList)
async def workers_of_queue(request: Request, served: ServedQueues, name: ReadOf) -> Response:
    """Return the running workers of a queue."""
    await served.queue(name)  # raises if there is none
    found = await aio.workers(served.db)
    grant = grant_of(request)
    shown = [
        each if grant is None else _granted(each, grant) for each in found if name in each.queues
    ]
    return json_response({"workers": [*map(worker_as_json, filter(None, shown))]})


def _granted(worker: WorkerInfo, grant: Grant) -> WorkerInfo | None:
    """Return a worker with the queues that a token includes; `None` if it has no such queue."""
    queues = {name: most for name, most in worker.queues.items() if grant.includes(name)}
    return dataclasses.replace(worker, queues=queues) if queues else None


# Tokens


@router.get("/me", response_model=bodies.Me)
async def me(request: Request) -> Response:
    """Return the role of the request's token, and the queues that it allows.

    Without tokens every request has the role `admin`.
    """
    grant = grant_of(request)
    if grant is None:
        return json_response({"role": "admin", "queues": "*"})
    return json_response({"role": grant.role, "queues": grant.queues})
