"""Opening of the database and of the named queue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import click

import fdbqueue
from fdbqueue import PriorityQueue, Queue, TaskQueue, embedded, existing_queue
from fdbqueue.errors import NotADatabase, QueueNotFound
from fdbqueue.queue.base import Stop, store_of
from fdbqueue.queue.overview import wait_for_queue
from fdbqueue.types import Database, Priority, PriorityJson

from .output import say

AnyQueue: TypeAlias = PriorityQueue | Queue | TaskQueue


def chosen_database(context: click.Context, url: str | None) -> str | None:
    """Return the database named before the command or after it."""
    return context.find_root().params.get("url") if url is None else url


def open_database(named: str | None, create: bool) -> Database:
    """Open the named database, in a new directory with `create`.

    Only the user's data directory also gets parent directories: a path may be mistyped.
    """
    try:
        return fdbqueue.open(named, create=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except NotADatabase as error:
        parent = Path(error.path).parent
        is_named = bool(named or os.environ.get("FDBQ_DB"))
        if not create:
            if is_named or Path(error.path).exists():
                raise
            advice = "name yours by --db or $FDBQ_DB, or push an item to create this one"
            raise NotADatabase(error.path, "there is no database here", advice) from error
        if is_named and not parent.exists():
            problem = f"there is no directory {parent}"
            raise NotADatabase(error.path, problem, "create it, or correct the path") from error
    return fdbqueue.open(named, create=True)


def check_integrity(db: Database, seconds: float | None = 1.0) -> None:
    """Raise `CorruptDatabase` if the file of an embedded database is damaged.

    Damage can hide items: call this after listing them. The check reads about a gigabyte per
    second, for at most `seconds`.
    """
    if isinstance(db, embedded.Database):
        db.check_integrity(seconds)


def item_queue(queue: AnyQueue, name: str) -> PriorityQueue | Queue:
    """Return a queue of items, or fail."""
    if queue.kind == "task":
        raise click.ClickException(f"{name!r} is a task queue; use `fdbq task`")
    return queue


def task_queue(queue: AnyQueue, name: str) -> TaskQueue:
    """Return a task queue, or fail."""
    if queue.kind != "task":
        raise click.UsageError(
            f"{name!r} is not a task queue; use the commands without `task`, such as `fdbq pop`"
        )
    return queue


def json_queue(queue: AnyQueue, name: str) -> PriorityQueue | Queue:
    """Return a queue of JSON values, or fail."""
    queue = item_queue(queue, name)
    codec = store_of(queue).given_options.codec
    if codec != "json":
        raise click.ClickException(
            f"{name!r} has the codec {codec}, but fdbq needs JSON values; use the Python library"
        )
    return queue


def found_queue(db: Database, name: str, wait: float = 0.0) -> PriorityQueue | Queue | None:
    """Return the named queue of JSON values, or `None` after `wait` seconds."""
    try:
        return json_queue(existing_queue(db, name), name)
    except QueueNotFound as error:
        check_integrity(db)
        waiting = " (waiting until there is one)" if wait else ""
        say(f"{click.get_current_context().command_path}: {error}{waiting}", err=True)
    queue = wait_for_queue(db, name, Stop(), wait) if wait else None
    return None if queue is None else json_queue(queue, name)


def priority_queue(queue: AnyQueue, name: str, what: str) -> PriorityQueue:
    """Return a priority queue; fail for other queues, which do not support `what`."""
    if queue.kind == "priority":
        return queue
    kind = "FIFO" if queue.kind == "fifo" else queue.kind
    raise click.UsageError(f"{name!r} is a {kind} queue and does not support {what}")


def exact_priority(queue: AnyQueue, name: str, priority: PriorityJson | None) -> Priority | None:
    """Return the queue's form of `--priority`, or fail."""
    if priority is None:
        return None
    return store_of(priority_queue(queue, name, "--priority")).levels.from_json(priority)
