"""The options that `configure` changes: their names, their ranges, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from fdbqueue.database.retrying import read
from fdbqueue.layout.items import decode_group_settings
from fdbqueue.operations.changes import MAX_KEPT_ATTEMPTS, MAX_TRACEBACK
from fdbqueue.operations.limits.places import MAX_SLOTS
from fdbqueue.options import GroupSettings, QueueOptions, QueueSettings
from fdbqueue.queue.arguments import (
    kept_options,
    validate_bound,
    validate_flag,
    validate_key,
    validate_options,
    validate_range,
    validate_rate,
    validate_share,
)
from fdbqueue.types import (
    Options,
    PriorityKind,
    ReadTransaction,
    ReadTransactor,
    Transaction,
    Transactor,
)

if TYPE_CHECKING:
    from fdbqueue.coordination.store import Store

_HOLDING = ("concurrency", "rate", "in_order")
"""The default settings of groups that may hold one, or let it go on."""


LIMITS = (
    *("max_size", "max_attempts", "concurrency", "keep_number", "keep_seconds"),
    *("kept_attempts", "traceback_bytes"),
)
"""The options that are numbers, by their names in Python, HTTP and JSON."""


def _validate_rate(_: str, rate: object) -> tuple[int, int] | None:
    return None if rate is None else validate_rate(rate)


_VALIDATORS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(LIMITS, validate_bound),
    "concurrency": partial(validate_bound, highest=MAX_SLOTS),
    "kept_attempts": partial(validate_range, lowest=1, highest=MAX_KEPT_ATTEMPTS),
    "traceback_bytes": partial(validate_range, lowest=0, highest=MAX_TRACEBACK),
    "paused": validate_flag,
    "rate": _validate_rate,
    "weight": validate_share,
    "in_order": validate_flag,
    "latest": validate_flag,
}
"""The functions that check the options of a queue, and the settings of a group."""


def settings_to_store(settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the stored options that the arguments of `configure` change.

    Raises:
        TypeError: There is no such option.
        ValueError: A value is out of its range.

    Example:
        >>> from datetime import timedelta
        >>> settings_to_store({"max_size": 10, "keep": timedelta(days=1)})
        {'keep_seconds': 86400, 'keep_number': None, 'max_size': 10}
    """
    validate_options(QueueSettings, settings)
    changes: dict[str, Any] = {**settings}
    stored: dict[str, Any] = {}
    if "keep" in changes:
        stored = kept_options(changes.pop("keep"))
        if not stored.keys().isdisjoint(changes):
            raise ValueError("keep stands for keep_seconds and keep_number: give it without them")
    stored |= {name: _VALIDATORS[name](name, value) for name, value in changes.items()}
    if stored.get("rate") is not None:
        number, time = stored["rate"]
        stored["rate"] = number, time / 1000
    return stored


def given_options(
    kind: str, codec: str, priorities: PriorityKind | None, options: QueueOptions
) -> Options:
    """Return the options with which a queue is opened, as its first push stores them."""
    validate_options(QueueOptions, options)
    return Options(kind, codec, priorities, **settings_to_store(options))


def group_settings(settings: GroupSettings, group: str | None) -> dict[str, Any]:
    """Return the stored settings that the arguments of `set_group` change.

    Args:
        settings: The arguments.
        group: The name of the group; an empty text for the items without one, which have only a
            weight; `None` for all groups, which cannot be paused.

    Raises:
        TypeError: There is no such setting.
        ValueError: A value is out of its range.

    Example:
        >>> group_settings({"weight": 2, "rate": (10, "1m")}, "ada")
        {'weight': 2.0, 'rate': (10, 60000)}
    """
    validate_options(GroupSettings, settings)
    stored: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "paused" and group is None and value:
            raise ValueError("paused: give the name of a group; configure pauses the queue")
        is_unset = value is None and name != "paused"
        stored[name] = None if is_unset else _VALIDATORS[name](name, value)
        if group == "" and name != "weight" and value not in (None, False):
            raise ValueError(f"{name}: the items without a group have only a weight")
    return stored


def read_group_settings(store: Store[Any], tr: ReadTransactor, group: str | None) -> GroupSettings:
    """Return what `set_group` has set for a group, or with `None` for all groups."""
    name = None if group is None else validate_key("a group", group, may_be_empty=True)
    layout = store.layout

    def body(tr: ReadTransaction) -> GroupSettings:
        stored = tr[layout.group_key(layout.group_settings, name)]
        fields: dict[str, Any] = decode_group_settings(stored.value)._asdict()
        if fields["rate"] is not None:
            fields["rate"] = fields["rate"][0], fields["rate"][1] / 1000
        fields["paused"] = fields["paused"] or None
        return cast(
            "GroupSettings", {each: fields[each] for each in fields if fields[each] is not None}
        )

    return read(tr, body)


def change_group(
    store: Store[Any], tr: Transactor, group: str | None, settings: GroupSettings
) -> None:
    """Change settings of a group, or of all of them; wake clients that wait.

    Args:
        store: The store of the queue.
        tr: A transaction or a database.
        group: The group, as for `group_settings`.
        settings: The arguments of `set_group`.
    """
    name = None if group is None else validate_key("a group", group, may_be_empty=True)
    changes = group_settings(settings, name)

    def body(tr: Transaction, now: int) -> bool:
        if changes:
            store.items.groups.set(tr, now, name, changes)
        if name is None and not changes.keys().isdisjoint(_HOLDING):
            store.items.groups.settle_all(tr, now)
        if changes.get("max_size") or changes.get("latest"):
            store.pusher.note_limited_groups(tr)
        store.options.note_limit(tr)
        return True

    store.change(tr, body)
    store.sweeper.invalidate()  # pops of this client look at once
