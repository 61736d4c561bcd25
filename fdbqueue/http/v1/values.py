"""Items between JSON and queues of every kind: what to push, and what was found."""

from __future__ import annotations

from itertools import groupby
from typing import Any, cast

from starlette.exceptions import HTTPException

from fdbqueue.errors import QueueFull
from fdbqueue.http.served import Handle
from fdbqueue.http.v1.bodies import Push
from fdbqueue.layout import Layout
from fdbqueue.layout.priorities import priority_as_json
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.queue.fifo import Queue
from fdbqueue.queue.overview import info_as_json, time_as_json
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.queue.task import TaskQueue
from fdbqueue.types import Item, ItemInfo, Options, Task, Transaction

__all__ = [
    "AnyQueue",
    "exact_priority",
    "found",
    "found_info",
    "full",
    "json_queue",
    "layout_of",
    "options_of",
    "push",
    "push_all",
    "push_arguments",
]

AnyQueue = PriorityQueue | Queue | TaskQueue

_TASK_FIELDS = frozenset({"deadline", "cost", "agent_name", "client_id"})
_SCHEDULE = frozenset({"delay", "at", "ttl", "unique"})
_FIELDS: dict[str, frozenset[str]] = {
    "priority": frozenset({"item", "priority", "queue", *_SCHEDULE}),
    "fifo": frozenset({"item", "queue"}),
    "task": frozenset({"item", "priority", "queue", *_SCHEDULE, *_TASK_FIELDS}),
}
"""The fields of a push to a queue of each kind."""


def layout_of(queue: AnyQueue) -> Layout:
    """Return the keys of a queue."""
    return store_of(cast("BaseQueue[Any]", queue)).layout


def options_of(queue: AnyQueue) -> Options:
    """Return the options with which a queue was opened."""
    return store_of(cast("BaseQueue[Any]", queue)).given_options


def kind_of(queue: AnyQueue) -> str:
    """Return the kind of a queue, by which its options name it."""
    if isinstance(queue, PriorityQueue):
        return "priority"
    return "fifo" if isinstance(queue, Queue) else "task"


def json_queue(handle: Handle) -> AnyQueue:
    """Return the blocking queue of a handle; refuse one whose items are not JSON."""
    queue: AnyQueue = handle.queue
    if isinstance(queue, TaskQueue):
        return queue
    codec = options_of(queue).codec
    if codec != "json":
        raise HTTPException(
            409, f"the items of this queue are not JSON, but have the codec {codec!r}; use Python"
        )
    return queue


def exact_priority(queue: AnyQueue, priority: Any) -> Any:
    """Return a priority of a queue from its JSON form; raise `InvalidPriority`."""
    if isinstance(queue, PriorityQueue) and priority is not None:
        return store_of(queue).levels.from_json(priority)
    return priority


# Pushing


def push_arguments(queue: AnyQueue, body: Push) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the method that pushes an item, and its arguments after the transaction."""
    given = body.model_fields_set
    kind = kind_of(queue)
    if not given <= _FIELDS[kind]:
        name = min(given - _FIELDS[kind])
        raise HTTPException(422, f"{name}: a push to a {kind} queue has no such field")
    if isinstance(queue, Queue):
        return "enqueue", (body.item,), {}
    options: dict[str, Any] = {
        name: value
        for name in (*_SCHEDULE, *_TASK_FIELDS)
        if name in given and (value := getattr(body, name)) is not None
    }
    if body.priority is not None:
        options["priority"] = exact_priority(queue, body.priority)
    if isinstance(queue, TaskQueue):
        return "push", (), {**options, "payload": body.item}
    return "push", (body.item,), options


def push(tr: Transaction, queue: AnyQueue, body: Push) -> tuple[str, bool]:
    """Push an item in a transaction; return its id, and if it is new. Raise `QueueFull`."""
    method, args, kwargs = push_arguments(queue, body)
    pushed = getattr(queue, method)(tr, *args, **kwargs)
    if pushed is None:
        raise full(queue)
    return (pushed, True) if isinstance(pushed, str) else (pushed.id, pushed.is_new)


def full(queue: AnyQueue) -> QueueFull:
    """Return the error of a push to a full queue that has none of its own."""
    return QueueFull(options_of(queue).max_size or 0, 1)


def push_all(
    tr: Transaction, queue: AnyQueue, bodies: list[Push], as_many_as_fit: bool
) -> list[str]:
    """Push items in a transaction and return their ids: all, or as many as fit.

    Neighbouring items that a call of the library can push together are pushed by one call.
    """
    prepared = [push_arguments(queue, body) for body in bodies]
    ids: list[str] = []
    for is_single, group in groupby(prepared, _together):
        calls = list(group)
        try:
            pushed = _push_group(tr, queue, calls, is_single is None, as_many_as_fit)
        except QueueFull:
            if not as_many_as_fit:
                raise
            pushed = []
        ids += [each if isinstance(each, str) else each.id for each in pushed]
        if len(pushed) < len(calls):
            break
    if len(ids) < len(bodies) and not as_many_as_fit:
        raise full(queue)
    return ids


def _together(call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
    """Return a key that items have in common if one call can push them; `None` for single ones."""
    options = call[2]
    if "unique" in options:
        return None
    return tuple(str(options.get(name)) for name in ("delay", "at", "ttl"))


def _push_group(
    tr: Transaction,
    queue: AnyQueue,
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]],
    is_single: bool,
    as_many_as_fit: bool,
) -> list[Any]:
    if is_single:
        pushed = [getattr(queue, method)(tr, *args, **kwargs) for method, args, kwargs in calls]
        return [each for each in pushed if each is not None]
    if isinstance(queue, TaskQueue):
        tasks = [kwargs for _, _, kwargs in calls]
        return queue.push_many(tr, tasks, as_many_as_fit=as_many_as_fit)
    values = [args[0] for _, args, _ in calls]
    if isinstance(queue, Queue):
        return queue.enqueue_many(tr, values, as_many_as_fit=as_many_as_fit)
    priorities = [kwargs.pop("priority", 0) for _, _, kwargs in calls]
    options = calls[0][2]
    return queue.push_many(
        tr, values, priorities=priorities, as_many_as_fit=as_many_as_fit, **options
    )


# Found


def found(queue: AnyQueue, item: Item | Task) -> dict[str, Any]:
    """Return an item as JSON."""
    fields: dict[str, Any] = {"id": item.id, **_content(item)}
    pushed_at = cast("BaseQueue[Any]", queue).pushed_at(item)
    return {**fields, "pushed_at": time_as_json(pushed_at)}


def _content(item: Any) -> dict[str, Any]:
    if isinstance(item, Task):
        return {
            "priority": int(item.priority),
            "item": item.payload,
            "deadline": time_as_json(item.deadline),
            "cost": item.cost,
            "agent_name": item.agent_name,
            "client_id": item.client_id,
        }
    return {
        "priority": item and priority_as_json(item.priority),
        "item": item and item.value,
    }


def found_info(info: ItemInfo, *, is_json: bool) -> dict[str, Any]:
    """Return everything about an item as JSON; a value that is not JSON as its `repr`."""
    content = _content(info.item)
    if not is_json:
        content["item"] = repr(content["item"])
    return {**info_as_json(info), **content}
