"""The commands for task queues: task push, pop, ls, show, rm, stats."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from fdbqueue import FdbqueueError, Task, TaskPriority, TaskQueue, existing_queue
from fdbqueue.errors import QueueNotFound
from fdbqueue.layout.codecs import with_stack
from fdbqueue.types import Database

from .common import (
    TIME,
    PrintFailed,
    Seconds,
    as_line,
    command_options,
    queue_argument,
    read_value,
    tell,
    tell_each,
)
from .signals import held_back

__all__ = ["task"]

_PRIORITIES = click.Choice([priority.name for priority in TaskPriority], case_sensitive=False)


@click.group()
def task() -> None:
    """Work with task queues: by priority, deadline, cost and time.

    \b
    Example:
      fdbq task push todo '{"invoice": 7}' --priority high --agent billing
    """


def _tasks(db: Database, name: str, must_exist: bool = True) -> TaskQueue:
    try:
        queue = existing_queue(db, name)
    except QueueNotFound:
        if must_exist:
            raise
        return TaskQueue.named(db, name)
    if not isinstance(queue, TaskQueue):
        raise click.UsageError(
            f"{name!r} is no task queue; `fdbq push`, `pop` and so on are for it"
        )
    return queue


_SHOWN = [field.name for field in dataclasses.fields(Task) if field.name != "key"]


def _line(each: Task) -> str:
    """A task as a line of JSON."""
    shown = {name: getattr(each, name) for name in _SHOWN}
    shown["priority"] = each.priority.name
    for name in ("deadline", "created_at"):
        shown[name] = shown[name] and shown[name].isoformat()
    return as_line(shown)


@task.command()
@queue_argument
@click.argument("payload")
@click.option(
    "-p", "--priority", default="MEDIUM", show_default=True, type=_PRIORITIES, help="How urgent."
)
@click.option("--deadline", metavar="TIME", type=TIME, help="As in 2030-01-31T08:00+01:00.")
@click.option("--cost", default=0.0, show_default=True, help="The cheaper comes first.")
@click.option("--agent", "agent_name", metavar="NAME", help="Who is to do it.")
@click.option("--client", "client_id", metavar="ID", help="For whom it is.")
@click.option("--delay", metavar="SECONDS", type=Seconds(0), help="Nobody gets it before.")
@click.option("--at", metavar="TIME", type=TIME, help="The same, by the clock.")
@click.option(
    "--ttl", metavar="SECONDS", type=Seconds(0), help="Drop it if nobody took it by then."
)
@click.option("--unique", metavar="KEY", help="Only if none of this key is unfinished.")
@command_options(creates=True)
def push(
    db: Database,
    queue: str,
    payload: str,
    priority: str,
    deadline: datetime | None,
    cost: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Put a task with PAYLOAD, a JSON value, into QUEUE; `-` reads it from standard input.

    Prints the id of the task. Exit code 1 and no output if the queue is full.

    \b
    Example:
      fdbq task push todo '{"invoice": 7}' --priority high --deadline 2030-01-31T08:00+01:00
    """
    try:
        text = read_value(sys.stdin.buffer) if payload == "-" else payload
        value = with_stack(json.loads, text)
    except ValueError as error:
        raise click.UsageError(f"the payload is not JSON: {error}") from error
    try:
        task_id = _tasks(db, queue, must_exist=False).push(
            db,
            priority=TaskPriority[priority.upper()],
            deadline=deadline,
            cost=cost,
            payload=value,
            **options,
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, FdbqueueError):
            raise
        raise click.UsageError(str(error)) from error
    if task_id is None:
        click.echo(f"fdbq task push: {queue} is full; nothing was stored", err=True)
        sys.exit(1)
    tell(as_line({"id": task_id}) if as_json else task_id)


@task.command()
@queue_argument
@click.option("--agent", metavar="NAME", help="Only a task of this agent.")
@command_options()
def pop(db: Database, queue: str, agent: str | None, as_json: bool) -> None:
    """Take the first task out of QUEUE and print its payload; with --json, the whole task.

    Exit code 1 and no output if there is none. What cannot be printed stays.

    \b
    Example:
      fdbq task pop todo --agent billing
    """
    tasks = _tasks(db, queue)
    with held_back():
        claim = tasks.claim(db, within=1, agent=agent)
        if claim is None:
            sys.exit(1)
        try:
            click.echo(_line(claim.item) if as_json else as_line(claim.item.payload))
            sys.stdout.flush()
        except BaseException as error:
            tasks.release(db, claim)
            raise PrintFailed([claim.item]) from error
        tasks.ack(db, claim)


@task.command()
@queue_argument
@click.option("--agent", metavar="NAME", help="Only those of this agent.")
@click.option("--client", metavar="ID", help="Only those of this client.")
@click.option("--limit", default=0, type=click.IntRange(min=0), help="At most so many.")
@command_options()
def ls(
    db: Database, queue: str, agent: str | None, client: str | None, limit: int, as_json: bool
) -> None:
    """List the tasks of QUEUE that wait, in order, each as a line of JSON.

    \b
    Example:
      fdbq task ls todo --agent billing
    """
    if agent is not None and client is not None:
        raise click.UsageError("give an agent or a client, not both")
    tasks = _tasks(db, queue)
    found: Iterator[Task] = tasks.get_all_tasks(db, limit=limit)
    if agent is not None:
        found = tasks.get_tasks_for_agent(db, agent)
    elif client is not None:
        found = tasks.get_tasks_for_client(db, client)
    for number, each in enumerate(found, 1):
        click.echo(_line(each))
        if number == limit:
            break


@task.command()
@queue_argument
@click.argument("id")
@command_options()
def show(db: Database, queue: str, id: str, as_json: bool) -> None:
    """Show one task of QUEUE, where it is, and how many are ahead of it.

    Exit code 1 if it is done, or never was.

    \b
    Example:
      fdbq task show todo 0199d2b5f3a67c8e9a3b1c2d3e4f5a6b
    """
    tasks = _tasks(db, queue)
    found, state, ahead = tasks.get_task(db, id), tasks.state(db, id), tasks.position(db, id)
    if found is None:
        click.echo(f"fdbq task show: there is no task {id}", err=True)
        sys.exit(1)
    click.echo(as_line({**json.loads(_line(found)), "state": state, "ahead": ahead}))


@task.command()
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@command_options()
def rm(db: Database, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove tasks that wait, or are delayed, from QUEUE.

    Exit code 1 if one of them was not there.

    \b
    Example:
      fdbq task rm todo 0199d2b5f3a67c8e9a3b1c2d3e4f5a6b
    """
    tasks = _tasks(db, queue)
    for each in ids:
        tasks.state(db, each)  # a bad id is an error before anything is changed
    removed = {each: tasks.remove(db, each) for each in ids}
    tell_each(removed, "removed", as_json, lambda _: "it is not in the queue")


@task.command()
@queue_argument
@command_options()
def stats(db: Database, queue: str, as_json: bool) -> None:
    """Show what came of the tasks of QUEUE, and how many wait of each priority and agent.

    \b
    Example:
      fdbq task stats todo
    """
    counted = _tasks(db, queue).get_stats(db)
    shown = {field.name: getattr(counted, field.name) for field in dataclasses.fields(counted)}
    shown["oldest"] = counted.oldest and counted.oldest.isoformat()
    shown["by_priority"] = {priority.name: n for priority, n in counted.by_priority.items()}
    shown |= {"success_rate": counted.success_rate, "rejection_rate": counted.rejection_rate}
    if as_json:
        click.echo(as_line(shown))
        return
    for name, value in shown.items():
        click.echo(f"{name:<15} {as_line(value) if isinstance(value, dict) else value}")
