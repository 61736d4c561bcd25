"""Steps of jobs, signals for those that wait, and batches."""

from __future__ import annotations

from fastapi import Request, Response

from fdbqueue import aio
from fdbqueue.http.responses import json_response
from fdbqueue.http.security import grant_of
from fdbqueue.http.served import ServedQueues
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.parameters import ReadOf, WriteOf, new_router
from fdbqueue.http.v1.values import steps_of
from fdbqueue.queue.batches import Batches, batch_as_json, batches_of
from fdbqueue.queue.steps import step_as_json

router = new_router()


@router.get("/queues/{name}/items/{item_id}/steps", response_model=answers.StepList)
async def item_steps(served: ServedQueues, name: ReadOf, item_id: str) -> Response:
    """Return the steps of a job in the order of their storing; none for an unknown item."""
    steps = steps_of((await served.queue(name)).queue)
    found = await aio.run(steps.all, served.db, item_id)
    return json_response({"steps": [*map(step_as_json, found)]})


@router.get("/queues/{name}/items/{item_id}/batches", response_model=answers.BatchList)
async def item_batches(
    request: Request, served: ServedQueues, name: ReadOf, item_id: str
) -> Response:
    """Return the batch that a job waits for, and those in which it counts; none if it is unknown.

    A batch is left out if the token does not allow to read the queue of the job that waits for it.
    """
    queue = (await served.queue(name)).queue
    grant = grant_of(request)
    found = [
        batch_as_json(batch)
        for batch in await aio.run(batches_of, served.db, queue, item_id)
        if grant is None or grant.includes(batch.queue or "")
    ]
    return json_response({"batches": found})


@router.post("/queues/{name}/items/{item_id}/close-batch", status_code=204)
async def close_batch(served: ServedQueues, name: WriteOf, item_id: str) -> Response:
    """Let no more jobs in the batch at whose end this item runs."""
    batches = Batches((await served.queue(name)).queue)
    await aio.run(batches.finish, served.db, item_id)
    return Response(status_code=204)


@router.post("/queues/{name}/signals", response_model=answers.Signalled)
async def signal(served: ServedQueues, name: WriteOf, body: bodies.NewSignal) -> Response:
    """Send a signal: the jobs that wait for its name and key go on, in the same transaction."""
    steps = steps_of((await served.queue(name)).queue)
    n = await aio.run(steps.signal, served.db, **body.model_dump())
    return json_response({"signalled": n})
