"""The commands `fdbq dead`: ls, show, retry and drop."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from fdbqueue import existing_queue
from fdbqueue.queue.overview import priority_as_json
from fdbqueue.types import Database, ItemInfo, State

from . import output
from .changes import change_items, user_name, validate_choice
from .command import ID, IDS, QUEUE, Group, command
from .options import flag


@click.group(cls=Group)
def dead() -> None:
    """List, show, retry and drop dead letters.

    An item becomes a dead letter when its last attempt fails; `fdbq limit --attempts` sets how many
    attempts it has.

    \b
    Example:
      fdbq dead ls jobs
    """


def _fields(letter: ItemInfo) -> dict[str, Any]:
    return {
        "id": letter.id,
        "attempts": letter.attempts,
        "died_at": letter.died_at and letter.died_at.isoformat(timespec="seconds"),
        "run_time": letter.run_time and letter.run_time.total_seconds(),
        "error": letter.error,
        "job": None if letter.job is None else letter.job.name,
    }


@command(QUEUE, group=dead)
def ls(db: Database, queue: str) -> None:
    """List the dead letters of QUEUE: id, attempts, time, seconds, last error, and the job.

    \b
    Example:
      fdbq dead ls jobs
    """
    for letter in existing_queue(db, queue).items(db, state="dead"):
        fields = _fields(letter)
        shown = [*fields.values()][:-1] + ([letter.job] if letter.job else [])
        output.show(fields, "  ".join(output.printable(str(value or "-")) for value in shown))


@command(QUEUE, ID, group=dead)
def show(db: Database, queue: str, id: str) -> None:
    """Print the value of a dead letter of QUEUE.

    Exits with code 1 if ID is not a dead letter.

    \b
    Example:
      fdbq dead show jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    letter = existing_queue(db, queue).get(db, id)
    if letter is None or letter.state != "dead":
        output.fail(f"{id} is not a dead letter")
    item = letter.item
    if item is None:
        raise click.ClickException(f"{id} cannot be decoded: {letter.error}")
    value = output.value_of(item)
    priority = priority_as_json(item.priority)
    output.show({**_fields(letter), "priority": priority, "value": value}, output.json_line(value))


@command(QUEUE, IDS, flag("--all", "everything", help="Retry all dead letters."), group=dead)
def retry(db: Database, queue: str, ids: tuple[str, ...], everything: bool) -> None:
    """Retry dead letters of QUEUE.

    They return to their positions in the queue with all attempts left.

    Exits with code 1 if an item is not a dead letter, the queue is full, or another item has taken
    its unique key.

    \b
    Example:
      fdbq dead retry jobs --all
    """
    state: State | None = "dead" if everything else None
    validate_choice(ids, state, "--all")
    target = existing_queue(db, queue)
    change = partial(target.retry, state="dead", by=user_name())
    change_items(db, target, queue, ids, "retried", "retry", change, state)


@command(QUEUE, IDS, flag("--all", "everything", help="Drop all dead letters."), group=dead)
def drop(db: Database, queue: str, ids: tuple[str, ...], everything: bool) -> None:
    """Delete dead letters of QUEUE.

    Exits with code 1 if an item is not a dead letter.

    \b
    Example:
      fdbq dead drop jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    state: State | None = "dead" if everything else None
    validate_choice(ids, state, "--all")
    target = existing_queue(db, queue)
    change_items(
        db, target, queue, ids, "dropped", "remove", partial(target.remove, state="dead"), state
    )
