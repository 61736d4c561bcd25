"""The commands for dead letters: dead ls, dead show, dead retry, dead drop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from fdbqueue import DeadLetter, Item, existing_queue
from fdbqueue.errors import QueueFull
from fdbqueue.layout.priorities import priority_as_json
from fdbqueue.types import Database

from .common import AnyQueue, as_line, command_options, queue_argument, tell_each

__all__ = ["dead"]

_LONGEST = 120  # characters of an error in a list


@click.group()
def dead() -> None:
    """Look at the items that failed too often, retry or drop them.

    \b
    Example:
      fdbq dead ls jobs
    """


def _shown(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "attempts": letter.attempts,
        "died_at": letter.died_at.isoformat(timespec="seconds"),
        "error": letter.error,
    }


@dead.command()
@queue_argument
@command_options()
def ls(db: Database, queue: str, as_json: bool) -> None:
    """List the dead letters of QUEUE: id, attempts, when each died, its last error.

    \b
    Example:
      fdbq dead ls jobs
    """
    for letter in existing_queue(db, queue).dead_letters(db):
        shown = _shown(letter)
        line = "  ".join(_printable(str(shown[field] or "-")) for field in shown)
        click.echo(as_line(shown) if as_json else line)


def _printable(text: str) -> str:
    """A text on one line, of which a terminal makes nothing else."""
    line = " ".join(text.split())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


@dead.command()
@queue_argument
@click.argument("id")
@command_options()
def show(db: Database, queue: str, id: str, as_json: bool) -> None:
    """Print the value of one dead letter of QUEUE.

    Exit code 1 if there is none of this id.

    \b
    Example:
      fdbq dead show jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = existing_queue(db, queue)
    target.state(db, id)  # raises for what is no id
    letters = (each for each in target.dead_letters(db) if each.id == id)
    letter = next(letters, None)
    if letter is None:
        click.echo(f"fdbq dead show: {id} is no dead letter", err=True)
        sys.exit(1)
    item = letter.item
    if item is None:
        raise click.ClickException(f"{id} cannot be read: {letter.error}")
    value = item.value if isinstance(item, Item) else item.payload
    if not as_json:
        click.echo(as_line(value))
        return
    click.echo(
        as_line({**_shown(letter), "priority": priority_as_json(item.priority), "value": value})
    )


@dead.command()
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@command_options()
def retry(db: Database, queue: str, ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Put dead letters of QUEUE back to their places, to be tried anew.

    Exit code 1 if one of them was not there, or the queue has no room for it.

    \b
    Example:
      fdbq dead retry jobs --all
    """
    target = existing_queue(db, queue)
    _each(db, target, ids, everything, target.retry_dead_letter, "retried", as_json)


@dead.command()
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@command_options()
def drop(db: Database, queue: str, ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Drop dead letters of QUEUE for good.

    Exit code 1 if one of them was not there.

    \b
    Example:
      fdbq dead drop jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = existing_queue(db, queue)
    _each(db, target, ids, everything, target.drop_dead_letter, "dropped", as_json)


def _each(
    db: Database,
    queue: AnyQueue,
    ids: Iterable[str],
    everything: bool,
    change: Callable[[Any, str], bool],
    done: str,
    as_json: bool,
) -> None:
    if bool(ids) == everything:
        raise click.UsageError("give ids, or --all")
    for item_id in ids:
        queue.state(db, item_id)  # a bad one is an error before anything is changed
    chosen = [letter.id for letter in queue.dead_letters(db)] if everything else ids
    full: set[str] = set()

    def changed(item_id: str) -> bool:
        try:
            return change(db, item_id)
        except QueueFull:
            full.add(item_id)
            return False

    results = {item_id: changed(item_id) for item_id in chosen}

    def why_not(item_id: str) -> str:
        if item_id in full:
            return "the queue is full"
        is_dead = queue.state(db, item_id) == "dead"
        return "another item has its unique key" if is_dead else "it is no dead letter"

    tell_each(results, done, as_json, why_not)
