"""Commands for the groups of a queue: group ls, set, pause, resume, clear, cancel and retry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click
from click.types import FuncParamType

from fdbqueue.queue.arguments import seconds_of_text, text_of_seconds, validate_share
from fdbqueue.queue.base import GroupInfo
from fdbqueue.queue.overview import group_as_json
from fdbqueue.queue.settings import LIMITS
from fdbqueue.types import Database

from .common import (
    Group,
    any_queue,
    bound_or_none,
    command_options,
    confirm,
    echo,
    echo_results,
    json_line,
    printable,
    queue_argument,
    rate_or_none,
    usage_errors,
    user_name,
)

_PAGE = 1000
_MAX_CONCURRENCY = LIMITS["concurrency"].highest
HELD_BY = {
    "queue_paused": "The queue is paused.",
    "queue_concurrency": "As many items of the queue are claimed as its concurrency allows.",
    "queue_rate": "As many items of the queue have started as its rate allows.",
    "group_paused": "Its group is paused.",
    "group_concurrency": "As many items of its group are claimed as their concurrency allows.",
    "group_rate": "As many items of its group have started as their rate allows.",
    "group_retry": "A failed item of its group, which waits for its next attempt, comes first.",
}
"""Why a ready item is not handed out, by `ItemInfo.held_by`."""

_group_argument = click.argument("name", metavar="GROUP")


@click.group(cls=Group)
def group() -> None:
    """List, limit and pause the groups of a queue, which share what is taken from it.

    The groups of a task queue are its agents, which have no share: tasks have their own order.

    \b
    Example:
      fdbq push jobs '"hello"' --group ada
      fdbq group set jobs ada --weight 2 --concurrency 10
      fdbq group ls jobs
    """


@group.command()
@queue_argument
@command_options()
def ls(db: Database, queue: str, as_json: bool) -> None:
    """List the groups of QUEUE that have ready, delayed or claimed items or settings, by name.

    The settings of all groups come first, as `(all groups)`, with --json as the group `null`. The
    items without a group follow as `(none)`. `at most` is the limit that `--size` sets to the
    ready, delayed and claimed items of a group.

    \b
    Example:
      fdbq group ls jobs
    """
    found = _queue(db, queue)
    after: str | None = None
    for_all = found.group_settings(db)
    if for_all:
        echo(json_line({"name": None, **for_all}) if as_json else _line_for_all(for_all))
    while page := found.groups(db, after=after, limit=_PAGE):
        for each in page:
            line = json_line(group_as_json(each)) if as_json else _line(each, found.kind == "task")
            echo(line)
        after = page[-1].name
    if after is None and not for_all and not as_json:
        echo("no groups")


def _queue(db: Database, name: str) -> Any:
    return any_queue(db, name, must_exist=True)


def _line_for_all(settings: Mapping[str, Any]) -> str:
    shown = dict(settings)
    if "rate" in shown:
        shown["rate"] = shown["rate"][0], text_of_seconds(shown["rate"][1])
    return "  ".join(["(all groups)", *_set_text(False, shown)])


def _line(info: GroupInfo, is_agent: bool) -> str:
    of = "" if info.concurrency is None else f" of {info.concurrency}"
    shown = [printable(info.name) or "(none)"]
    if info.ready is not None:
        shown.append(f"{info.ready} ready")
    if info.claimed is not None:
        shown.append(f"{info.claimed}{of} claimed")
    if info.delayed:
        shown.append(f"{info.delayed} delayed")
    if info.latest:
        shown.append("only the latest waits")
    elif info.max_size is not None:
        shown.append(f"at most {info.max_size}")
    if info.concurrency == 1 and not info.in_order and not is_agent:
        shown.append("not in order")
    if info.rate is not None:
        shown.append(f"{info.rate[0]} in {text_of_seconds(info.rate[1])}")
    if info.weight != 1:
        shown.append(f"weight {info.weight:g}")
    if info.held_by == "paused":
        shown.append("paused")
    elif info.held_until is not None:
        shown.append(f"held back by its rate until {info.held_until.isoformat(timespec='seconds')}")
    elif info.held_by == "retry":
        shown.append("waits for the next attempt of a failed item")
    elif info.held_by is not None:
        shown.append(f"held back by its {info.held_by}")
    return "  ".join(shown)


def _weight(text: str) -> float:
    """Return a weight; 0 for `none`."""
    if text == "none":
        return 0
    with suppress(ValueError):
        return validate_share("weight", float(text))
    raise click.BadParameter(f"{text[:100]!r} is not a number from 0.001 to 1,000 or `none`")


_FLAGS = {
    **{"weight": "--weight", "concurrency": "--concurrency", "rate": "--rate"},
    **{"in_order": "--in-order", "max_size": "--size", "latest": "--latest"},
}
"""The options of `fdbq group set`, by the settings."""


@group.command("set")
@queue_argument
@click.argument("name", metavar="[GROUP]", required=False)
@click.option(
    "--weight",
    metavar="N|none",
    type=FuncParamType(_weight),
    help="Share of what is taken, in proportion to others, from 0.001 to 1,000.",
)
@click.option(
    "--concurrency",
    metavar="N|none",
    type=FuncParamType(bound_or_none(_MAX_CONCURRENCY)),
    help=f"Maximum number of its items claimed at a time, up to {_MAX_CONCURRENCY:,}.",
)
@click.option(
    "--rate",
    metavar="N/DURATION|none",
    type=FuncParamType(rate_or_none),
    help="Maximum number of its items started in any window of this time, such as 100/1m.",
)
@click.option(
    "--in-order/--not-in-order",
    default=None,
    help="With a concurrency of 1: whether a failed item is tried again before later ones.",
)
@click.option(
    "--size",
    metavar="N|none",
    type=FuncParamType(bound_or_none()),
    help="Maximum number of its items, including delayed and claimed ones.",
)
@click.option(
    "--latest/--not-latest", default=None, help="Whether a push cancels its waiting items."
)
@click.option("--reset", is_flag=True, help="First forget all that was set.")
@command_options()
def set_(
    db: Database,
    queue: str,
    name: str | None,
    weight: float | None,
    concurrency: int | None,
    rate: tuple[int, str] | tuple[()] | None,
    in_order: bool | None,
    size: int | None,
    latest: bool | None,
    reset: bool,
    as_json: bool,
) -> None:
    """Set the weight and the limits of GROUP, or without GROUP those of all groups of QUEUE.

    `none` removes what was set, so that the setting of all groups holds again. If GROUP is "", the
    weight is that of the items without a group. Agents of a task queue have --concurrency and
    --rate.

    \b
    Example:
      fdbq group set jobs ada --weight 2
      fdbq group set jobs ada --weight none
      fdbq group set jobs --concurrency 10 --rate 100/1m --size 1000
    """
    given = dict(zip(_FLAGS, (weight, concurrency, rate, in_order, size, latest)))
    changes: dict[str, Any] = dict.fromkeys(given) if reset else {}
    for setting, value in given.items():
        if value is not None:
            changes[setting] = value if isinstance(value, bool) else value or None
    if not changes:
        raise click.UsageError(
            "give --weight, --concurrency, --rate, --in-order, --size, --latest or --reset"
        )
    with usage_errors(_FLAGS):
        _queue(db, queue).set_group(db, name, **changes)
    if as_json:
        if rate:
            changes["rate"] = rate[0], seconds_of_text(rate[1])
        echo(json_line({"queue": queue, "group": name, **changes}))
        return
    subject = "all groups" if name is None else printable(name) or "(none)"
    echo(f"{subject} in {queue}: {', '.join(_set_text(reset, given))}")


def _set_text(reset: bool, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was set, in words."""
    if reset:
        yield "reset"
    for name, value in given.items():
        if isinstance(value, bool):
            yield f"{'' if value else 'not '}{name.replace('_', ' ')}"
        elif value is not None:
            yield f"{_FLAGS[name][2:]} {_value_text(value)}"


def _value_text(value: float | tuple[int, str] | tuple[()]) -> str:
    if not value:
        return "none"
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


@group.command()
@queue_argument
@_group_argument
@command_options()
def pause(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Hand out no more items of GROUP until it is resumed.

    \b
    Example:
      fdbq group pause jobs ada
    """
    _pause(db, queue, name, True, as_json)


@group.command()
@queue_argument
@_group_argument
@command_options()
def resume(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Hand out the items of GROUP again.

    \b
    Example:
      fdbq group resume jobs ada
    """
    _pause(db, queue, name, False, as_json)


def _pause(db: Database, queue: str, name: str, paused: bool, as_json: bool) -> None:
    with usage_errors():
        _queue(db, queue).set_group(db, name, paused=paused)
    result = json_line({"queue": queue, "group": name, "paused": paused})
    verb = "paused" if paused else "resumed"
    echo(result if as_json else f"{verb} {printable(name)} in {queue}")


@group.command()
@queue_argument
@_group_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@command_options()
def clear(db: Database, queue: str, name: str, yes: bool, as_json: bool) -> None:
    """Remove the items of GROUP in all states, after asking for confirmation.

    Claimed items, dead letters and done items are removed too. The settings of the group stay.

    \b
    Example:
      fdbq group clear jobs ada --yes
    """
    target = _queue(db, queue)
    if not yes:
        confirm(f"Remove all items of the group {name!r} from {queue!r}?")
    with usage_errors():
        results = target.clear_group(db, name)
    echo_results(results, "removed", as_json, lambda _: "a pop is taking it, or it has ended")


@group.command()
@queue_argument
@_group_argument
@command_options()
def cancel(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Cancel the jobs of GROUP, as `fdbq cancel` does: those that wait, and those that run.

    \b
    Example:
      fdbq group cancel jobs ada
    """
    with usage_errors():
        results = _queue(db, queue).cancel_group(db, name)
    echo_results(results, "cancelled", as_json, lambda _: "it has ended")


@group.command()
@queue_argument
@_group_argument
@command_options()
def retry(db: Database, queue: str, name: str, as_json: bool) -> None:
    """Retry the dead letters of GROUP.

    Exits with code 1 if the queue has no room for one, or another item has taken its unique key.

    \b
    Example:
      fdbq group retry jobs ada
    """
    with usage_errors():
        results = _queue(db, queue).retry_group(db, name, by=user_name())
    echo_results(results, "retried", as_json, lambda _: "the queue is full, or its key is taken")
