"""Items between JSON and queues of every kind: what to push, and what was found."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException

from fdbqueue.errors import FdbqueueError, QueueFull
from fdbqueue.http.v1.bodies import Push
from fdbqueue.queue.arguments import validate_share
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.queue.overview import info_as_json, item_as_json, time_as_json
from fdbqueue.queue.steps import JobSteps
from fdbqueue.queue.task import push_task
from fdbqueue.types import Item, ItemInfo, Options, Task, Transaction, Transactor

AnyQueue: TypeAlias = BaseQueue[Any]
"""A queue of any kind."""

_MAX_UNCHANGED = 1000  # ids in a response

_JSON = frozenset({"json", "task"})
"""The codecs whose values are JSON."""

_TASK_FIELDS = ("deadline", "cost", "agent_name", "client_id")
_UNIQUE = ("unique_until", "unique_for")
_SHARED = ("delay", "at", "ttl", *_UNIQUE)
_SCHEDULE = (*_SHARED, "unique")

_FIFO_FIELDS = frozenset({"item", "queue", "group", "cost", *_SCHEDULE})
_PRIORITY_FIELDS = _FIFO_FIELDS | {"priority"}
_FIELDS = {
    "priority": _PRIORITY_FIELDS,
    "fifo": _FIFO_FIELDS,
    "task": _PRIORITY_FIELDS.union(_TASK_FIELDS),
}
"""The fields of a push to a queue of each kind."""


@contextmanager
def invalid_values() -> Generator[None]:
    """Answer 422 if the library refuses a value."""
    try:
        yield
    except FdbqueueError:
        raise
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


def change_report(results: dict[str, bool]) -> dict[str, Any]:
    """Return how many items were changed, and the ids of up to 1,000 that were not."""
    unchanged = [item_id for item_id, is_changed in results.items() if not is_changed]
    return {"changed": len(results) - len(unchanged), "unchanged": unchanged[:_MAX_UNCHANGED]}


def options_of(queue: AnyQueue) -> Options:
    """Return the options with which a queue was opened."""
    return store_of(queue).given_options


def json_queue(queue: AnyQueue) -> AnyQueue:
    """Return a queue; refuse one whose items are not JSON."""
    codec = options_of(queue).codec
    if codec not in _JSON:
        raise HTTPException(
            409, f"the items of this queue are not JSON, but have the codec {codec!r}; use Python"
        )
    return queue


def steps_of(queue: AnyQueue) -> JobSteps[Any]:
    """Return the steps of the jobs of a queue; refuse a queue of tasks."""
    known: Any = json_queue(queue)
    if options_of(known).kind == "task":
        raise HTTPException(422, "the jobs of a task queue have no steps")
    steps: JobSteps[Any] = known.steps
    return steps


def require_agents(queue: AnyQueue, field: str, value: object) -> None:
    """Refuse a field that only a task queue has, if it is given."""
    if value is not None and options_of(queue).kind != "task":
        raise HTTPException(422, f"{field}: only a task queue has agents")


def exact_priority(queue: AnyQueue, priority: Any) -> Any:
    """Return a priority of a queue from its JSON form; raise `InvalidPriority`."""
    if priority is not None and options_of(queue).kind == "priority":
        return store_of(queue).levels.from_json(priority)
    return priority


# Pushing

_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def push_arguments(queue: AnyQueue, body: Push) -> _Arguments:
    """Return the arguments of a push after the transaction."""
    kind = options_of(queue).kind
    given = body.model_fields_set
    if unknown := given - _FIELDS[kind]:
        raise HTTPException(422, f"{min(unknown)}: a push to a {kind} queue has no such field")
    options: dict[str, Any] = {
        name: value
        for name in ("group", *_SCHEDULE, *_TASK_FIELDS)
        if name in given and (value := getattr(body, name)) is not None
    }
    if body.priority is not None:
        options["priority"] = exact_priority(queue, body.priority)
    if kind == "task":
        return (), {**options, "payload": body.item}
    with invalid_values():
        validate_share("cost", options.get("cost", 1))
    return (body.item,), options


def push(tr: Transactor, queue: Any, body: Push) -> tuple[str, bool]:
    """Push an item; return its id, and if it is new. Raise `QueueFull`."""
    args, kwargs = push_arguments(queue, body)
    if options_of(queue).kind == "task" and body.unique is not None:
        stored = push_task(queue, tr, kwargs)
        if stored is None:
            raise full(queue)
        return stored
    return pushed(queue, queue.push(tr, *args, **kwargs))


def pushed(queue: AnyQueue, item: Item | str | None) -> tuple[str, bool]:
    """Return the id of what a push returned, and if it is new. Raise `QueueFull` for `None`."""
    if item is None:
        raise full(queue)
    return (item, True) if isinstance(item, str) else (item.id, item.is_new)


def full(queue: AnyQueue) -> QueueFull:
    """Return the error of a push to a full queue that has none of its own."""
    return QueueFull(options_of(queue).max_size or 0, 1)


def push_all(
    tr: Transaction, queue: AnyQueue, bodies: list[Push], as_many_as_fit: bool
) -> list[str]:
    """Push items in a transaction and return their ids: all, or as many as fit.

    Neighbouring items that a call of the library can push together are pushed by one call.
    """
    ids: list[str] = []
    shared = (*_SHARED, "cost") if options_of(queue).kind != "task" else _SHARED
    together = partial(_options, shared)
    for _, group in groupby((push_arguments(queue, body) for body in bodies), together):
        calls = list(group)
        try:
            stored = _push_group(tr, queue, calls, as_many_as_fit)
        except QueueFull:
            if not as_many_as_fit:
                raise
            stored = []
        if not (stored or ids):  # this raises the error of the first item
            _push_group(tr, queue, calls[:1], as_many_as_fit=False)
        ids += [each if isinstance(each, str) else each.id for each in stored]
        if len(stored) < len(calls):
            break
    if len(ids) < len(bodies) and not as_many_as_fit:
        raise full(queue)
    return ids


def _options(names: Iterable[str], call: _Arguments) -> list[str]:
    """Return what items have in common if one call can push them."""
    return [str(call[1].get(name)) for name in names]


def _push_group(
    tr: Transaction, queue: Any, calls: list[_Arguments], as_many_as_fit: bool
) -> list[Any]:
    kind = options_of(queue).kind
    options = calls[0][1]
    push_many = partial(queue.push_many, tr, as_many_as_fit=as_many_as_fit)
    if kind == "task":
        return list(push_many([kwargs for _, kwargs in calls]))
    shared = {name: options.get(name) for name in _SHARED}
    shared["cost"] = options.get("cost", 1)
    shared["unique"] = [kwargs.get("unique") for _, kwargs in calls]
    shared["groups"] = [kwargs.get("group") for _, kwargs in calls]
    if kind == "priority":
        shared["priorities"] = [kwargs.get("priority", 0) for _, kwargs in calls]
    return list(push_many([args[0] for args, _ in calls], **shared))


# Found


def found(queue: AnyQueue, item: Item | Task) -> dict[str, Any]:
    """Return an item as JSON."""
    pushed_at = time_as_json(queue.pushed_at(item))
    return {"id": item.id, **item_as_json(item), "pushed_at": pushed_at}


def found_info(queue: AnyQueue, info: ItemInfo) -> dict[str, Any]:
    """Return everything about an item as JSON; a value that is not JSON as its `repr`."""
    content = item_as_json(info.item)
    if options_of(queue).codec not in _JSON:
        content["item"] = repr(content["item"])
    return {**info_as_json(info), **content}
