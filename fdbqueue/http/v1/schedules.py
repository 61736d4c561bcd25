"""Schedules of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import AfterValidator
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.http.parameters import AdminOf, decoded, new_router
from fdbqueue.http.responses import json_response
from fdbqueue.http.served import AdminQueue, Opened, ReadQueue, ServedQueues
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import AnyQueue, exact_priority, json_queue, options_of
from fdbqueue.queue.schedules import Schedules, schedule_as_json

router = new_router()

_PATH = "/queues/{name}/schedules"
_ONE = f"{_PATH}/{{schedule}}"

_Schedule = Annotated[
    str,
    Path(min_length=1, max_length=255, description="The schedule's name, with `/` as `%2F`."),
    AfterValidator(decoded),
]


def _schedules(queue: AnyQueue) -> Schedules[Any]:
    known: Any = json_queue(queue)
    if options_of(known).kind == "task":
        raise HTTPException(422, "a task queue has no schedules")
    schedules: Schedules[Any] = known.schedules
    return schedules


def _unknown(schedule: str) -> HTTPException:
    return HTTPException(404, f"there is no schedule {schedule!r}")


async def _change(opened: Opened, schedule: str, method: Callable[..., bool]) -> Response:
    if not await aio.run(method, _schedules(opened.queue), opened.db, schedule):
        raise _unknown(schedule)
    return Response(status_code=204)


@router.get(_PATH, response_model=answers.ScheduleList)
async def schedules(opened: ReadQueue) -> Response:
    """Return a queue's schedules by name, each with up to five next ticks."""
    schedules = _schedules(opened.queue)

    def found() -> list[dict[str, Any]]:
        return [*map(schedule_as_json, schedules.all(opened.db))]  # the ticks of many take a while

    return json_response({"schedules": await aio.run(found)})


@router.put(_ONE, response_model=answers.Schedule)
async def put_schedule(
    served: ServedQueues, name: AdminOf, schedule: _Schedule, body: bodies.NewSchedule
) -> Response:
    """Add or change a schedule; this may create the queue.

    A changed schedule keeps its state, and its next tick unless its timing changes.
    """
    queue: AnyQueue = (await served.queue(name, must_exist=False)).queue
    schedules = _schedules(queue)
    options = {name: option for name, option in body.given().items() if option is not None}
    value, level = options.pop("item", None), exact_priority(queue, options.pop("priority", None))
    await aio.run(schedules.add, served.db, schedule, value, level, **options)
    found = await aio.run(schedules.get, served.db, schedule)
    if found is None:  # another client has removed it meanwhile
        raise _unknown(schedule)
    return json_response(schedule_as_json(found))


@router.delete(_ONE, status_code=204)
async def remove_schedule(opened: AdminQueue, schedule: _Schedule) -> Response:
    """Remove a schedule; its pushed items stay."""
    return await _change(opened, schedule, Schedules.remove)


@router.post(f"{_ONE}/pause", status_code=204)
async def pause_schedule(opened: AdminQueue, schedule: _Schedule) -> Response:
    """Pause a schedule."""
    return await _change(opened, schedule, Schedules.pause)


@router.post(f"{_ONE}/resume", status_code=204)
async def resume_schedule(opened: AdminQueue, schedule: _Schedule) -> Response:
    """Resume a schedule with its next tick; ticks in between are skipped."""
    return await _change(opened, schedule, Schedules.resume)


@router.post(f"{_ONE}/run", status_code=201, response_model=answers.ScheduleRun)
async def run_schedule(opened: AdminQueue, schedule: _Schedule) -> Response:
    """Push a schedule's item now, and return its id.

    409 if its ticks do not overlap and the last item has not ended.
    """
    schedules = _schedules(opened.queue)
    id = await aio.run(schedules.run_now, opened.db, schedule)
    if id is None:
        if await aio.run(schedules.get, opened.db, schedule) is None:
            raise _unknown(schedule)
        raise HTTPException(409, f"the last item of the schedule {schedule!r} has not ended")
    return json_response({"id": id}, 201)
