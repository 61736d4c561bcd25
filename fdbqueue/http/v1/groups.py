"""Groups of a queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request, Response

from fdbqueue import aio
from fdbqueue.http.parameters import AdminOf, Page, ReadOf, decoded, new_router
from fdbqueue.http.responses import json_response
from fdbqueue.http.served import ServedQueues, client_of
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import change_report
from fdbqueue.options import GroupSettings
from fdbqueue.queue.overview import as_json
from fdbqueue.types import Change

router = new_router()

_PATH = "/queues/{name}/groups"

_Group = Annotated[
    str, Path(min_length=1, max_length=255, description="The group's name, with `/` as `%2F`.")
]
_After = Annotated[
    str | None, Query(max_length=255, description="Only groups whose names follow this one.")
]


async def _queue(served: ServedQueues, name: str) -> Any:
    queue: Any = (await served.queue(name, must_exist=True)).queue
    return queue


@router.get(_PATH, response_model=answers.GroupList)
async def groups(
    served: ServedQueues, name: ReadOf, after: _After = None, limit: Page = 100
) -> Response:
    """Return the groups that have ready, delayed or claimed items or settings, by name."""
    queue = await _queue(served, name)
    found = await aio.run(queue.groups, served.db, after=after, limit=limit)
    for_all = await aio.run(queue.group_settings, served.db)
    ungrouped = await aio.run(queue.group_settings, served.db, "")
    is_last = len(found) < limit
    body = {
        "groups": [*map(as_json, found)],
        "for_all": {
            name: for_all.get(name) for name in GroupSettings.__annotations__ if name != "paused"
        },
        "ungrouped": {"weight": ungrouped.get("weight")},
        "next": None if is_last else found[-1].name,
    }
    return json_response(body)


@router.patch(f"{_PATH}/{{group}}", status_code=204)
async def change_group(
    served: ServedQueues, name: AdminOf, group: _Group, body: bodies.NewGroupSettings
) -> Response:
    """Change a group's settings; `null` stands for the setting of all groups."""
    return await _set(served, name, decoded(group), body)


@router.patch(_PATH, status_code=204)
async def change_all_groups(
    served: ServedQueues, name: AdminOf, body: bodies.NewGroupSettings
) -> Response:
    """Change the settings of all groups that have none of their own."""
    return await _set(served, name, None, body)


@router.patch("/queues/{name}/ungrouped", status_code=204)
async def change_ungrouped(
    served: ServedQueues, name: AdminOf, body: bodies.NewGroupSettings
) -> Response:
    """Change the weight of items without a group; `null` stands for the weight of all groups."""
    return await _set(served, name, "", body)


async def _set(
    served: ServedQueues, name: str, group: str | None, body: bodies.NewGroupSettings
) -> Response:
    queue = await _queue(served, name)
    await aio.run(queue.set_group, served.db, group, **body.given())
    return Response(status_code=204)


@router.post(f"{_PATH}/{{group}}/clear", response_model=answers.Changed)
async def clear_group(served: ServedQueues, name: AdminOf, group: _Group) -> Response:
    """Remove the items of a group in all states, 100 per transaction; its settings stay."""
    return await _change(served, name, group, "clear")


@router.post(f"{_PATH}/{{group}}/cancel", response_model=answers.Changed)
async def cancel_group(served: ServedQueues, name: AdminOf, group: _Group) -> Response:
    """Cancel the items of a group, as `POST .../items/{item_id}/cancel` does."""
    return await _change(served, name, group, "cancel")


@router.post(f"{_PATH}/{{group}}/retry", response_model=answers.Changed)
async def retry_group(
    request: Request, served: ServedQueues, name: AdminOf, group: _Group
) -> Response:
    """Retry a group's dead letters."""
    return await _change(served, name, group, "retry", state="dead", by=client_of(request))


async def _change(
    served: ServedQueues, name: str, group: str, change: Change, **options: Any
) -> Response:
    queue = await _queue(served, name)
    group = decoded(group)
    results = await aio.run(queue.change_all, served.db, change, group=group, **options)
    return json_response(change_report(results))
