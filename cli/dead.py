"""Commands for items that are not ready: retry, release, cancel, dead ls, show, retry and drop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import click

from fdbqueue import existing_queue
from fdbqueue.errors import QueueFull
from fdbqueue.queue.overview import priority_as_json
from fdbqueue.types import Change, Database, ItemInfo, State

from .common import (
    AnyQueue,
    Group,
    command_options,
    echo_results,
    item_queue,
    json_line,
    printable,
    queue_argument,
    say,
    user_name,
    value_of,
)


@click.command("retry")
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--state",
    type=click.Choice(["dead", "delayed"]),
    help="Retry all items in this state, instead of items by ID.",
)
@click.option(
    "--error", metavar="TEXT", help="With --state, only items with this text in their last error."
)
@click.option("--job", metavar="NAME", help="With --state, only the jobs of this name.")
@click.option(
    "--step",
    metavar="NAME",
    help="Forget this step of the job and all that came later, and go on there. Takes one ID.",
)
@command_options()
def retry_command(
    db: Database,
    queue: str,
    ids: tuple[str, ...],
    state: State | None,
    error: str | None,
    job: str | None,
    step: str | None,
    as_json: bool,
) -> None:
    """Make dead and delayed items of QUEUE ready at once.

    A dead letter gets all its attempts again. Its failed attempts stay, and `fdbq show` says who
    retried it. A delayed item keeps the number of its attempts. An item that waits for other jobs
    goes on, if you name it, only if these are in no queue.

    Exits with code 1 if an item is neither dead nor delayed, the queue is full, or another item has
    taken the unique key of a dead letter.

    \b
    Example:
      fdbq retry jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
      fdbq retry jobs --state dead --error Timeout
      fdbq retry jobs --state delayed --job shop.send
      fdbq retry orders FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA --step shipped
    """
    wanted = {"error": error, "job": job}
    for option, text in wanted.items():
        if text is not None and state is None:
            raise click.UsageError(f"--{option} needs --state")
    if step is not None and (state is not None or len(ids) != 1):
        raise click.UsageError("--step takes one ID, and no --state")
    target = existing_queue(db, queue)
    change: Callable[..., bool] = partial(target.retry, by=user_name())
    if step is not None:
        change = partial(
            item_queue(db, queue, must_exist=True).steps.retry_from, step=step, by=user_name()
        )
    _change(db, target, ids, state, change, "retry", "retried", as_json, "--state", wanted)


@click.command()
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Release all claimed items.")
@command_options()
def release(
    db: Database, queue: str, ids: tuple[str, ...], everything: bool, as_json: bool
) -> None:
    """Take claimed items of QUEUE away from their workers, and make them ready.

    The interrupted attempts do not count. A worker that still runs such a job can no longer
    acknowledge it.

    Exits with code 1 if an item is not claimed.

    \b
    Example:
      fdbq release jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = existing_queue(db, queue)
    state: State | None = "claimed" if everything else None
    _change(db, target, ids, state, target.release, "release", "released", as_json)


@click.command()
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@command_options()
def cancel(db: Database, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs of QUEUE, whether they wait or run.

    A waiting job ends at once. A running job is told by its worker, and does not run again, however
    it ends. A queue that keeps done items keeps either as done.

    Exits with code 1 if a job has ended or is unknown.

    \b
    Example:
      fdbq cancel jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = existing_queue(db, queue)
    for item_id in ids:
        target.state(db, item_id)  # raises for an invalid id, before anything is changed
    results = {item_id: target.cancel(db, item_id) for item_id in ids}
    echo_results(results, "cancelled", as_json, lambda _: "it has ended, or is not in the queue")


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


@dead.command()
@queue_argument
@command_options()
def ls(db: Database, queue: str, as_json: bool) -> None:
    """List the dead letters of QUEUE: id, attempts, time, seconds, last error, and the job.

    \b
    Example:
      fdbq dead ls jobs
    """
    for letter in existing_queue(db, queue).items(db, state="dead"):
        fields = _fields(letter)
        shown = [*fields.values()][:-1] + ([letter.job] if letter.job else [])
        line = "  ".join(printable(str(value or "-")) for value in shown)
        say(json_line(fields) if as_json else line)


@dead.command()
@queue_argument
@click.argument("id")
@command_options()
def show(db: Database, queue: str, id: str, as_json: bool) -> None:
    """Print the value of a dead letter of QUEUE.

    Exits with code 1 if ID is not a dead letter.

    \b
    Example:
      fdbq dead show jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    letter = existing_queue(db, queue).get(db, id)
    if letter is None or letter.state != "dead":
        say(f"fdbq dead show: {id} is not a dead letter", err=True)
        sys.exit(1)
    item = letter.item
    if item is None:
        raise click.ClickException(f"{id} cannot be decoded: {letter.error}")
    value = value_of(item)
    if not as_json:
        say(json_line(value))
        return
    priority = priority_as_json(item.priority)
    say(json_line({**_fields(letter), "priority": priority, "value": value}))


@dead.command()
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Retry all dead letters.")
@command_options()
def retry(db: Database, queue: str, ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Retry dead letters of QUEUE.

    They return to their positions in the queue with all attempts left.

    Exits with code 1 if an item is not a dead letter, the queue is full, or another item has taken
    its unique key.

    \b
    Example:
      fdbq dead retry jobs --all
    """
    target = existing_queue(db, queue)
    state: State | None = "dead" if everything else None
    change = partial(target.retry, state="dead", by=user_name())
    _change(db, target, ids, state, change, "retry", "retried", as_json)


@dead.command()
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Drop all dead letters.")
@command_options()
def drop(db: Database, queue: str, ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Delete dead letters of QUEUE.

    Exits with code 1 if an item is not a dead letter.

    \b
    Example:
      fdbq dead drop jobs FQUUAQD_AQIDBAUGBwgJCgsMDQ4PAA
    """
    target = existing_queue(db, queue)
    state: State | None = "dead" if everything else None
    change = partial(target.remove, state="dead")
    _change(db, target, ids, state, change, "remove", "dropped", as_json)


def _change(
    db: Database,
    queue: AnyQueue,
    ids: Iterable[str],
    state: State | None,
    change: Callable[[Database, str], bool],
    change_all: Change,
    done: str,
    as_json: bool,
    option: str = "--all",
    wanted: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Change items by id, or all items in a state, and print the results.

    Args:
        db: The database.
        queue: The queue of the items.
        ids: The ids of the items, or none.
        state: The state of the items, instead of ids.
        change: The change of one item.
        change_all: The same change, as `change_all` names it.
        done: The change, as a past participle.
        as_json: Print a line of JSON for each item.
        option: The option that chooses all items.
        wanted: The filters of the items in the state, as `change_all` names them.
    """
    if bool(ids) == (state is not None):
        raise click.UsageError(f"give either the ids of items, or {option}")
    for item_id in ids:
        queue.state(db, item_id)  # raises for an invalid id, before anything is changed

    def try_change(item_id: str) -> bool:
        try:
            return change(db, item_id)
        except QueueFull:
            return False

    if state is None:
        results = {item_id: try_change(item_id) for item_id in ids}
    else:
        results = queue.change_all(db, change_all, state=state, by=user_name(), **wanted)

    def explain(item_id: str) -> str:
        found = queue.state(db, item_id)
        if found == "dead" and done == "retried":
            return "the queue is full, or another item has its unique key"
        if found == "delayed" and done == "retried":
            return "it waits for a signal, or for jobs that have not ended"
        return "the queue has no such item" if found is None else f"it is {found}"

    echo_results(results, done, as_json, explain)
