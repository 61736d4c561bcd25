"""The commands `fdbq group`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from fdbqueue import existing_queue
from fdbqueue.options import GroupOptions, GroupSettings
from fdbqueue.queue.arguments import seconds_of_text
from fdbqueue.queue.base import GroupInfo
from fdbqueue.queue.overview import as_json
from fdbqueue.types import Database

from .changes import user_name
from .command import QUEUE, YES, Group, command
from .options import argument, chosen, options_of
from .output import confirm, printable, report, report_each, say, show, value_text, wants_json

_PAGE = 1000

_GROUP = argument("name", metavar="GROUP")
_FLAGS = {name: "--" + name.replace("_", "-") for name in GroupSettings.__annotations__}
_FLAGS["max_size"] = "--size"

_STATES = ("ready", "claimed", "delayed")
_UNSET = dict.fromkeys(_FLAGS, (None, False)) | {"weight": (1,), "in_order": (None, True)}
"""Settings that a list omits."""


@click.group(cls=Group)
def group() -> None:
    """List, limit and pause the groups of a queue, which take turns.

    \b
    Example:
      fdbq group set jobs ada --weight 2 --concurrency 10
    """


@command(QUEUE, group=group)
def ls(db: Database, queue: str) -> None:
    """List the groups of QUEUE that have unfinished items or settings, by name.

    The defaults of all groups come first, as `(all groups)`, with --json as the group `null`; then
    the weight of items without a group, as `(none)` and `""`.

    \b
    Example:
      fdbq group ls jobs
    """
    found = existing_queue(db, queue)
    after: str | None = None
    shared: dict[str | None, Any] = {each: found.group_settings(db, each) for each in (None, "")}
    for name, settings in shared.items():
        if settings:
            title = "(all groups)" if name is None else "(none)"
            show({"name": name, **settings}, "  ".join([title, *_set_text(settings)]))
    while page := found.groups(db, after=after, limit=_PAGE):
        for each in page:
            show(as_json(each), _line(each))
        after = page[-1].name
    if after is None and not any(shared.values()) and not wants_json():
        say("no groups")


def _line(info: GroupInfo) -> str:
    fields = as_json(info)
    numbers = [f"{fields[state]} {state}" for state in _STATES]
    settings = {name: fields[name] for name in _FLAGS if fields[name] not in _UNSET[name]}
    if info.concurrency != 1:
        settings.pop("in_order", None)  # only one at a time is in order
    line = [printable(info.name), *numbers, *_set_text(settings)]
    if info.held_until is not None:
        line.append(f"held back by its rate until {info.held_until.isoformat(timespec='seconds')}")
    elif info.held_by == "retry":
        line.append("waits for the next attempt of a failed item")
    elif info.held_by == "concurrency":
        line.append("held back by its concurrency")
    return "  ".join(line)


@command(
    QUEUE,
    argument("name", metavar="[GROUP]", required=False),
    *options_of(GroupOptions, GroupSettings, flags=_FLAGS, omit=("paused",)),
    name="set",
    group=group,
)
def set_group(
    db: Database, queue: str, name: str | None, *, reset: bool = False, **settings: Any
) -> None:
    """Set the weight and the limits of GROUP; without GROUP, the defaults of all groups of QUEUE.

    `none` restores the default. An empty GROUP sets the weight of items without a group.

    \b
    Example:
      fdbq group set jobs --concurrency 10 --rate 100/1m --size 1000

    Options:
        reset: First forget all earlier settings.
    """
    given = chosen(settings)
    changes: dict[str, Any] = {**(dict.fromkeys(settings) if reset else {}), **given}
    if not changes:
        flags = [_FLAGS[name] for name in settings]
        raise click.UsageError(f"give {', '.join(flags)} or --reset")
    existing_queue(db, queue).set_group(db, name, **changes)
    if changes.get("rate"):
        changes["rate"] = changes["rate"][0], seconds_of_text(changes["rate"][1])
    subject = "all groups" if name is None else printable(name) or "(none)"
    told = [*(["reset"] if reset else []), *_set_text(given)]
    report({"queue": queue, "group": name, **changes}, f"{subject} in {queue}: {', '.join(told)}")


def _set_text(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, bool):
            yield f"{'' if value else 'not '}{name.replace('_', ' ')}"
        else:
            yield f"{_FLAGS[name][2:]} {value_text(value)}"


@command(QUEUE, _GROUP, group=group)
def pause(db: Database, queue: str, name: str) -> None:
    """Hand out no more items of GROUP until it is resumed.

    \b
    Example:
      fdbq group pause jobs ada
    """
    _pause(db, queue, name, "paused")


@command(QUEUE, _GROUP, group=group)
def resume(db: Database, queue: str, name: str) -> None:
    """Hand out the items of GROUP again.

    \b
    Example:
      fdbq group resume jobs ada
    """
    _pause(db, queue, name, "resumed")


def _pause(db: Database, queue: str, name: str, done: str) -> None:
    paused = done == "paused"
    existing_queue(db, queue).set_group(db, name, paused=paused)
    fields = {"queue": queue, "group": name, "paused": paused}
    report(fields, f"{done} {printable(name)} in {queue}")


@command(QUEUE, _GROUP, YES, group=group)
def clear(db: Database, queue: str, name: str, yes: bool) -> None:
    """Remove the items of GROUP in all states, after asking for confirmation.

    The group keeps its settings.

    \b
    Example:
      fdbq group clear jobs ada --yes
    """
    target = existing_queue(db, queue)
    confirm(yes, f"Remove all items of the group {name!r} from {queue!r}?")
    why = "a pop is taking it, or it has ended"
    _change(db, target, "clear", "removed", why, group=name)


@command(QUEUE, _GROUP, group=group)
def cancel(db: Database, queue: str, name: str) -> None:
    """Cancel the waiting and running jobs of GROUP, as `fdbq cancel` does.

    \b
    Example:
      fdbq group cancel jobs ada
    """
    _change(db, existing_queue(db, queue), "cancel", "cancelled", "it has ended", group=name)


@command(QUEUE, _GROUP, group=group)
def retry(db: Database, queue: str, name: str) -> None:
    """Retry the dead letters of GROUP.

    Exits with code 1 if the queue has no room for one, or another item has its unique key.

    \b
    Example:
      fdbq group retry jobs ada
    """
    given = {"state": "dead", "group": name, "by": user_name()}
    why = "the queue is full, or its key is taken"
    _change(db, existing_queue(db, queue), "retry", "retried", why, **given)


def _change(db: Database, queue: Any, change: str, done: str, why: str, **options: str) -> None:
    results = queue.change_all(db, change, **options)
    report_each(results, done, lambda _: why)
