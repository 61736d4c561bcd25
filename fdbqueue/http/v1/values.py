"""Conversion between JSON and items."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Annotated, Any, TypeAlias

from fastapi import Header
from starlette.exceptions import HTTPException

from fdbqueue import aio
from fdbqueue.http.served import Opened
from fdbqueue.http.v1.bodies import Push, Update
from fdbqueue.options import PushOptions, TaskChanges, TaskOptions, UpdateOptions
from fdbqueue.queue.arguments import MAX_TEXT, validate_scope
from fdbqueue.queue.base import BaseQueue, change_once, store_of
from fdbqueue.queue.batches import Members, push_members
from fdbqueue.queue.overview import as_json, info_as_json, item_as_json
from fdbqueue.queue.repeatable import remembered
from fdbqueue.queue.steps import JobSteps
from fdbqueue.queue.task import push_tasks
from fdbqueue.types import Item, ItemInfo, Options, Task, Transaction

IdempotencyKey: TypeAlias = Annotated[
    str | None,
    Header(
        alias="idempotency-key",
        min_length=1,
        max_length=MAX_TEXT,
        description="A request repeated with the same key within a day stores nothing more.",
    ),
]
"""The header of a push that may be repeated."""

AnyQueue: TypeAlias = BaseQueue[Any]

_MAX_UNCHANGED = 1000  # ids in a response

_KNOWN = "known"  # follows the id of an item that a push has found under its unique key

_JSON = frozenset({"json", "task"})
_FIELDS = {
    "fifo": {"item", *PushOptions.__annotations__},
    "priority": {"item", "priority", *PushOptions.__annotations__},
    "task": {"item", *TaskOptions.__annotations__},
}
_SHARED = PushOptions.__annotations__.keys() - {"group", "unique"}
"""The options that one call of `push_many` shares."""


def change_report(results: dict[str, bool]) -> dict[str, Any]:
    """Return the number of changed ids, and up to 1,000 unchanged ones."""
    unchanged = [item_id for item_id, is_changed in results.items() if not is_changed]
    return {"changed": len(results) - len(unchanged), "unchanged": unchanged[:_MAX_UNCHANGED]}


def options_of(queue: AnyQueue) -> Options:
    """Return a queue's given options."""
    return store_of(queue).given_options


def json_queue(queue: AnyQueue) -> AnyQueue:
    """Return a queue of JSON items."""
    codec = options_of(queue).codec
    if codec not in _JSON:
        raise HTTPException(
            409, f"the items of this queue are not JSON, but have the codec {codec!r}; use Python"
        )
    return queue


def steps_of(queue: AnyQueue) -> JobSteps[Any]:
    """Return a queue's steps; tasks have none."""
    known: Any = json_queue(queue)
    if options_of(known).kind == "task":
        raise HTTPException(422, "the jobs of a task queue have no steps")
    steps: JobSteps[Any] = known.steps
    return steps


def exact_priority(queue: AnyQueue, priority: Any) -> Any:
    """Return a priority from its JSON form."""
    if priority is not None and options_of(queue).kind == "priority":
        return store_of(queue).levels.from_json(priority)
    return priority


def update_arguments(queue: AnyQueue, body: Update) -> dict[str, Any]:
    """Return the arguments of an update."""
    kind, given = options_of(queue).kind, body.given()
    known = TaskChanges if kind == "task" else UpdateOptions
    if unknown := given.keys() - {"item", *known.__annotations__}:
        raise HTTPException(422, f"{min(unknown)}: an item of a {kind} queue has no such field")
    if "item" in given:
        json_queue(queue)
        given["payload" if kind == "task" else "value"] = given.pop("item")
    if "priority" in given:
        given["priority"] = exact_priority(queue, given["priority"])
    return given


# Pushing


def push_arguments(queue: AnyQueue, body: Push) -> dict[str, Any]:
    """Return the arguments of a push."""
    kind = options_of(queue).kind
    given = body.given()
    given.pop("queue", None)  # of a job that follows
    if unknown := given.keys() - _FIELDS[kind]:
        raise HTTPException(422, f"{min(unknown)}: a push to a {kind} queue has no such field")
    value = given.pop("item")
    call = {name: option for name, option in given.items() if option is not None}
    validate_scope(call.get("unique"), call.get("unique_until"), call.get("unique_for"))
    if "priority" in call:
        call["priority"] = exact_priority(queue, call["priority"])
    return {**call, "payload" if kind == "task" else "value": value}


def push_all(
    tr: Transaction,
    queue: AnyQueue,
    bodies: list[Push],
    as_many_as_fit: bool = False,
    alert: bytes = b"",
) -> list[str]:
    """Push items in a transaction, all or as many as fit; return their `marked_ids`.

    `alert` is the header field of that name.

    Raises:
        QueueFull: None fits, or not all.
    """
    all_stored: list[tuple[str, bool]] = []
    for _, group in groupby((push_arguments(queue, body) for body in bodies), _shared):
        calls = list(group)
        stored = _push_many(tr, queue, calls, as_many_as_fit, alert)
        all_stored += stored
        if len(stored) < len(calls):
            break
    return marked_ids(all_stored) if all_stored else push_all(tr, queue, bodies, alert=alert)


def _shared(call: dict[str, Any]) -> dict[str, Any]:
    return {name: option for name, option in call.items() if name in _SHARED}


def _push_many(
    tr: Transaction, queue: Any, calls: list[dict[str, Any]], as_many_as_fit: bool, alert: bytes
) -> list[tuple[str, bool]]:
    kind = options_of(queue).kind
    if kind == "task":
        return push_tasks(queue, tr, calls, as_many_as_fit=as_many_as_fit)
    options = _shared(calls[0])
    options["unique"] = [call.get("unique") for call in calls]
    options["groups"] = [call.get("group") for call in calls]
    if kind == "priority":
        options["priorities"] = [call.get("priority", 0) for call in calls]
    values = [call["value"] for call in calls]
    if alert:
        members = Members(queue, {"values": values, **options}, alert).items()
        items = push_members(tr, queue, members, as_many_as_fit)
    else:
        items = queue.push_many(tr, values, as_many_as_fit=as_many_as_fit, **options)
    return [(item.id, item.is_new) for item in items]


def marked_ids(stored: list[tuple[str, bool]]) -> list[str]:
    """Return the ids of a push, each followed by a mark unless it is new.

    >>> marked_ids([("a", True), ("b", False)])
    ['a', 'b', 'known']
    """
    return [text for id, is_new in stored for text in ([id] if is_new else [id, _KNOWN])]


def without_marks(ids: list[str]) -> list[tuple[str, bool]]:
    """Return ids and whether they are new, given `marked_ids`."""
    return [(id, mark != _KNOWN) for id, mark in zip(ids, [*ids[1:], ""]) if id != _KNOWN]


async def push_item(opened: Opened, body: Push, key: str | None) -> tuple[str, bool]:
    """Push an item once per idempotency key; return its id, and whether it is new."""
    if key is not None:
        push_one = partial(push_all, queue=opened.queue, bodies=[body])
        return without_marks(await once(opened, key, push_one))[0]
    handle: Any = opened.handle
    call = push_arguments(opened.queue, body)
    if handle.queue.kind == "task":
        return (await aio.run(push_tasks, handle.queue, opened.db, [call]))[0]
    item = await handle.push(opened.db, **call)
    return item.id, item.is_new


async def once(
    opened: Opened, key: str | None, change: Callable[[Transaction], list[str]]
) -> list[str]:
    """Change a queue, or return what the first request with the same key has returned."""
    if key is None:
        return await aio.run(change_once, opened.queue, opened.db, change)
    request = opened.request
    digest = hashlib.sha256(await request.body() or request.url.path.encode()).digest()
    return await aio.run(remembered, opened.db, opened.queue, key, digest, change)


# Found


def found(queue: AnyQueue, item: Item | Task) -> dict[str, Any]:
    """Return an item as JSON."""
    pushed_at = as_json(queue.pushed_at(item))
    return {"id": item.id, **item_as_json(item), "pushed_at": pushed_at}


def found_info(queue: AnyQueue, info: ItemInfo) -> dict[str, Any]:
    """Return an `ItemInfo` as JSON; other values as their `repr`."""
    content = item_as_json(info.item)
    if options_of(queue).codec not in _JSON:
        content["item"] = repr(content["item"])
    return {**info_as_json(info), **content}
