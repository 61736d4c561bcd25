"""The commands `fdbq schedule`."""

from __future__ import annotations

from typing import Any

import click

from fdbqueue import existing_queue
from fdbqueue.errors import QueueFull
from fdbqueue.options import LateOptions, ScheduleOptions
from fdbqueue.queue.arguments import text_of_seconds
from fdbqueue.queue.overview import open_queue, queue_names
from fdbqueue.queue.schedules import Schedule, Schedules, schedule_as_json
from fdbqueue.types import Database, PriorityJson

from .arguments import parse_value
from .command import QUEUE, QUEUES, Group, command
from .opening import exact_priority, json_queue
from .options import argument, chosen, option, options_of
from .output import fail, json_line, printable, report, show

_NAME = argument("name")


@click.group(cls=Group)
def schedule() -> None:
    """List, add, remove, pause and run schedules, which push an item at each of their ticks.

    Workers and other clients push the items when they take others; no other process has to run. The
    commands exit with code 1 if there is no schedule NAME.

    \b
    Example:
      fdbq schedule add jobs nightly '{"report": "sales"}' --cron "0 3 * * 1-5" --tz Europe/Lisbon
    """


@command(QUEUES, group=schedule)
def ls(db: Database, queues: tuple[str, ...]) -> None:
    """List the schedules of each QUEUE, by default of all: queue, name, timing, next tick, value.

    \b
    Example:
      fdbq schedule ls
    """
    for queue in queues or queue_names(db):
        target = existing_queue(db, queue)
        for found in () if target.kind == "task" else target.schedules.all(db):
            value = printable(json_line(found.value))
            line = [queue, found.name, _timing(found), _next(found), value]
            show({"queue": queue, **schedule_as_json(found)}, "  ".join(map(printable, line)))


def _schedules(db: Database, name: str) -> Schedules[Any]:
    queue = existing_queue(db, name)
    if queue.kind == "task":
        raise click.ClickException(f"{name!r} is a task queue, which has no schedules")
    return queue.schedules


def _timing(found: Schedule) -> str:
    if found.every is not None:
        return f"every {text_of_seconds(found.every.total_seconds())}"
    return f"{found.cron} {found.tz}"


def _next(found: Schedule) -> str:
    if found.next_tick is not None:
        return found.next_tick.isoformat(timespec="seconds")
    return "paused" if found.paused else "stopped"


@command(
    QUEUE,
    _NAME,
    argument("value"),
    *options_of(
        LateOptions,
        ScheduleOptions,
        group=option("--group", help="Group of the items, as for `fdbq push`."),
    ),
    group=schedule,
    creates=True,
)
def add(
    db: Database,
    queue: str,
    name: str,
    value: str,
    *,
    priority: PriorityJson | None,
    **options: Any,
) -> None:
    """Add or change the schedule NAME of QUEUE, which pushes a JSON VALUE.

    Give either --cron or --every. Ticks of --every are the multiples of the interval since 1970.

    \b
    Example:
      fdbq schedule add jobs poll '"poll"' --every 90s --overlap skip

    Options:
        priority: As for `fdbq push`.
    """
    target = json_queue(open_queue(db, queue), queue)
    given = chosen(options)
    level = exact_priority(target, queue, priority)
    if level is not None:
        given["priority"] = level
    target.schedules.add(db, name, parse_value(value), **given)
    found = target.schedules.get(db, name)
    if found is not None:
        report(schedule_as_json(found), f"{name}: next tick {_next(found)}")


@command(QUEUE, _NAME, group=schedule)
def rm(db: Database, queue: str, name: str) -> None:
    """Remove the schedule NAME of QUEUE; the items that it has pushed stay.

    A worker adds a schedule that its code declares again when it starts.

    \b
    Example:
      fdbq schedule rm jobs nightly
    """
    _report(name, "removed", _schedules(db, queue).remove(db, name))


@command(QUEUE, _NAME, group=schedule)
def pause(db: Database, queue: str, name: str) -> None:
    """Let the schedule NAME of QUEUE push nothing until `fdbq schedule resume`.

    \b
    Example:
      fdbq schedule pause jobs nightly
    """
    _report(name, "paused", _schedules(db, queue).pause(db, name))


@command(QUEUE, _NAME, group=schedule)
def resume(db: Database, queue: str, name: str) -> None:
    """Let the schedule NAME of QUEUE go on with its next tick.

    Ticks in between do not count as missed.

    \b
    Example:
      fdbq schedule resume jobs nightly
    """
    _report(name, "resumed", _schedules(db, queue).resume(db, name))


def _report(name: str, done: str, is_done: bool) -> None:
    if not is_done:
        fail(f"there is no schedule {name!r}")
    report({"schedule": name, done: True}, f"{done} {name}")


@command(QUEUE, _NAME, group=schedule)
def run(db: Database, queue: str, name: str) -> None:
    """Push the item of the schedule NAME of QUEUE now, and print its id.

    Also exits with code 1 if the queue is full, or the last item has not ended and the schedule
    allows no overlap.

    \b
    Example:
      fdbq schedule run jobs nightly
    """
    schedules = _schedules(db, queue)
    try:
        item_id = schedules.run_now(db, name)
    except QueueFull as error:
        fail(str(error))
    if item_id is None:
        known = schedules.get(db, name) is not None
        reason = "its last item has not ended" if known else f"there is no schedule {name!r}"
        fail(f"nothing was pushed: {reason}")
    report({"schedule": name, "id": item_id}, item_id)
