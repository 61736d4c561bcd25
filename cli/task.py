"""The commands `fdbq task`."""

from __future__ import annotations

import dataclasses
import sys
from itertools import islice
from typing import Any

import click

from fdbqueue import TaskPriority, TaskQueue, existing_queue
from fdbqueue.errors import QueueNotFound
from fdbqueue.options import PushOptions, TaskFields, TaskOptions
from fdbqueue.types import Database

from .arguments import read_value
from .command import QUEUE, Group, command
from .opening import task_queue
from .options import argument, chosen, option, options_of
from .output import fail, item_fields, json_line, report, say, show_fields
from .pop import pop_and_show


@click.group(cls=Group)
def task() -> None:
    """Push, pop, list and count tasks of task queues.

    Tasks are ordered by priority, deadline, cost and creation. Other commands, such as `fdbq show`
    and `fdbq rm`, also accept tasks.

    \b
    Example:
      fdbq task push todo '{"invoice": 7}' --priority high --agent billing
    """


@command(
    QUEUE,
    argument("payload"),
    *options_of(
        PushOptions,
        TaskFields,
        TaskOptions,
        flags={"agent_name": "--agent", "client_id": "--client"},
        priority=option(
            *("-p", "--priority"),
            type=click.Choice([priority.name for priority in TaskPriority], case_sensitive=False),
            help="Urgency of the task, by default medium; critical tasks are popped first.",
        ),
    ),
    group=task,
    creates=True,
)
def push(db: Database, queue: str, payload: str, priority: str | None, **options: Any) -> None:
    """Push a task with a JSON PAYLOAD to QUEUE and print its id.

    The options are as for `fdbq push`. PAYLOAD can be `-` for standard input.

    Exits with code 1 if the queue is full.

    \b
    Example:
      fdbq task push todo '{"invoice": 7}' --priority high --deadline 2030-01-31T08:00+01:00
    """
    value = read_value(payload)
    try:
        target = task_queue(existing_queue(db, queue), queue)
    except QueueNotFound:
        target = TaskQueue.named(db, queue)
    given = chosen(options)
    if priority is not None:
        given["priority"] = TaskPriority[priority.upper()]
    task_id = target.push(db, payload=value, **given)
    if task_id is None:
        fail(f"{queue} is full; nothing was stored")
    report({"id": task_id}, task_id)


@command(QUEUE, group=task)
def pop(db: Database, queue: str) -> None:
    """Pop the first task of QUEUE and print its payload; with --json, all its fields.

    A task that cannot be printed stays in the queue.

    Exits with code 1 if the queue has no task.

    \b
    Example:
      fdbq task pop todo
    """
    if not pop_and_show(db, task_queue(existing_queue(db, queue), queue), 1):
        sys.exit(1)


@command(QUEUE, group=task)
def ls(db: Database, queue: str, *, agent: str | None, client: str | None, limit: int = 0) -> None:
    """List the ready tasks of QUEUE in order, as lines of JSON.

    Give at most one of --agent and --client.

    \b
    Example:
      fdbq task ls todo --agent billing

    Options:
        agent: List only tasks of this agent.
        client: List only tasks of this client.
        limit: Maximum number of tasks; 0 for all.
    """
    if agent is not None and client is not None:
        raise click.UsageError("give either --agent or --client, not both")
    target = task_queue(existing_queue(db, queue), queue)
    tasks = target.get_all_tasks(db, limit=limit)
    if agent is not None:
        tasks = target.get_tasks_for_agent(db, agent)
    elif client is not None:
        tasks = target.get_tasks_for_client(db, client)
    for found in islice(tasks, limit or None):
        say(json_line(item_fields(found)))


@command(QUEUE, group=task)
def stats(db: Database, queue: str) -> None:
    """Show totals of QUEUE, and its ready tasks by priority and agent.

    \b
    Example:
      fdbq task stats todo
    """
    totals = task_queue(existing_queue(db, queue), queue).get_stats(db)
    fields = dataclasses.asdict(totals)
    fields["oldest"] = None if totals.oldest is None else totals.oldest.isoformat()
    fields["by_priority"] = {priority.name: n for priority, n in totals.by_priority.items()}
    fields |= {"success_rate": totals.success_rate, "rejection_rate": totals.rejection_rate}
    show_fields(fields)
