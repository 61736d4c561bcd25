"""Push, pop, claim, and end claims: routes whose speed matters, which parse their own bodies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.errors import LeaseLost
from fdbqueue.http.fields import NAME_SCHEMA
from fdbqueue.http.responses import Delivered, json_response
from fdbqueue.http.routing import (
    IDEMPOTENCY_KEY,
    decoded,
    links,
    parameter,
    read_json,
)
from fdbqueue.http.security import authorize
from fdbqueue.http.served import Handle, Served, call_waiting, popped
from fdbqueue.http.v1 import bodies
from fdbqueue.http.v1.links import SAME_TOKEN, of_claim, of_item, of_queue
from fdbqueue.http.v1.values import (
    AnyQueue,
    found,
    full,
    json_queue,
    options_of,
    push,
    push_all,
    push_arguments,
    pushed,
    require_agents,
)
from fdbqueue.queue.base import change_once, claim_from_text, claim_text
from fdbqueue.queue.transfer.idempotency import remembered
from fdbqueue.types import Claim, Progress, Transaction

_B = TypeVar("_B", bound=BaseModel)
_C = TypeVar("_C", bound=bodies.OfClaim)

router = APIRouter(responses=bodies.PROBLEMS)

_NAME = parameter(
    "name", "path", "The queue's name, with `/` as `%2F`.", type="string", **NAME_SCHEMA
)
_ONE_END = {
    "fifo": "a FIFO queue has no priorities",
    "task": "a task queue has no other end",
}
_AFTER_A_PUSH = ("get", "stats", "items", "pop", "claim")


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


@dataclass(frozen=True)
class _Call(Generic[_B]):
    """A request that changes items of a queue: its body, and the queue with its handle."""

    body: _B
    served: Served
    handle: Handle
    queue: AnyQueue


async def _read(request: Request, model: type[_B], must_exist: bool = True) -> _Call[_B]:
    """Return what a request asks for, if its token allows it."""
    name = decoded(request.path_params["name"])
    authorize(request, "write", name)
    if request.scope["query_string"]:
        raise HTTPException(422, "this route has no query parameters; send them in the body")
    body = await read_json(request, model, empty=b"{}")
    served: Served = request.app.state.served
    handle = await served.queue(name, must_exist)
    return _Call(body, served, handle, json_queue(handle.queue))


@router.post(
    "/queues/{name}/push",
    status_code=201,
    response_model=bodies.Pushed,
    openapi_extra=_described(bodies.Push, IDEMPOTENCY_KEY),
    responses=links(201, of_item("$response.body#/id"), of_queue(*_AFTER_A_PUSH)),
)
async def push_one(request: Request) -> Response:
    """Push an item; the first push creates a priority queue.

    For a day, a request repeated with the same `Idempotency-Key` stores nothing more and gets the
    same id. 429 if the queue is full.
    """
    call = await _read(request, bodies.Push, must_exist=False)
    if "idempotency-key" in request.headers:
        id, *known = await _push_once(request, call, partial(_push_ids, call))
        return json_response({"id": id, "is_new": not known}, 201)
    if call.body.unique is not None:  # it shares no transaction with other pushes
        id, is_new = await aio.run(push, call.served.db, call.queue, call.body)
        return json_response({"id": id, "is_new": is_new}, 201)
    args, kwargs = push_arguments(call.queue, call.body)
    handle: Any = call.handle
    id, is_new = pushed(call.queue, await handle.push(call.served.db, *args, **kwargs))
    return json_response({"id": id, "is_new": is_new}, 201)


async def _push_once(
    request: Request, call: _Call[Any], push: Callable[[Transaction], list[str]]
) -> list[str]:
    """Push in one transaction, or return the ids of the first request with the same key."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return await aio.run(change_once, call.queue, call.served.db, push)
    digest = hashlib.sha256(await request.body()).digest()
    return await aio.run(remembered, call.served.db, call.queue, key, digest, push)


def _push_ids(call: _Call[bodies.Push], tr: Transaction) -> list[str]:
    """Push an item; return its id, and a mark if an unfinished item had its unique key."""
    id, is_new = push(tr, call.queue, call.body)
    return [id] if is_new else [id, "known"]


@router.post(
    "/queues/{name}/batch",
    status_code=201,
    response_model=bodies.BatchPushed,
    openapi_extra=_described(bodies.Batch, IDEMPOTENCY_KEY),
    responses=links(201, of_item("$response.body#/ids/0"), of_queue(*_AFTER_A_PUSH)),
)
async def push_batch(request: Request) -> Response:
    """Push several items in one transaction: all of them or none, or as many as fit."""
    call = await _read(request, bodies.Batch, must_exist=False)
    items, as_many_as_fit = call.body.items, call.body.as_many_as_fit
    store = partial(push_all, queue=call.queue, bodies=items, as_many_as_fit=as_many_as_fit)
    ids = await _push_once(request, call, store)
    if not ids:
        raise full(call.queue)
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
    call = await _read(request, bodies.Pop)
    body = call.body
    require_agents(call.queue, "agent", body.agent)
    kind = options_of(call.queue).kind
    if body.max and kind != "priority":
        raise HTTPException(422, f"max: {_ONE_END[kind]}")
    items: list[Any]
    if body.agent is None:
        options: dict[str, Any] = {"max": body.max} if kind == "priority" else {}
        options["wait"] = body.wait
        items = await call_waiting(request, call.handle, "pop_many", body.n, **options)
    elif body.n > 1:
        raise HTTPException(422, "n: a pop for an agent takes one task")
    else:
        task = await call_waiting(request, call.handle, "pop", wait=body.wait, agent=body.agent)
        items = [] if task is None else [task]
    return popped(call.served.db, call.handle, items, partial(found, call.queue))


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
    call = await _read(request, bodies.ClaimRequest)
    require_agents(call.queue, "agent", call.body.agent)
    options = call.body.model_dump(exclude_none=True)
    claimed: Claim | None = await call_waiting(request, call.handle, "claim", **options)

    def content() -> dict[str, Any]:
        return {"claims": [_claimed(call.queue, each) for each in claimed or ()]}

    async def release() -> None:
        if claimed is not None:
            with suppress(LeaseLost):  # the items are back already
                await call.handle.release(call.served.db, claimed)

    return Delivered(content, release)


def _claimed(queue: AnyQueue, claim: Claim) -> dict[str, Any]:
    token = claim_text(queue, claim)
    return {**found(queue, claim.item), "attempt": claim.attempt, "token": token}


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
    call, claim = await _read_claim(request, bodies.Ack)
    served, body = call.served, call.body
    if not body.then:
        await call.handle.ack(served.db, claim, result=body.result, log=body.log)
        return json_response({"ids": []})
    targets: list[AnyQueue] = []
    for each in body.then:
        authorize(request, "write", each.queue)
        target = json_queue((await served.queue(each.queue, must_exist=False)).queue)
        push_arguments(target, each)  # an invalid one is refused before anything is done
        targets.append(target)

    def acknowledge(tr: Transaction) -> list[str]:
        call.queue.ack(tr, claim, result=body.result, log=body.log)
        return [push(tr, target, each)[0] for target, each in zip(targets, body.then)]

    ids = await aio.run(change_once, call.queue, served.db, acknowledge)
    return json_response({"ids": ids})


async def _read_claim(request: Request, model: type[_C]) -> tuple[_Call[_C], Claim]:
    call = await _read(request, model)
    return call, claim_from_text(call.queue, call.body.token)


@router.post(
    "/queues/{name}/nack",
    status_code=204,
    openapi_extra=_described(bodies.Nack),
    responses=links(204, of_queue("claim")),
)
async def nack(request: Request) -> Response:
    """Report that a job failed: it is retried after a delay, or becomes a dead letter."""
    call, claim = await _read_claim(request, bodies.Nack)
    body = call.body
    await call.handle.nack(
        call.served.db, claim, delay=body.delay, error=body.error, dead=body.dead, log=body.log
    )
    return Response(status_code=204)


@router.post(
    "/queues/{name}/extend",
    status_code=204,
    openapi_extra=_described(bodies.Extend),
    responses=links(204, of_claim(SAME_TOKEN)),
)
async def extend(request: Request) -> Response:
    """Restart the lease of a claim: it lasts for `lease` seconds from now.

    With `progress` or `log`, report on the work, too: the item shows it until the claim ends.
    Without them, the last report stays.
    """
    call, claim = await _read_claim(request, bodies.Extend)
    body = call.body
    progress = None if body.progress is None else Progress(body.progress, body.message)
    await call.handle.extend(call.served.db, claim, body.lease, progress=progress, log=body.log)
    return Response(status_code=204)


@router.post(
    "/queues/{name}/release",
    status_code=204,
    openapi_extra=_described(bodies.Release),
    responses=links(204, of_queue("claim")),
)
async def release(request: Request) -> Response:
    """Return the item of a claim to its place, as if it had never been claimed."""
    call, claim = await _read_claim(request, bodies.Release)
    await call.handle.release(call.served.db, claim, delay=call.body.delay)
    return Response(status_code=204)
