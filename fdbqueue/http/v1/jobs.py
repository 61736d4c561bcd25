"""Push, pop, claim, and end claims: routes whose speed matters, which parse their own bodies."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.database.exactly_once import run_once
from fdbqueue.errors import LeaseLost
from fdbqueue.http.idempotency import remembered
from fdbqueue.http.responses import Delivered, ends_of_wait, json_response
from fdbqueue.http.routing import NAME_SCHEMA, DirectRoute, decoded, links
from fdbqueue.http.security import authorize
from fdbqueue.http.served import Handle, Served
from fdbqueue.http.v1 import bodies
from fdbqueue.http.v1.claims import claim_from_text, claim_text
from fdbqueue.http.v1.links import SAME_TOKEN, of_claim, of_item, of_queue
from fdbqueue.http.v1.values import (
    AnyQueue,
    found,
    full,
    json_queue,
    layout_of,
    push,
    push_all,
    push_arguments,
)
from fdbqueue.types import Claim, Database, Transaction

__all__ = ["router"]

_B = TypeVar("_B", bound=BaseModel)

router = APIRouter(route_class=DirectRoute, responses=bodies.PROBLEMS)

_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The queue's name, with `/` as `%2F`.",
    "schema": {"type": "string", **NAME_SCHEMA},
}
_AFTER_A_PUSH = ("get", "stats", "items", "pop", "claim")
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A request repeated with the same key within a day stores nothing more.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def _described(model: type[BaseModel], *parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what OpenAPI has to know about a route that parses its own body."""
    schema = model.model_json_schema()
    schema = _inlined(schema, schema.pop("$defs", {}))
    required = any(field.is_required() for field in model.model_fields.values())
    body = {"required": required, "content": {"application/json": {"schema": schema}}}
    return {"parameters": [_NAME, *parameters], "requestBody": body}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a JSON schema with its definitions in the places that refer to them."""
    inline = partial(_inlined, definitions=definitions)
    parts: Any = schema
    if isinstance(schema, list):
        return [*map(inline, parts)]
    if isinstance(schema, dict):
        if "$ref" in schema:
            return inline(definitions[parts["$ref"].rpartition("/")[2]])
        return dict(zip(parts, map(inline, parts.values())))
    return parts


async def _read(request: Request, model: type[_B]) -> _B:
    """Return the body of a request that changes items of a queue."""
    authorize(request, "write", decoded(request.path_params["name"]))
    return await bodies.read_body(request, model)


async def _open(request: Request, must_exist: bool = True) -> tuple[Served, Handle, AnyQueue]:
    """Return the queue of a request that changes its items, with its blocking counterpart."""
    name = decoded(request.path_params["name"])
    served: Served = request.app.state.served
    handle = await served.queue(name, must_exist)
    return served, handle, json_queue(handle)


@router.post(
    "/queues/{name}/push",
    status_code=201,
    response_model=bodies.Pushed,
    openapi_extra=_described(bodies.Push, _KEY),
    responses=links(201, of_item("$response.body#/id"), of_queue(*_AFTER_A_PUSH)),
)
async def push_one(request: Request) -> Response:
    """Push an item; the first push creates a priority queue.

    For a day, a request repeated with the same `Idempotency-Key` stores nothing more and gets the
    same id. 429 if the queue is full.
    """
    body = await _read(request, bodies.Push)
    served, handle, queue = await _open(request, must_exist=False)
    key = request.headers.get("idempotency-key")
    if key is not None:
        store = partial(_push_ids, queue=queue, body=body)
        id, *known = await aio.run(remembered, served.db, queue, key, await request.body(), store)
        return json_response({"id": id, "is_new": not known}, 201)
    method, args, kwargs = push_arguments(queue, body)
    pushed = await getattr(handle, method)(served.db, *args, **kwargs)
    if pushed is None:
        raise full(queue)
    id, is_new = (pushed, True) if isinstance(pushed, str) else (pushed.id, pushed.is_new)
    return json_response({"id": id, "is_new": is_new}, 201)


def _push_ids(tr: Transaction, queue: AnyQueue, body: bodies.Push) -> list[str]:
    """Push an item; return its id, and a mark if an unfinished item had its unique key."""
    id, is_new = push(tr, queue, body)
    return [id] if is_new else [id, "known"]


@router.post(
    "/queues/{name}/batch",
    status_code=201,
    response_model=bodies.BatchPushed,
    openapi_extra=_described(bodies.Batch, _KEY),
    responses=links(201, of_item("$response.body#/ids/0"), of_queue(*_AFTER_A_PUSH)),
)
async def push_batch(request: Request) -> Response:
    """Push several items in one transaction: all of them or none, or as many as fit."""
    body = await _read(request, bodies.Batch)
    served, _, queue = await _open(request, must_exist=False)
    key = request.headers.get("idempotency-key")
    store = partial(push_all, queue=queue, bodies=body.items, as_many_as_fit=body.as_many_as_fit)
    if key is not None:
        ids = await aio.run(remembered, served.db, queue, key, await request.body(), store)
    else:
        ids = await aio.run(run_once, served.db, store, layout_of(queue).receipts)
    if not ids:
        raise full(queue)
    return json_response({"ids": ids}, 201)


@router.post(
    "/queues/{name}/pop",
    response_model=bodies.Popped,
    openapi_extra=_described(bodies.Pop),
)
async def pop(request: Request) -> Response:
    """Pop the first items, in order; with `wait`, wait until there is one.

    The items are removed once the response is sent. If the client disconnects before that, they
    return to their positions. Work that must survive the death of the client needs a claim.
    """
    body = await _read(request, bodies.Pop)
    served, handle, queue = await _open(request)
    method, args, kwargs = _pop_call(handle, body)
    if body.wait:
        async with ends_of_wait(request) as ends:
            taken = await aio.until(ends, handle, method, served.db, *args, **kwargs)
    else:
        taken = await getattr(handle, method)(served.db, *args, **kwargs)
    items: list[Any] = taken if method != "pop" else [] if taken is None else [taken]

    def answer() -> Response:
        return json_response({"items": [found(queue, item) for item in items]})

    return Delivered(answer, partial(_put_back, handle, served.db, items))


def _pop_call(handle: Handle, body: bodies.Pop) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the method that pops, and its arguments after the database."""
    if isinstance(handle, aio.TaskQueue):
        if body.max:
            raise HTTPException(422, "max: a task queue has no other end")
        if body.agent is None:
            return "pop_many", (body.n,), {"wait": body.wait}
        if body.n > 1:
            raise HTTPException(422, "n: a pop for an agent takes one task")
        return "pop", (), {"agent": body.agent, "wait": body.wait}
    if body.agent is not None:
        raise HTTPException(422, "agent: only a task queue has agents")
    if isinstance(handle, aio.PriorityQueue):
        return "pop_many", (body.n,), {"max": body.max, "wait": body.wait}
    if body.max:
        raise HTTPException(422, "max: a FIFO queue has no priorities")
    return "dequeue_many", (body.n,), {"wait": body.wait}


async def _put_back(handle: Handle, db: Database, items: list[Any]) -> None:
    if items:
        await handle.put_back(db, items)


@router.post(
    "/queues/{name}/claim",
    response_model=bodies.Claims,
    openapi_extra=_described(bodies.ClaimRequest),
    responses=links(
        200,
        of_claim("$response.body#/claims/0/token"),
        of_item("$response.body#/claims/0/id", "get", "result", "release"),
    ),
)
async def claim(request: Request) -> Response:
    """Claim the first items for the time of a lease; with `wait`, wait until there is one.

    Each item has a `token`. Send it to `ack` when the job is done, to `nack` when it failed, to
    `extend` when it needs more time, and to `release` to return the item. When the lease is over,
    the item returns to the queue, and the token is no longer valid.
    """
    body = await _read(request, bodies.ClaimRequest)
    served, handle, queue = await _open(request)
    options = body.model_dump(exclude_none=True)
    if body.agent is not None and not isinstance(handle, aio.TaskQueue):
        raise HTTPException(422, "agent: only a task queue has agents")
    claimed: Claim | None
    if body.wait:
        async with ends_of_wait(request) as ends:
            claimed = await aio.until(ends, handle, "claim", served.db, **options)
    else:
        claimed = await handle.claim(served.db, **options)
    claims = [] if claimed is None else [*claimed]

    def answer() -> Response:
        return json_response({"claims": [_claimed(handle, queue, each) for each in claims]})

    return Delivered(answer, partial(_release, handle, served.db, claimed))


async def _release(handle: Handle, db: Database, claim: Claim | None) -> None:
    """Return the items of a client that has left."""
    if claim is not None:
        with suppress(LeaseLost):  # they are back already
            await handle.release(db, claim)


def _claimed(handle: Handle, queue: AnyQueue, claim: Claim) -> dict[str, Any]:
    return {
        **found(queue, claim.item),
        "attempt": claim.attempt,
        "token": claim_text(handle, claim),
    }


@router.post(
    "/queues/{name}/ack",
    response_model=bodies.BatchPushed,
    openapi_extra=_described(bodies.Ack),
    responses=links(
        200,
        of_item("$response.body#/ids/0", name="$request.body#/then/0/queue"),
        of_queue("claim"),
    ),
)
async def ack(request: Request) -> Response:
    """Acknowledge a claim: its job is done. Push the items of `then` in the same transaction.

    The answer has the ids of the pushed items. 409 if the claim is over: another worker may have
    the job, and nothing was pushed. 429 if a queue of `then` is full: nothing has changed.
    """
    body = await _read(request, bodies.Ack)
    served, handle, queue = await _open(request)
    claim = claim_from_text(handle, body.token)
    if not body.then:
        await handle.ack(served.db, claim, result=body.result)
        return json_response({"ids": []})
    targets: list[AnyQueue] = []
    for each in body.then:
        authorize(request, "write", each.queue)
        target = json_queue(await served.queue(each.queue, must_exist=False))
        push_arguments(target, each)  # an invalid one is refused before anything is done
        targets.append(target)

    def acknowledge(tr: Transaction) -> list[str]:
        queue.ack(tr, claim, result=body.result)
        return [push(tr, target, each)[0] for target, each in zip(targets, body.then)]

    ids = await aio.run(run_once, served.db, acknowledge, layout_of(queue).receipts)
    return json_response({"ids": ids})


@router.post(
    "/queues/{name}/nack",
    status_code=204,
    openapi_extra=_described(bodies.Nack),
    responses=links(204, of_queue("claim")),
)
async def nack(request: Request) -> Response:
    """Report that a job failed: it is retried after a delay, or becomes a dead letter."""
    body = await _read(request, bodies.Nack)
    served, handle, _ = await _open(request)
    claim = claim_from_text(handle, body.token)
    await handle.nack(served.db, claim, delay=body.delay, error=body.error)
    return Response(status_code=204)


@router.post(
    "/queues/{name}/extend",
    status_code=204,
    openapi_extra=_described(bodies.Extend),
    responses=links(204, of_claim(SAME_TOKEN)),
)
async def extend(request: Request) -> Response:
    """Restart the lease of a claim: it lasts for `lease` seconds from now."""
    body = await _read(request, bodies.Extend)
    served, handle, _ = await _open(request)
    await handle.extend(served.db, claim_from_text(handle, body.token), body.lease)
    return Response(status_code=204)


@router.post(
    "/queues/{name}/release",
    status_code=204,
    openapi_extra=_described(bodies.Release),
    responses=links(204, of_queue("claim")),
)
async def release(request: Request) -> Response:
    """Return the item of a claim to its place, as if it had never been claimed."""
    body = await _read(request, bodies.Release)
    served, handle, _ = await _open(request)
    await handle.release(served.db, claim_from_text(handle, body.token))
    return Response(status_code=204)
