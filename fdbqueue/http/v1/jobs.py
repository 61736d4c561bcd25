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
from fdbqueue.http.served import Opened, WriteQueue, opened_queue
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import (
    AnyQueue,
    IdempotencyKey,
    found,
    json_queue,
    once,
    options_of,
    push_all,
    push_arguments,
    push_item,
    without_marks,
)
from fdbqueue.queue.base import change_once, claim_from_text, claim_text
from fdbqueue.queue.batches import StoredAlert, new_alert
from fdbqueue.types import Claim, Keep, Progress, Transaction

router = new_router()

_ONE_END = {
    "fifo": "a FIFO queue has no priorities",
    "task": "a task queue has no other end",
}


async def _existing(opened: WriteQueue) -> Opened:
    json_queue(opened.queue)
    return opened


async def _pushed_to(request: Request, name: str, keep: Keep | None = None) -> Opened:
    return await _existing(await opened_queue(request, name, must_exist=False, keep=keep))


_Existing: TypeAlias = Annotated[Opened, Depends(_existing)]
_Pop: TypeAlias = Annotated[bodies.Pop, Body(default_factory=bodies.Pop)]
_Claim: TypeAlias = Annotated[bodies.ClaimRequest, Body(default_factory=bodies.ClaimRequest)]


@router.post("/queues/{name}/push", status_code=201, response_model=answers.Pushed)
async def push_one(
    request: Request, name: WriteOf, body: bodies.Push, key: IdempotencyKey = None
) -> Response:
    """Push an item; the first push creates a priority queue.

    For a day, a request with the same `Idempotency-Key` stores nothing more and gets the same id.
    429 if the queue is full.
    """
    id, is_new = await push_item(await _pushed_to(request, name), body, key)
    return json_response({"id": id, "is_new": is_new}, 201)


@router.post("/queues/{name}/batch", status_code=201, response_model=answers.BatchPushed)
async def push_batch(
    request: Request, name: WriteOf, body: bodies.Batch, key: IdempotencyKey = None
) -> Response:
    """Push several items in one transaction: all, or as many as fit."""
    opened = await _pushed_to(request, name, body.keep)
    alert = body.on_dead and _alert(opened, body.on_dead)
    store = partial(push_all, queue=opened.queue, bodies=body.items, alert=alert or b"")
    pushed = without_marks(
        await once(opened, key, partial(store, as_many_as_fit=body.as_many_as_fit))
    )
    ids, is_new = [id for id, _ in pushed], [new for _, new in pushed]
    return json_response({"ids": ids, "is_new": is_new}, 201)


def _alert(opened: Opened, on_dead: bodies.OnDead) -> bytes:
    if options_of(opened.queue).kind != "priority":
        raise HTTPException(422, "on_dead: only jobs of a priority queue have an alert")
    if on_dead.queue is not None:
        authorize(opened.request, "write", on_dead.queue)
    return new_alert(opened.queue, StoredAlert(**on_dead.model_dump(exclude_none=True)))


@router.post("/queues/{name}/pop", response_model=answers.Popped)
async def pop(opened: _Existing, body: _Pop) -> Response:
    """Pop the first items, in order; with `wait`, wait until there is one.

    If the client disconnects before the response is sent, the items return to their positions. Work
    that must survive the client's death needs a claim.
    """
    kind = options_of(opened.queue).kind
    if body.max and kind != "priority":
        raise HTTPException(422, f"max: {_ONE_END[kind]}")
    options: dict[str, Any] = {"max": True} if body.max else {}
    return await opened.popped(body.n, body.wait, partial(found, opened.queue), **options)


@router.post("/queues/{name}/claim", response_model=answers.Claims)
async def claim(opened: _Existing, body: _Claim) -> Response:
    """Claim the first items under a lease; with `wait`, wait until there is one.

    Each item has a `token`. Send it to `ack` when the job is done, to `nack` when it failed, to
    `extend` when it needs more time, or to `release` to return the item. After the lease, the item
    returns to the queue, and the token is invalid.
    """
    options = body.model_dump(exclude_none=True)
    claimed: Claim | None = await opened.call_waiting("claim", **options)

    def content() -> dict[str, Any]:
        return {"claims": [_claimed(opened.queue, each) for each in claimed or ()]}

    async def release() -> None:
        if claimed is not None:
            with suppress(LeaseLost):  # the items are back already
                await opened.handle.release(opened.db, claimed)

    return Delivered(content, release)


def _claimed(queue: AnyQueue, claim: Claim) -> dict[str, Any]:
    token = claim_text(queue, claim)
    return {**found(queue, claim.item), "attempt": claim.attempt, "token": token}


@router.post("/queues/{name}/ack", response_model=answers.Followed)
async def ack(opened: _Existing, body: bodies.Ack) -> Response:
    """Acknowledge a claim: its job is done. Push the items of `then` in the same transaction.

    The answer has their ids. 409 if the claim is over: another worker may have the job, and nothing
    was pushed. 429 if a queue of `then` is full: nothing has changed.
    """
    queue = opened.queue
    claim = claim_from_text(queue, body.token)
    if not body.then:
        await opened.handle.ack(opened.db, claim, result=body.result, log=body.log)
        return json_response({"ids": []})
    targets: list[AnyQueue] = []
    for each in body.then:
        authorize(opened.request, "write", each.queue)
        target = (await _pushed_to(opened.request, each.queue)).queue
        push_arguments(target, each)  # an invalid one is refused before anything is done
        targets.append(target)

    def acknowledge(tr: Transaction) -> list[str]:
        queue.ack(tr, claim, result=body.result, log=body.log)
        return [push_all(tr, target, [each])[0] for target, each in zip(targets, body.then)]

    return json_response({"ids": await aio.run(change_once, queue, opened.db, acknowledge)})


@router.post("/queues/{name}/nack", status_code=204)
async def nack(opened: _Existing, body: bodies.Nack) -> Response:
    """Report that a job failed: it is retried after a delay, or becomes a dead letter."""
    claim = claim_from_text(opened.queue, body.token)
    await opened.handle.nack(opened.db, claim, **body.model_dump(exclude={"token"}))
    return Response(status_code=204)


@router.post("/queues/{name}/extend", status_code=204)
async def extend(opened: _Existing, body: bodies.Extend) -> Response:
    """Restart the lease of a claim, for `lease` seconds from now.

    `progress` and `log` report on the work. The item shows the last report until the claim ends.
    """
    claim = claim_from_text(opened.queue, body.token)
    progress = None if body.progress is None else Progress(body.progress, body.message)
    await opened.handle.extend(opened.db, claim, body.lease, progress=progress, log=body.log)
    return Response(status_code=204)


@router.post("/queues/{name}/release", status_code=204)
async def release(opened: _Existing, body: bodies.Release) -> Response:
    """Return a claim's item to its place, as if it had never been claimed."""
    claim = claim_from_text(opened.queue, body.token)
    await opened.handle.release(opened.db, claim, delay=body.delay)
    return Response(status_code=204)
