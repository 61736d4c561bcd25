"""The settings of a queue that an app declares, compared with the stored ones.

A three-way comparison, as that of `kubectl apply`: each deployment stores what the code declares.
So the next one knows which options somebody has changed by hand since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from fdbqueue.database.retrying import read
from fdbqueue.layout.values import decode_deployed, encode_deployed
from fdbqueue.operations.shards import OF_ONE_QUEUE, clash
from fdbqueue.queue.arguments import OF_GROUPS, json_bytes, text_of_seconds
from fdbqueue.queue.base import change_once, store_of
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.queue.schedules import Declared, declare
from fdbqueue.types import Database, Options, Transaction

_NEW = Options("priority", "json", int)
_BY_HAND = "set by hand"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the code of an app and its database.

    Attributes:
        queue: The name of the queue.
        setting: An option of the queue, such as `"rate"`, a setting of all its groups, such as
            `"groups.rate"`, or a schedule, such as `"schedules.nightly"`.
        stored: The stored value, or the fields of the schedule that differ, or `None`.
        declared: The value in the code, or the default.
        reason: Why the stored value stays: somebody has set it by hand since the last deployment,
            higher shards hold items, or a queue with several shards has no such option. `None` if
            it changes.
    """

    queue: str
    setting: str
    stored: Any
    declared: Any
    reason: str | None = None

    def __str__(self) -> str:
        stored, declared = (_text(self.setting, each) for each in (self.stored, self.declared))
        change = f"{stored} -> {declared}"
        if self.reason is not None:
            change = f"stays {stored}, {self.reason}; the code has {declared}"
        return f"{self.queue}: {self.setting} {change}"


def _text(setting: str, value: Any) -> str:
    if issubclass(type(value), tuple):  # pyright does not know the items after `isinstance`
        return f"{value[0]}/{text_of_seconds(value[1])}"
    if setting == "keep_seconds" and value is not None:
        return text_of_seconds(value)
    return "none" if value in (None, {}) else json_bytes(value).decode()


def _changes(differences: Iterable[Difference]) -> dict[str, Any]:
    return {each.setting: each.declared for each in differences if each.reason is None}


def _agreeing(options: Options, differences: list[Difference]) -> list[Difference]:
    """Return the differences; shards, and options that exclude them, stay if they would clash."""
    of_shards = [each for each in differences if each.setting in ("shards", *OF_ONE_QUEUE)]
    reason = clash(replace(options, **_changes(of_shards)))
    kept = [each for each in of_shards if reason and not each.reason and each.declared is not None]
    return [replace(each, reason=reason) if each in kept else each for each in differences]


@dataclass(frozen=True, slots=True)
class Deployment:
    """The declarations in the code of an app.

    Attributes:
        settings: The settings of queues, by queue.
        schedules: The schedules, by queue and name.
        created: The options of the queues that the app creates.
        force: Whether to replace values that were set by hand.
        check: Whether to store nothing.
    """

    settings: Mapping[str, dict[str, Any]]
    schedules: Mapping[str, Mapping[str, Declared]]
    created: Options
    force: bool
    check: bool

    def store(self, tr: Transaction, name: str, queue: PriorityQueue[Any]) -> list[Difference]:
        """Store what is declared for a queue; return what differed."""
        found: list[Difference] = []
        if name in self.settings:
            found += self.store_settings(tr, name, queue)
        if name in self.schedules:
            for each, *values in declare(queue.schedules, tr, self.schedules[name].values()):
                found.append(Difference(name, f"schedules.{each}", *values))
        return found

    def store_settings(
        self, tr: Transaction, name: str, queue: PriorityQueue[Any]
    ) -> list[Difference]:
        """Store the settings of a queue, and remember them; return what differed."""
        store, declared = store_of(queue), self.settings[name]
        before, options = decode_deployed(tr[store.layout.deployed].value), store.options.agree(tr)
        of_groups = {OF_GROUPS + each: value for each, value in queue.group_settings(tr).items()}
        found: list[Difference] = []
        for setting in {**before, **declared}:
            stored = of_groups.get(setting, getattr(options, setting, None))
            if setting == "keep_number":
                stored = stored or None  # 0 is stored if no items are kept
            # Another program may have created the queue, with the defaults of the library.
            unset = [getattr(each, setting, None) for each in (self.created, _NEW)]
            wanted = declared.get(setting, unset[0])
            if stored != wanted:
                by_hand = stored not in ([before[setting]] if setting in before else unset)
                reason = _BY_HAND if by_hand and not self.force else None
                if setting == "shards" and reason is None:
                    reason = store.items.shards.in_the_way(tr.snapshot, options, wanted or 1)
                found.append(Difference(name, setting, stored, wanted, reason))
        found = _agreeing(options, found)
        if self.check:  # a handle remembers what it has changed
            return found
        changes: Any = _changes(found)
        of_all = {each: changes.pop(each) for each in [*changes] if each.startswith(OF_GROUPS)}
        queue.configure(tr, **changes)
        if of_all:
            changes = {each.removeprefix(OF_GROUPS): value for each, value in of_all.items()}
            queue.set_group(tr, None, **changes)
        waiting = [each for each in found if each.reason not in (None, _BY_HAND)]
        # As if the code had them, so that a later deployment does not take them for set by hand.
        remembered = declared | {each.setting: each.stored for each in waiting}
        if before != remembered:
            tr[store.layout.deployed] = encode_deployed(remembered)
        return found


def deploy(
    db: Database, queues: Mapping[str, PriorityQueue[Any]], deployment: Deployment
) -> list[Difference]:
    """Store what an app declares for some queues, in one transaction."""

    def body(tr: Transaction) -> list[Difference]:
        found = [deployment.store(tr, *of) for of in queues.items()]
        if deployment.check:
            tr.reset()
        return [*chain(*found)]

    if not queues:
        return []
    if deployment.check:
        return read(db, body)
    return change_once(next(iter(queues.values())), db, body)
