"""The options that `configure` changes: their names, their ranges, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from fdbqueue.database.retrying import read
from fdbqueue.layout.items import decode_group_settings
from fdbqueue.operations.failures import MAX_KEPT_ATTEMPTS, MAX_TRACEBACK
from fdbqueue.operations.limits.slots import MAX_SLOTS
from fdbqueue.queue.arguments import (
    MAX_INTEGER,
    kept_options,
    validate_bound,
    validate_flag,
    validate_key,
    validate_range,
    validate_rate,
    validate_share,
)
from fdbqueue.types import (
    Duration,
    Keep,
    ReadTransaction,
    ReadTransactor,
    Transaction,
    Transactor,
)

if TYPE_CHECKING:
    from fdbqueue.coordination.store import Store

_HOLDING = ("concurrency", "rate", "in_order")
"""The default settings of groups that may hold one, or let it go on."""


class Settings(TypedDict, total=False):
    """The options that `configure` changes, which describes them."""

    max_size: int | None
    max_attempts: int | None
    concurrency: int | None
    agent_concurrency: int | None
    paused: bool
    rate: tuple[int, Duration] | None
    keep: Keep | None
    keep_seconds: int | None
    keep_number: int | None
    kept_attempts: int
    traceback_bytes: int


class GroupSettings(TypedDict, total=False):
    """The settings of a group that `set_group` changes, which describes them."""

    weight: float | None
    concurrency: int | None
    paused: bool
    rate: tuple[int, Duration] | None
    in_order: bool | None
    max_size: int | None
    latest: bool | None


OF_AGENTS = ("concurrency", "rate", "paused")
"""The settings of a group that an agent of a task queue has."""


class Limit(NamedTuple):
    """An option: its name and help in `fdbq limit`, and the numbers that it accepts.

    `can_be_none` is true if it also accepts `None`, for no limit.
    """

    flag: str
    help: str
    lowest: int = 1
    highest: int = MAX_INTEGER
    can_be_none: bool = True


LIMITS = {
    "max_size": Limit("size", "Maximum number of items, including delayed and claimed ones."),
    "max_attempts": Limit(
        "attempts", "Number of times an item may be claimed before it becomes a dead letter."
    ),
    "concurrency": Limit(
        "concurrency",
        f"Maximum number of items claimed at a time, up to {MAX_SLOTS:,}.",
        highest=MAX_SLOTS,
    ),
    "agent_concurrency": Limit(
        "agent-concurrency",
        f"Maximum number of tasks of one agent claimed at a time, up to {MAX_SLOTS:,}.",
        highest=MAX_SLOTS,
    ),
    "keep_number": Limit("keep-last", "Number of the newest done items to keep."),
    "keep_seconds": Limit("keep-for", "Time for which done items are kept, such as 7d."),
    "kept_attempts": Limit(
        "keep-attempts",
        "Number of the last failed attempts to keep of an item.",
        highest=MAX_KEPT_ATTEMPTS,
        can_be_none=False,
    ),
    "traceback_bytes": Limit(
        "keep-traceback",
        "Number of bytes to keep from the end of a traceback.",
        lowest=0,
        highest=MAX_TRACEBACK,
        can_be_none=False,
    ),
}
"""The options that are numbers, by their names in Python, HTTP and JSON.

Their defaults are those of `fdbqueue.types.Options`.
"""


def _validated(name: str, value: object) -> object:
    """Return what to store of an option; raise `TypeError` for an unknown one, or `ValueError`."""
    if name == "paused":
        return validate_flag(name, value)
    if name == "rate":
        number, time = validate_rate(value) if value is not None else (0, 0)
        return None if value is None else (number, time / 1000)
    if name not in LIMITS:
        names = ", ".join(["keep", *LIMITS, "paused", "rate"])
        raise TypeError(f"there is no option {name!r}: {names}")
    limit = LIMITS[name]
    if limit.can_be_none:
        return validate_bound(name, value, limit.highest)
    return validate_range(name, value, limit.lowest, limit.highest)


def settings_to_store(settings: Mapping[str, Any], *, has_agents: bool) -> dict[str, Any]:
    """Return the stored options that the arguments of `configure` change.

    Args:
        settings: The arguments.
        has_agents: Whether the queue is a task queue.

    Raises:
        TypeError: There is no such option.
        ValueError: A value is out of its range, or the queue has no such option.

    Example:
        >>> from datetime import timedelta
        >>> settings_to_store({"max_size": 10, "keep": timedelta(days=1)}, has_agents=False)
        {'keep_seconds': 86400, 'keep_number': None, 'max_size': 10}
    """
    changes = dict(settings)
    stored: dict[str, Any] = {}
    if "keep" in changes:
        stored = kept_options(changes.pop("keep"))
        if not stored.keys().isdisjoint(changes):
            raise ValueError("keep stands for keep_seconds and keep_number: give it without them")
    for name, value in changes.items():
        if name == "agent_concurrency" and not has_agents:
            if value is None:
                continue
            raise ValueError("agent_concurrency: only a task queue has agents")
        stored[name] = _validated(name, value)
    return stored


_OF_GROUP: dict[str, Callable[[str, Any], object]] = {
    "weight": validate_share,
    "concurrency": partial(validate_bound, highest=MAX_SLOTS),
    "paused": validate_flag,
    "rate": lambda _, rate: validate_rate(rate),
    "in_order": validate_flag,
    "max_size": validate_bound,
    "latest": validate_flag,
}
"""The functions that check the settings of a group, but for `None`."""


def group_settings(
    settings: Mapping[str, Any], group: str | None, *, has_agents: bool = False
) -> dict[str, Any]:
    """Return the stored settings that the arguments of `set_group` change.

    Args:
        settings: The arguments.
        group: The name of the group; an empty text for the items without one, which have only a
            weight; `None` for all groups, which cannot be paused.
        has_agents: Whether the groups are the agents of a task queue.

    Raises:
        TypeError: There is no such setting.
        ValueError: A value is out of its range.

    Example:
        >>> group_settings({"weight": 2, "rate": (10, "1m")}, "ada")
        {'weight': 2.0, 'rate': (10, 60000)}
    """
    stored: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in _OF_GROUP:
            raise TypeError(f"there is no setting {name!r}: {', '.join(_OF_GROUP)}")
        if name == "paused" and group is None and value:
            raise ValueError("paused: give the name of a group; configure pauses the queue")
        is_unset = value is None and name != "paused"
        stored[name] = None if is_unset else _OF_GROUP[name](name, value)
        if has_agents and value not in (None, False):
            if group == "":
                raise ValueError(f"{name}: tasks without an agent have no settings")
            if name not in OF_AGENTS:
                raise ValueError(
                    f"{name}: an agent of a task queue has only {', '.join(OF_AGENTS)}"
                )
        if group == "" and name != "weight" and value not in (None, False):
            raise ValueError(f"{name}: the items without a group have only a weight")
    return stored


def read_group_settings(store: Store[Any], tr: ReadTransactor, group: str | None) -> GroupSettings:
    """Return what `set_group` has set for a group, or with `None` for all groups."""
    name = None if group is None else validate_key("a group", group, may_be_empty=True)
    layout, has_agents = store.layout, store.given_options.kind == "task"

    def body(tr: ReadTransaction) -> GroupSettings:
        stored = tr[layout.group_key(layout.group_settings, name)]
        options = store.reads.options(tr) if has_agents and name is None else None
        fields: dict[str, Any] = decode_group_settings(stored.value)._asdict()
        if fields["rate"] is not None:
            fields["rate"] = fields["rate"][0], fields["rate"][1] / 1000
        if options is not None:
            fields["concurrency"] = options.agent_concurrency
        fields["paused"] = fields["paused"] or None
        return cast(
            "GroupSettings", {each: fields[each] for each in fields if fields[each] is not None}
        )

    return read(tr, body)


def change_group(
    store: Store[Any], tr: Transactor, group: str | None, settings: Mapping[str, Any]
) -> None:
    """Change settings of a group, of an agent, or of all of them; wake clients that wait.

    Args:
        store: The store of the queue.
        tr: A transaction or a database.
        group: The group, as for `group_settings`.
        settings: The arguments of `set_group`.
    """
    name = None if group is None else validate_key("a group", group, may_be_empty=True)
    has_agents = store.given_options.kind == "task"
    changes = group_settings(settings, name, has_agents=has_agents)
    options: dict[str, Any] = {}
    if has_agents and name is None and "concurrency" in changes:
        options["agent_concurrency"] = changes.pop("concurrency")
    looked_for = {*changes} if has_agents else {"max_size", "latest"}

    def body(tr: Transaction, now: int) -> bool:
        if changes:
            store.items.groups.set(tr, now, name, changes)
        if name is None and not changes.keys().isdisjoint(_HOLDING):
            store.items.groups.settling.begin(tr, now)
        if any(changes.get(setting) for setting in looked_for):
            store.pusher.note_limited_groups(tr)
        if options:
            store.pusher.set_options(tr, now, options)
        store.options.note_limit(tr)
        return True

    store.change(tr, body)
    store.sweeper.invalidate()  # pops of this client look at once
