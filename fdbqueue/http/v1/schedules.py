"""Schedules of a queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Response
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.http.parameters import AdminOf, ReadOf, decoded, new_router
from fdbqueue.http.responses import json_response
from fdbqueue.http.served import ServedQueues
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import exact_priority, json_queue, options_of
from fdbqueue.queue.schedules import Schedules, schedule_as_json

router = new_router()

_PATH = "/queues/{name}/schedules"
_ONE = f"{_PATH}/{{schedule}}"

_Schedule = Annotated[
    str, Path(min_length=1, max_length=255, description="The schedule's name, with `/` as `%2F`.")
]


async def _queue(served: ServedQueues, name: str, *, must_exist: bool = True) -> Any:
    queue = json_queue((await served.queue(name, must_exist)).queue)
    if options_of(queue).kind == "task":
        raise HTTPException(422, "a task queue has no schedules")
    return queue


async def _schedules(served: ServedQueues, name: str) -> Schedules[Any]:
    schedules: Schedules[Any] = (await _queue(served, name)).schedules
    return schedules


def _found(is_found: bool, schedule: str) -> Response:
    if not is_found:
        raise HTTPException(404, f"there is no schedule {decoded(schedule)!r}")
    return Response(status_code=204)


@router.get(_PATH, response_model=answers.ScheduleList)
async def schedules(served: ServedQueues, name: ReadOf) -> Response:
    """Return a queue's schedules by name, each with up to five next ticks."""
    schedules = await _schedules(served, name)

    def found() -> list[dict[str, Any]]:
        return [*map(schedule_as_json, schedules.all(served.db))]  # the ticks of many take a while

    return json_response({"schedules": await aio.run(found)})


@router.put(_ONE, response_model=answers.Schedule)
async def put_schedule(
    served: ServedQueues, name: AdminOf, schedule: _Schedule, body: bodies.NewSchedule
) -> Response:
    """Add or change a schedule; this may create the queue.

    A changed schedule keeps its state, and its next tick unless its timing changes.
    """
    queue = await _queue(served, name, must_exist=False)
    options = {name: option for name, option in body.given().items() if option is not None}
    value, level = options.pop("item", None), exact_priority(queue, options.pop("priority", None))
    known = decoded(schedule)
    schedules: Schedules[Any] = queue.schedules
    await aio.run(schedules.add, served.db, known, value, level, **options)
    found = await aio.run(schedules.get, served.db, known)
    if found is None:  # another client has removed it meanwhile
        raise HTTPException(404, f"there is no schedule {known!r}")
    return json_response(schedule_as_json(found))


@router.delete(_ONE, status_code=204)
async def remove_schedule(served: ServedQueues, name: AdminOf, schedule: _Schedule) -> Response:
    """Remove a schedule; its pushed items stay."""
    schedules = await _schedules(served, name)
    return _found(await aio.run(schedules.remove, served.db, decoded(schedule)), schedule)


@router.post(f"{_ONE}/pause", status_code=204)
async def pause_schedule(served: ServedQueues, name: AdminOf, schedule: _Schedule) -> Response:
    """Pause a schedule."""
    schedules = await _schedules(served, name)
    return _found(await aio.run(schedules.pause, served.db, decoded(schedule)), schedule)


@router.post(f"{_ONE}/resume", status_code=204)
async def resume_schedule(served: ServedQueues, name: AdminOf, schedule: _Schedule) -> Response:
    """Resume a schedule with its next tick; ticks in between are skipped."""
    schedules = await _schedules(served, name)
    return _found(await aio.run(schedules.resume, served.db, decoded(schedule)), schedule)


@router.post(f"{_ONE}/run", status_code=201, response_model=answers.ScheduleRun)
async def run_schedule(served: ServedQueues, name: AdminOf, schedule: _Schedule) -> Response:
    """Push a schedule's item now, and return its id.

    409 if its ticks do not overlap and the last item has not ended.
    """
    schedules, known = await _schedules(served, name), decoded(schedule)
    id = await aio.run(schedules.run_now, served.db, known)
    if id is None:
        _found(await aio.run(schedules.get, served.db, known) is not None, schedule)
        raise HTTPException(409, f"the last item of the schedule {known!r} has not ended")
    return json_response({"id": id}, 201)
