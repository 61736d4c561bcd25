"""Commands that change items by id or by state."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from shlex import quote
from types import MappingProxyType
from typing import Annotated, Any

import click

from fdbqueue import TaskPriority, existing_queue
from fdbqueue.errors import QueueFull, WrongState
from fdbqueue.options import UpdateOptions
from fdbqueue.types import STATES, Change, Database, PriorityJson, State, states_with

from .arguments import PRIORITY, read_value
from .command import IDS, QUEUE, command
from .opening import AnyQueue, exact_priority, item_queue, json_queue
from .options import argument, chosen, options_of
from .output import report_each

_CHANGES: dict[Change, tuple[str, dict[State | None, str]]] = {
    "retry": (
        "retried",
        {
            "dead": "the queue is full, or another item has its unique key",
            "delayed": "it waits for a signal, or for jobs that have not ended",
        },
    ),
    "release": ("released", {}),
    "cancel": ("cancelled", dict.fromkeys((*STATES, None), "it has ended, or is not in the queue")),
    "remove": ("removed", {"claimed": "it is claimed; `fdbq cancel {queue} {id}` ends it"}),
    "update": (
        "changed",
        dict.fromkeys(("ready", "delayed"), "its job has begun, it waits, or the group is full"),
    ),
}
"""For each change, its past participle and why it fails, by state."""


def user_name() -> str:
    """Return user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _change_items(
    db: Database,
    queue: AnyQueue,
    name: str,
    ids: tuple[str, ...],
    kind: Change,
    state: State | None = None,
    filters: Mapping[str, Any] = MappingProxyType({}),
    change: Callable[[Database, str], object] | None = None,
    to: Any = None,
) -> None:
    """Change items by id, or all items in a state.

    `change` replaces the queue's method for one item; `to` is what an update changes.
    """
    for option, wanted in filters.items():
        if wanted is not None and state is None:
            raise click.UsageError(f"--{option} needs --state")
    if bool(ids) == (state is not None):
        raise click.UsageError("give either the ids of items, or --state")
    for item_id in ids:
        queue.pushed_at(item_id)  # raises for an invalid id, before anything is changed
    done, reasons = _CHANGES[kind]
    change_one = change or getattr(queue, kind)

    def try_change(item_id: str) -> bool:
        with suppress(QueueFull, WrongState):
            return bool(change_one(db, item_id))
        return False

    def explain(item_id: str) -> str:
        found = queue.state(db, item_id)
        other = "the queue has no such item" if found is None else f"it is {found}"
        return reasons.get(found, other).format(queue=quote(name), id=item_id)

    if state is None:
        results = {item_id: try_change(item_id) for item_id in ids}
    else:
        results = queue.change_all(db, kind, state=state, by=user_name(), to=to, **filters)
    report_each(results, done, explain)


@command(QUEUE, IDS)
def retry(
    db: Database,
    queue: str,
    ids: tuple[str, ...],
    *,
    state: Annotated[State | None, states_with("retry")],
    error: str | None,
    job: str | None,
    step: str | None,
) -> None:
    """Make dead and delayed items of QUEUE ready at once.

    A dead letter gets all its attempts again; a delayed item keeps its attempt count. An item that
    waits for other jobs or a signal stays as it is.

    Exits with code 1 if an item is neither dead nor delayed, the queue is full, or another item has
    taken the unique key.

    \b
    Example:
      fdbq retry jobs --state dead --error Timeout

    Options:
        state: Retry all items in this state.
        error: With --state, only items with this text in their last error.
        job: With --state, only jobs of this name.
        step: Forget this step of the job and all later ones, and continue there; takes one ID.
    """
    if step is not None and (state is not None or len(ids) != 1):
        raise click.UsageError("--step takes one ID, and no --state")
    target = existing_queue(db, queue)
    change = partial(target.retry, by=user_name())
    if step is not None:
        steps = item_queue(target, queue).steps
        change = partial(steps.retry_from, step=step, by=user_name())
    _change_items(db, target, queue, ids, "retry", state, {"error": error, "job": job}, change)


@command(QUEUE, IDS)
def release(
    db: Database,
    queue: str,
    ids: tuple[str, ...],
    *,
    state: Annotated[State | None, states_with("release")],
) -> None:
    """Take claimed items of QUEUE away from their workers, and make them ready.

    The attempts do not count. The workers can no longer acknowledge the items, and tell their jobs
    within a third of the lease. A job that does not look at `context.cancelled` goes on to its end,
    perhaps while another worker runs the item.

    Exits with code 1 if an item is not claimed.

    \b
    Example:
      fdbq release jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA

    Options:
        state: Release all claimed items.
    """
    _change_items(db, existing_queue(db, queue), queue, ids, "release", state)


@command(QUEUE, argument("ids", metavar="ID...", nargs=-1, required=True))
def cancel(
    db: Database, queue: str, ids: tuple[str, ...], *, force: bool = False, children: bool = False
) -> None:
    """Cancel jobs of QUEUE, whether they wait or run.

    A job that has not begun ends at once. A running job is told by its worker. A job with steps
    goes on, to undo what it has done.

    Exits with code 1 if a job has ended or is unknown.

    \b
    Example:
      fdbq cancel jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA

    Options:
        force: End the jobs now, in any case.
        children: Also cancel the jobs that they run in their steps.
    """
    target = existing_queue(db, queue)
    change = partial(target.cancel, force=force, children=children)
    _change_items(db, target, queue, ids, "cancel", change=change)


@command(QUEUE, IDS)
def rm(
    db: Database,
    queue: str,
    ids: tuple[str, ...],
    *,
    state: Annotated[State | None, states_with("remove")],
    priority: PriorityJson | None,
) -> None:
    """Remove items of QUEUE in any state but claimed, by id or by state.

    If an ID is not valid, nothing is removed.

    Exits with code 1 if an item is claimed or unknown.

    \b
    Example:
      fdbq rm jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA

    Options:
        state: Remove all items in this state.
        priority: With --state, only items of this priority.
    """
    target = existing_queue(db, queue)
    filters = {"priority": exact_priority(target, queue, priority)}
    _change_items(db, target, queue, ids, "remove", state, filters)


@command(QUEUE, IDS, *options_of(UpdateOptions, omit=("priority",)))
def update(
    db: Database,
    queue: str,
    ids: tuple[str, ...],
    *,
    value: str | None,
    priority: str | None,
    state: Annotated[State | None, states_with("update")],
    of_priority: PriorityJson | None,
    **changes: Any,
) -> None:
    """Change ready and delayed items of QUEUE, by id or by state.

    The items keep their ids, and ready ones their order. They go behind the last item of another
    priority or group, and keep their places otherwise. If an ID is not valid, nothing is changed.

    Exits with code 1 if an item was not changed.

    \b
    Example:
      fdbq update jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA --value '{"to": "bob"}' --delay 5m
      fdbq update jobs --state ready --of-priority 9 --priority 1

    Options:
        value: The new value in JSON, or `-` to read it.
        priority: Integer, or a JSON list for a tuple; in a task queue a name such as `high`.
        state: Change all items in this state.
        of_priority: With --state, only items of this priority.
    """
    target: Any = existing_queue(db, queue)
    given = chosen(changes)
    if value is not None:
        target = target if target.kind == "task" else json_queue(target, queue)
        given["payload" if target.kind == "task" else "value"] = read_value(value)
    if priority is not None and target.kind == "task":
        given["priority"] = TaskPriority.__members__.get(priority.upper(), priority)
    elif priority is not None:
        given["priority"] = exact_priority(target, queue, PRIORITY(priority))
    if given.get("group") == "none":
        given["group"] = None
    if not given:
        raise click.UsageError("give what changes, such as --priority")
    change: Callable[..., object] = partial(target.update, **given)
    filters = {"priority": exact_priority(target, queue, of_priority)}
    _change_items(db, target, queue, ids, "update", state, filters, change, to=given)
