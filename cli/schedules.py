"""Commands for schedules: schedule ls, add, rm, pause, resume and run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, get_args

import click

from fdbqueue.errors import QueueFull
from fdbqueue.queue.arguments import text_of_seconds
from fdbqueue.queue.overview import queue_names
from fdbqueue.queue.schedules import Schedule, schedule_as_json
from fdbqueue.types import Database, Missed, Overlap, PriorityJson

from .common import (
    PRIORITY,
    Duration,
    Group,
    any_queue,
    command_options,
    echo,
    json_line,
    json_queue,
    parse_value,
    printable,
    priority_from_json,
    queue_argument,
    queues_argument,
    say,
    unsupported,
    usage_errors,
)

_schedule_argument = click.argument("name", metavar="NAME")


@click.group(cls=Group)
def schedule() -> None:
    """List, add, remove, pause and run schedules, which push an item at each of their ticks.

    Workers and other clients that take items do the pushing; no other process has to run.

    \b
    Example:
      fdbq schedule add jobs nightly '{"report": "sales"}' --cron "0 3 * * 1-5" --tz Europe/Lisbon
      fdbq schedule ls
    """


@schedule.command()
@queues_argument
@command_options()
def ls(db: Database, queues: tuple[str, ...], as_json: bool) -> None:
    """List the schedules of each QUEUE, by default of all: queue, name, timing, next tick, value.

    \b
    Example:
      fdbq schedule ls
    """
    for queue, found in _schedules(db, queues):
        if as_json:
            echo(json_line({"queue": queue, **schedule_as_json(found)}))
        else:
            value = printable(json_line(found.value))
            shown = [queue, found.name, _timing(found), _next(found), value]
            echo("  ".join(map(printable, shown)))


def _schedules(db: Database, queues: tuple[str, ...]) -> Iterator[tuple[str, Schedule]]:
    for name in queues or queue_names(db):
        queue = any_queue(db, name, must_exist=True)
        for found in queue.schedules.all(db):
            yield name, found


def _timing(found: Schedule) -> str:
    if found.every is not None:
        return f"every {text_of_seconds(found.every.total_seconds())}"
    return f"{found.cron} {found.tz}"


def _next(found: Schedule) -> str:
    """Return the next tick of a schedule, or why it has none."""
    if found.next_tick is not None:
        return found.next_tick.isoformat(timespec="seconds")
    return "paused" if found.paused else "stopped"


@schedule.command()
@queue_argument
@_schedule_argument
@click.argument("value")
@click.option("-p", "--priority", type=PRIORITY, help="As for `fdbq push`.")
@click.option("--cron", metavar="EXPRESSION", help="Times, as five fields of cron, or six.")
@click.option("--every", type=Duration(1), help="Interval between ticks.")
@click.option("--tz", default="UTC", show_default=True, help="Time zone of the EXPRESSION.")
@click.option(
    "--missed",
    type=click.Choice(get_args(Missed)),
    default="latest",
    show_default=True,
    help="Which ticks to push for that nobody has found in time.",
)
@click.option(
    "--overlap",
    type=click.Choice(get_args(Overlap)),
    default="allow",
    show_default=True,
    help="What to do at a tick while the item of the last one has not ended.",
)
@click.option("--group", help="Group of the items, as for `fdbq push`.")
@command_options(creates=True)
def add(
    db: Database,
    queue: str,
    name: str,
    value: str,
    priority: PriorityJson | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add a schedule NAME to QUEUE, which pushes a JSON VALUE, or change the one of this name.

    Give either --cron or --every. Ticks of --every are the multiples of the interval since 1970.
    For a task queue, VALUE is an object with the fields of a task, whose deadline is a time after
    the tick.

    \b
    Example:
      fdbq schedule add jobs nightly '{"report": "sales"}' --cron "0 3 * * 1-5" --tz Europe/Lisbon
      fdbq schedule add jobs poll '"poll"' --every 90s --overlap skip
      fdbq schedule add todo bills '{"payload": "send", "deadline": "2h"}' --cron "0 8 * * 1"
    """
    target = any_queue(db, queue, must_exist=False)
    if target.kind != "task":
        target = json_queue(db, queue)
    given = {option: chosen for option, chosen in options.items() if chosen is not None}
    with usage_errors():
        if priority is None:
            target.schedules.add(db, name, parse_value(value), **given)
        elif target.kind == "priority":
            level = priority_from_json(target, priority)
            target.schedules.add(db, name, parse_value(value), level, **given)
        else:
            raise unsupported(target, queue, "--priority")
    found = target.schedules.get(db, name)
    if found is not None:
        echo(json_line(schedule_as_json(found)) if as_json else f"{name}: next tick {_next(found)}")


@schedule.command()
@queue_argument
@_schedule_argument
@command_options()
def rm(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Remove the schedule NAME of QUEUE; the items that it has pushed stay.

    A worker adds one that its code declares again when it starts.

    Exits with code 1 if there is no such schedule.

    \b
    Example:
      fdbq schedule rm jobs nightly
    """
    schedules = any_queue(db, queue, must_exist=True).schedules
    _answer(name, "removed", schedules.remove(db, name), as_json)


@schedule.command()
@queue_argument
@_schedule_argument
@command_options()
def pause(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Let the schedule NAME of QUEUE push nothing until `fdbq schedule resume`.

    Exits with code 1 if there is no such schedule.

    \b
    Example:
      fdbq schedule pause jobs nightly
    """
    schedules = any_queue(db, queue, must_exist=True).schedules
    _answer(name, "paused", schedules.pause(db, name), as_json)


@schedule.command()
@queue_argument
@_schedule_argument
@command_options()
def resume(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Let the schedule NAME of QUEUE go on with its next tick.

    The ticks in between do not count as missed.

    Exits with code 1 if there is no such schedule.

    \b
    Example:
      fdbq schedule resume jobs nightly
    """
    schedules = any_queue(db, queue, must_exist=True).schedules
    _answer(name, "resumed", schedules.resume(db, name), as_json)


def _answer(name: str, done: str, is_done: bool, as_json: bool) -> None:
    if as_json:
        echo(json_line({"schedule": name, done: is_done}))
    elif is_done:
        echo(f"{done} {name}")
    else:
        say(f"there is no schedule {name!r}", err=True)
    if not is_done:
        sys.exit(1)


@schedule.command()
@queue_argument
@_schedule_argument
@command_options()
def run(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Push the item of the schedule NAME of QUEUE now, and print its id.

    Exits with code 1 if there is no such schedule, if the queue is full, or if its ticks do not
    overlap and the last item has not ended.

    \b
    Example:
      fdbq schedule run jobs nightly
    """
    schedules = any_queue(db, queue, must_exist=True).schedules
    try:
        item_id = schedules.run_now(db, name)
    except QueueFull as error:
        raise click.ClickException(str(error)) from error
    if item_id is None:
        known = schedules.get(db, name) is not None
        reason = "its last item has not ended" if known else f"there is no schedule {name!r}"
        say(f"nothing was pushed: {reason}", err=True)
        sys.exit(1)
    echo(json_line({"schedule": name, "id": item_id}) if as_json else item_id)
