"""Steps of jobs: their list, and signals for those that wait."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.http.responses import json_response
from fdbqueue.http.served import ServedQueues
from fdbqueue.http.v1 import bodies
from fdbqueue.http.v1.parameters import ReadOf, WriteOf, known_parameters
from fdbqueue.http.v1.values import invalid_values, json_queue, options_of
from fdbqueue.queue.steps import JobSteps, step_as_json

router = APIRouter(responses=bodies.PROBLEMS, dependencies=[Depends(known_parameters)])


async def _steps(served: ServedQueues, name: str) -> JobSteps[Any]:
    """Return the steps of the jobs of a queue."""
    queue: Any = json_queue((await served.queue(name)).queue)
    if options_of(queue).kind == "task":
        raise HTTPException(422, "the jobs of a task queue have no steps")
    steps: JobSteps[Any] = queue.steps
    return steps


@router.get("/queues/{name}/items/{item_id}/steps", response_model=bodies.StepList)
async def item_steps(served: ServedQueues, name: ReadOf, item_id: str) -> Response:
    """Return the steps of a job in the order of their storing; none for an unknown item."""
    steps = await _steps(served, name)
    with invalid_values():
        found = await aio.run(steps.all, served.db, item_id)
    return json_response({"steps": [*map(step_as_json, found)]})


@router.post("/queues/{name}/signals", response_model=bodies.Signalled)
async def signal(served: ServedQueues, name: WriteOf, body: bodies.NewSignal) -> Response:
    """Send a signal: the jobs that wait for its name and key go on, in the same transaction."""
    steps = await _steps(served, name)
    with invalid_values():
        n = await aio.run(steps.signal, served.db, **body.model_dump())
    return json_response({"signalled": n})
