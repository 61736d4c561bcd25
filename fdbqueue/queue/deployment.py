"""The settings of a queue that an app declares, compared with the stored ones.

A three-way comparison, as that of `kubectl apply`: each deployment stores what the code declares
beside the options. So the next one knows which of them somebody has changed by hand since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fdbqueue.layout.values import decode_deployed, encode_deployed
from fdbqueue.options import GroupOptions, QueueLimits
from fdbqueue.queue.arguments import (
    group_settings,
    json_bytes,
    kept_options,
    settings_to_store,
    text_of_seconds,
    validate_options,
)
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.types import Keep, Options, ReadTransaction, Transaction

_OF_GROUPS = "groups."


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the code of an app and its database.

    Attributes:
        queue: The name of the queue.
        setting: An option of the queue, such as `"rate"`, a setting of all its groups, such as
            `"groups.rate"`, or a schedule, such as `"schedules.nightly"`.
        stored: The stored value, or the fields of the schedule that differ; `None` if there is
            none.
        declared: The value in the code, or the default if the code does not name it any more.
        by_hand: Whether somebody has set the stored value since the last deployment.
        is_kept: Whether the stored value stays for that reason.
    """

    queue: str
    setting: str
    stored: Any
    declared: Any
    by_hand: bool = False
    is_kept: bool = False

    def __str__(self) -> str:
        stored, declared = (_text(self.setting, each) for each in (self.stored, self.declared))
        if self.is_kept:
            change = f"stays {stored}, set by hand; the code has {declared}"
        else:
            change = f"{stored} -> {declared}"
        return f"{self.queue}: {self.setting} {change}"


def _text(setting: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        number, seconds = cast("tuple[int, float]", value)
        return f"{number}/{text_of_seconds(seconds)}"
    return text_of_seconds(value) if setting == "keep_seconds" else json_bytes(value).decode()


def declared_settings(options: QueueLimits, groups: GroupOptions) -> dict[str, Any]:
    """Return the stored form of what an app declares for a queue and all its groups."""
    validate_options(QueueLimits, options)
    validate_options(GroupOptions, groups)
    of_groups = group_settings(groups, None)
    if of_groups.get("rate") is not None:
        of_groups["rate"] = of_groups["rate"][0], of_groups["rate"][1] / 1000
    named = {_OF_GROUPS + name: value for name, value in of_groups.items()}
    return {**settings_to_store(options), **named}


def compare(
    queue: BaseQueue[Any],
    tr: ReadTransaction,
    name: str,
    declared: Mapping[str, Any],
    keep: Keep | None,
    force: bool,
) -> list[Difference]:
    """Return how the stored settings differ from the declared ones.

    `keep` is what the app gives to the queues that it creates.
    """
    before, options = decode_deployed(tr[store_of(queue).layout.deployed].value), queue.options(tr)
    of_groups = {_OF_GROUPS + each: value for each, value in queue.group_settings(tr).items()}
    new = Options(options.kind, options.codec, options.priorities)
    created = Options(options.kind, options.codec, options.priorities, **kept_options(keep))
    found: list[Difference] = []
    for setting in {**before, **declared}:
        stored = of_groups.get(setting, getattr(options, setting, None))
        if setting == "keep_number":
            stored = stored or None  # 0 is stored if no items are kept
        unset = [getattr(each, setting, None) for each in (created, new)]
        wanted = declared.get(setting, unset[0])
        if stored != wanted:
            by_hand = stored not in ([before[setting]] if setting in before else unset)
            is_kept = by_hand and not force
            found.append(Difference(name, setting, stored, wanted, by_hand, is_kept))
    return found


def store_settings(
    queue: BaseQueue[Any],
    tr: Transaction,
    declared: Mapping[str, Any],
    differences: list[Difference],
) -> None:
    """Store the declared settings that are not kept, and remember all of them."""
    store = store_of(queue)
    store.options.agree(tr)
    changes = {each.setting: each.declared for each in differences if not each.is_kept}
    of_groups = {
        each.removeprefix(_OF_GROUPS): changes.pop(each)
        for each in [*changes]
        if each.startswith(_OF_GROUPS)
    }
    settings: Any = changes
    queue.configure(tr, **settings)
    if of_groups:
        settings = of_groups
        queue.set_group(tr, None, **settings)
    stored = encode_deployed(declared)
    if tr[store.layout.deployed].value != stored:
        tr[store.layout.deployed] = stored
