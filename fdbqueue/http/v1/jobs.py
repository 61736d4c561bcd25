"""Push, pop, claim, and end claims."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import Body, Depends, Request, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.errors import LeaseLost
from fdbqueue.http.parameters import WriteOf, new_router
from fdbqueue.http.responses import Delivered, json_response
from fdbqueue.http.security import authorize
from fdbqueue.http.served import Handle, Served, ServedQueues, call_waiting, popped
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import (
    AnyQueue,
    IdempotencyKey,
    Once,
    found,
    json_queue,
    options_of,
    push,
    push_all,
    push_arguments,
    push_item,
    without_marks,
)
from fdbqueue.queue.base import change_once, claim_from_text, claim_text
from fdbqueue.types import Claim, Keep, Progress, Transaction

router = new_router()

_ONE_END = {
    "fifo": "a FIFO queue has no priorities",
    "task": "a task queue has no other end",
}


async def _json_handle(
    served: Served, name: str, must_exist: bool = True, keep: Keep | None = None
) -> Handle:
    handle = await served.queue(name, must_exist, keep)
    json_queue(handle.queue)
    return handle


async def _existing(request: Request, name: WriteOf) -> Handle:
    return await _json_handle(request.app.state.served, name)


async def _pushed_to(request: Request, name: WriteOf) -> Handle:
    return await _json_handle(request.app.state.served, name, must_exist=False)


_Existing: TypeAlias = Annotated[Handle, Depends(_existing)]
_PushedTo: TypeAlias = Annotated[Handle, Depends(_pushed_to)]
_Pop: TypeAlias = Annotated[bodies.Pop, Body(default_factory=bodies.Pop)]
_Claim: TypeAlias = Annotated[bodies.ClaimRequest, Body(default_factory=bodies.ClaimRequest)]


@router.post("/queues/{name}/push", status_code=201, response_model=answers.Pushed)
async def push_one(
    request: Request, handle: _PushedTo, body: bodies.Push, idempotency_key: IdempotencyKey = None
) -> Response:
    """Push an item; the first push creates a priority queue.

    For a day, a request with the same `Idempotency-Key` stores nothing more and gets the same id.
    429 if the queue is full.
    """
    id, is_new = await push_item(request, handle, body, idempotency_key)
    return json_response({"id": id, "is_new": is_new}, 201)


@router.post("/queues/{name}/batch", status_code=201, response_model=answers.BatchPushed)
async def push_batch(
    once: Once, served: ServedQueues, name: WriteOf, body: bodies.Batch
) -> Response:
    """Push several items in one transaction: all, or as many as fit."""
    handle = await _json_handle(served, name, must_exist=False, keep=body.keep)
    items, as_many_as_fit = body.items, body.as_many_as_fit
    store = partial(push_all, queue=handle.queue, bodies=items, as_many_as_fit=as_many_as_fit)
    pushed = without_marks(await once(handle, store))
    ids, is_new = [id for id, _ in pushed], [new for _, new in pushed]
    return json_response({"ids": ids, "is_new": is_new}, 201)


@router.post("/queues/{name}/pop", response_model=answers.Popped)
async def pop(request: Request, handle: _Existing, body: _Pop) -> Response:
    """Pop the first items, in order; with `wait`, wait until there is one.

    If the client disconnects before the response is sent, the items return to their positions. Work
    that must survive the client's death needs a claim.
    """
    kind = options_of(handle.queue).kind
    if body.max and kind != "priority":
        raise HTTPException(422, f"max: {_ONE_END[kind]}")
    options: dict[str, Any] = {"max": True} if body.max else {}
    return await popped(request, handle, body.n, body.wait, partial(found, handle.queue), **options)


@router.post("/queues/{name}/claim", response_model=answers.Claims)
async def claim(
    request: Request,
    served: ServedQueues,
    handle: _Existing,
    body: _Claim,
) -> Response:
    """Claim the first items under a lease; with `wait`, wait until there is one.

    Each item has a `token`. Send it to `ack` when the job is done, to `nack` when it failed, to
    `extend` when it needs more time, or to `release` to return the item. After the lease, the item
    returns to the queue, and the token is invalid.
    """
    options = body.model_dump(exclude_none=True)
    claimed: Claim | None = await call_waiting(request, handle, "claim", **options)

    def content() -> dict[str, Any]:
        return {"claims": [_claimed(handle.queue, each) for each in claimed or ()]}

    async def release() -> None:
        if claimed is not None:
            with suppress(LeaseLost):  # the items are back already
                await handle.release(served.db, claimed)

    return Delivered(content, release)


def _claimed(queue: AnyQueue, claim: Claim) -> dict[str, Any]:
    token = claim_text(queue, claim)
    return {**found(queue, claim.item), "attempt": claim.attempt, "token": token}


@router.post("/queues/{name}/ack", response_model=answers.Followed)
async def ack(
    request: Request, served: ServedQueues, handle: _Existing, body: bodies.Ack
) -> Response:
    """Acknowledge a claim: its job is done. Push the items of `then` in the same transaction.

    The answer has their ids. 409 if the claim is over: another worker may have the job, and nothing
    was pushed. 429 if a queue of `then` is full: nothing has changed.
    """
    queue = handle.queue
    claim = claim_from_text(queue, body.token)
    if not body.then:
        await handle.ack(served.db, claim, result=body.result, log=body.log)
        return json_response({"ids": []})
    targets: list[AnyQueue] = []
    for each in body.then:
        authorize(request, "write", each.queue)
        target = (await _json_handle(served, each.queue, must_exist=False)).queue
        push_arguments(target, each)  # an invalid one is refused before anything is done
        targets.append(target)

    def acknowledge(tr: Transaction) -> list[str]:
        queue.ack(tr, claim, result=body.result, log=body.log)
        return [push(tr, target, each)[0] for target, each in zip(targets, body.then)]

    return json_response({"ids": await aio.run(change_once, queue, served.db, acknowledge)})


@router.post("/queues/{name}/nack", status_code=204)
async def nack(served: ServedQueues, handle: _Existing, body: bodies.Nack) -> Response:
    """Report that a job failed: it is retried after a delay, or becomes a dead letter."""
    claim = claim_from_text(handle.queue, body.token)
    await handle.nack(served.db, claim, **body.model_dump(exclude={"token"}))
    return Response(status_code=204)


@router.post("/queues/{name}/extend", status_code=204)
async def extend(served: ServedQueues, handle: _Existing, body: bodies.Extend) -> Response:
    """Restart the lease of a claim, for `lease` seconds from now.

    `progress` and `log` report on the work. The item shows the last report until the claim ends.
    """
    claim = claim_from_text(handle.queue, body.token)
    progress = None if body.progress is None else Progress(body.progress, body.message)
    await handle.extend(served.db, claim, body.lease, progress=progress, log=body.log)
    return Response(status_code=204)


@router.post("/queues/{name}/release", status_code=204)
async def release(served: ServedQueues, handle: _Existing, body: bodies.Release) -> Response:
    """Return a claim's item to its place, as if it had never been claimed."""
    claim = claim_from_text(handle.queue, body.token)
    await handle.release(served.db, claim, delay=body.delay)
    return Response(status_code=204)
