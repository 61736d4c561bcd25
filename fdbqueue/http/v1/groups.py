"""Groups of a queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import AfterValidator

from fdbqueue import aio
from fdbqueue.http.parameters import Page, decoded, new_router
from fdbqueue.http.responses import json_response
from fdbqueue.http.served import AdminQueue, Opened, ReadQueue
from fdbqueue.http.v1 import answers, bodies
from fdbqueue.http.v1.values import change_report
from fdbqueue.options import GroupSettings
from fdbqueue.queue.overview import as_json
from fdbqueue.types import Change

router = new_router()

_PATH = "/queues/{name}/groups"

_Group = Annotated[
    str,
    Path(min_length=1, max_length=255, description="The group's name, with `/` as `%2F`."),
    AfterValidator(decoded),
]
_After = Annotated[
    str | None, Query(max_length=255, description="Only groups whose names follow this one.")
]


@router.get(_PATH, response_model=answers.GroupList)
async def groups(opened: ReadQueue, after: _After = None, limit: Page = 100) -> Response:
    """Return the groups that have ready, delayed or claimed items or settings, by name."""
    queue = opened.queue
    found = await aio.run(queue.groups, opened.db, after=after, limit=limit)
    for_all = await aio.run(queue.group_settings, opened.db)
    ungrouped = await aio.run(queue.group_settings, opened.db, "")
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
    opened: AdminQueue, group: _Group, body: bodies.NewGroupSettings
) -> Response:
    """Change a group's settings; `null` stands for the setting of all groups."""
    return await _set(opened, group, body)


@router.patch(_PATH, status_code=204)
async def change_all_groups(opened: AdminQueue, body: bodies.NewGroupSettings) -> Response:
    """Change the settings of all groups that have none of their own."""
    return await _set(opened, None, body)


@router.patch("/queues/{name}/ungrouped", status_code=204)
async def change_ungrouped(opened: AdminQueue, body: bodies.NewGroupSettings) -> Response:
    """Change the weight of items without a group; `null` stands for the weight of all groups."""
    return await _set(opened, "", body)


async def _set(opened: Opened, group: str | None, body: bodies.NewGroupSettings) -> Response:
    await aio.run(opened.queue.set_group, opened.db, group, **body.given())
    return Response(status_code=204)


@router.post(f"{_PATH}/{{group}}/clear", response_model=answers.Changed)
async def clear_group(opened: AdminQueue, group: _Group) -> Response:
    """Remove the items of a group in all states, 100 per transaction; its settings stay."""
    return await _change(opened, group, "clear")


@router.post(f"{_PATH}/{{group}}/cancel", response_model=answers.Changed)
async def cancel_group(opened: AdminQueue, group: _Group) -> Response:
    """Cancel the items of a group, as `POST .../items/{item_id}/cancel` does."""
    return await _change(opened, group, "cancel")


@router.post(f"{_PATH}/{{group}}/retry", response_model=answers.Changed)
async def retry_group(opened: AdminQueue, group: _Group) -> Response:
    """Retry a group's dead letters."""
    return await _change(opened, group, "retry", state="dead", by=opened.client)


async def _change(opened: Opened, group: str, change: Change, **options: Any) -> Response:
    change_all = opened.queue.change_all
    results = await aio.run(change_all, opened.db, change, group=group, **options)
    return json_response(change_report(results))
