"""Commands for task queues: task push, pop, ls, show, rm, stats."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from fdbqueue import Task, TaskPriority, TaskQueue, existing_queue
from fdbqueue.errors import QueueNotFound
from fdbqueue.types import Database

from .common import (
    Group,
    OutputError,
    aware_time,
    command_options,
    echo,
    echo_results,
    json_line,
    number_option,
    parse_value,
    push_options,
    queue_argument,
    read_value,
    say,
    usage_errors,
)
from .signals import defer_signals

_PRIORITIES = click.Choice([priority.name for priority in TaskPriority], case_sensitive=False)


@click.group(cls=Group)
def task() -> None:
    """Push, pop, list, show, remove and count tasks of task queues.

    A task queue orders its tasks by priority, then deadline, then cost, then time of creation.

    \b
    Example:
      fdbq task push todo '{"invoice": 7}' --priority high --agent billing
    """


def _task_queue(db: Database, name: str, must_exist: bool = True) -> TaskQueue:
    """Open the named task queue; fail if it is of another kind."""
    try:
        queue = existing_queue(db, name)
    except QueueNotFound:
        if must_exist:
            raise
        return TaskQueue.named(db, name)
    if queue.kind != "task":
        raise click.UsageError(
            f"{name!r} is not a task queue; use the commands without `task`, such as `fdbq pop`"
        )
    return queue


_FIELDS = [field.name for field in dataclasses.fields(Task) if field.repr]


def _task_json(task: Task) -> str:
    """Return a task as a line of JSON."""
    fields = {name: getattr(task, name) for name in _FIELDS}
    fields["priority"] = task.priority.name
    for name in ("deadline", "created_at"):
        fields[name] = fields[name] and fields[name].isoformat()
    return json_line(fields)


@task.command()
@queue_argument
@click.argument("payload")
@click.option(
    "-p",
    "--priority",
    default="medium",
    show_default=True,
    type=_PRIORITIES,
    help="Urgency of the task; critical tasks are popped first.",
)
@click.option(
    "--deadline",
    metavar="TIME",
    type=aware_time,
    help="Time at which the task is due, such as 2030-01-31T08:00+01:00.",
)
@click.option(
    "--cost",
    metavar="NUMBER",
    default=0.0,
    show_default=True,
    help="Cost from 0; the cheapest task of equal priority and deadline is first.",
)
@click.option("--agent", "agent_name", metavar="NAME", help="Agent that the task is for.")
@click.option(
    "--group", metavar="GROUP", help="The same: the agents of a task queue are its groups."
)
@click.option("--client", "client_id", metavar="ID", help="Client that the task belongs to.")
@push_options("task", "instead of --delay")
@command_options(creates=True)
def push(
    db: Database,
    queue: str,
    payload: str,
    priority: str,
    deadline: datetime | None,
    cost: float,
    agent_name: str | None,
    group: str | None,
    client_id: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Push a task with a JSON PAYLOAD to QUEUE and print its id.

    If PAYLOAD is `-`, it is read from standard input. With --unique, the id may belong to an
    existing task. The first push creates the queue.

    Exits with code 1 if the queue is full; `fdbq limit` shows and sets its maximum size.

    \b
    Example:
      fdbq task push todo '{"invoice": 7}' --priority high --deadline 2030-01-31T08:00+01:00
    """
    value = parse_value(read_value(sys.stdin.buffer) if payload == "-" else payload)
    with usage_errors():
        task_id = _task_queue(db, queue, must_exist=False).push(
            db,
            priority=TaskPriority[priority.upper()],
            deadline=deadline,
            cost=cost,
            agent_name=agent_name,
            group=group,
            client_id=client_id,
            payload=value,
            **options,
        )
    if task_id is None:
        say(f"fdbq task push: {queue} is full; nothing was stored", err=True)
        sys.exit(1)
    echo(json_line({"id": task_id}) if as_json else task_id)


@task.command()
@queue_argument
@click.option("--agent", metavar="NAME", help="Pop the first task of this agent.")
@command_options()
def pop(db: Database, queue: str, agent: str | None, as_json: bool) -> None:
    """Pop the first task of QUEUE and print its payload.

    With --json, all fields of the task are printed. A task that cannot be printed stays in the
    queue.

    Exits with code 1 if the queue has no such task.

    \b
    Example:
      fdbq task pop todo --agent billing
    """
    target = _task_queue(db, queue)
    with defer_signals():
        claim = target.claim(db, within=1, agent=agent)
        if claim is None:
            sys.exit(1)
        try:
            say(_task_json(claim.item) if as_json else json_line(claim.item.payload))
            sys.stdout.flush()
        except BaseException as error:
            target.release(db, claim)
            raise OutputError(
                "cannot write to standard output; the task was not printed but put back"
            ) from error
        target.ack(db, claim)


@task.command()
@queue_argument
@click.option("--agent", metavar="NAME", help="List only tasks of this agent.")
@click.option("--client", metavar="ID", help="List only tasks of this client.")
@number_option("--limit", default=0, lowest=0, help="Maximum number of tasks; 0 for all.")
@command_options()
def ls(
    db: Database, queue: str, agent: str | None, client: str | None, limit: int, as_json: bool
) -> None:
    """List the ready tasks of QUEUE in order, as lines of JSON.

    --agent and --client exclude each other.

    \b
    Example:
      fdbq task ls todo --agent billing
    """
    if agent is not None and client is not None:
        raise click.UsageError("give either --agent or --client, not both")
    target = _task_queue(db, queue)
    tasks: Iterator[Task] = target.get_all_tasks(db, limit=limit)
    if agent is not None:
        tasks = target.get_tasks_for_agent(db, agent)
    elif client is not None:
        tasks = target.get_tasks_for_client(db, client)
    for number, task in enumerate(tasks, 1):
        say(_task_json(task))
        if number == limit:
            break


@task.command()
@queue_argument
@click.argument("id")
@command_options()
def show(db: Database, queue: str, id: str, as_json: bool) -> None:
    """Show a task, its state and the number of tasks ahead of it.

    Exits with code 1 if the queue has no task with this ID, for example because it is done.

    \b
    Example:
      fdbq task show todo 0199d2b5f3a67c8e9a3b1c2d3e4f5a6b
    """
    target = _task_queue(db, queue)
    task, state, ahead = target.get_task(db, id), target.state(db, id), target.position(db, id)
    if task is None:
        say(f"fdbq task show: {queue} has no task {id}", err=True)
        sys.exit(1)
    say(json_line({**json.loads(_task_json(task)), "state": state, "ahead": ahead}))


@task.command()
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@command_options()
def rm(db: Database, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove tasks in any state but claimed from QUEUE by id.

    If an ID is not valid, nothing is removed.

    Exits with code 1 if a task is claimed or unknown.

    \b
    Example:
      fdbq task rm todo 0199d2b5f3a67c8e9a3b1c2d3e4f5a6b
    """
    target = _task_queue(db, queue)
    for task_id in ids:
        target.state(db, task_id)  # raises for an invalid id, before anything is removed
    removed = {task_id: target.remove(db, task_id) for task_id in ids}
    echo_results(removed, "removed", as_json, lambda _: "it is claimed or unknown")


@task.command()
@queue_argument
@command_options()
def stats(db: Database, queue: str, as_json: bool) -> None:
    """Show totals of QUEUE, and its ready tasks by priority and agent.

    \b
    Example:
      fdbq task stats todo
    """
    totals = _task_queue(db, queue).get_stats(db)
    fields: dict[str, float | str | dict[str, int] | None] = {
        field.name: getattr(totals, field.name) for field in dataclasses.fields(totals)
    }
    fields["oldest"] = None if totals.oldest is None else totals.oldest.isoformat()
    fields["by_priority"] = {priority.name: n for priority, n in totals.by_priority.items()}
    fields |= {"success_rate": totals.success_rate, "rejection_rate": totals.rejection_rate}
    if as_json:
        say(json_line(fields))
        return
    for name, value in fields.items():
        say(f"{name:<15} {json_line(value) if isinstance(value, dict) else value}")
