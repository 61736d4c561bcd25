"""The options of calls, each declared and described once.

Signatures take them by `Unpack`. HTTP bodies and the flags of `fdbq` have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypedDict

from fdbqueue.types import (
    Duration,
    Group,
    Item,
    Keep,
    Missed,
    Overlap,
    Priority,
    Task,
    Unique,
    UniqueUntil,
)

__all__ = [
    "Filters",
    "GroupOptions",
    "GroupSettings",
    "JobOptions",
    "PushManyOptions",
    "PushOptions",
    "QueueLimits",
    "QueueOptions",
    "QueueSettings",
    "ScheduleOptions",
    "Selecting",
    "TaskChanges",
    "TaskOptions",
    "UpdateOptions",
]


class _EveryPush(TypedDict, total=False):
    delay: Duration | None
    at: datetime | None
    ttl: Duration | None
    unique_until: UniqueUntil | None
    unique_for: Duration | None
    replace: bool
    at_most: Duration | None


class _GroupedPush(_EveryPush, total=False):
    group: str | None


class PushOptions(_GroupedPush, total=False):
    """The options of a push. Times are measured by the clocks of clients.

    Attributes:
        group: Group of the item, such as a customer's name: 1 to 255 bytes of text. Items without
            a group form another.
        cost: Weight of the item in its group's share, from 0.001 to 1,000; by default 1.
        delay: Seconds, from 0, until the item is available, ahead of items of its priority that
            were pushed after it.
        at: A `datetime` with a time zone, instead of `delay`; at most
            9999-12-31T23:59:59.999+00:00.
        ttl: Seconds, over 0, after which the item is dropped if no client has taken it.
        unique: A key, 1 to 255 bytes of text. If an unfinished item (ready, delayed or claimed)
            has it, nothing is stored, and the call returns that item with `is_new` false.
        unique_until: `"claimed"` frees the key once a client claims or pops the item; by default
            `"ended"`.
        unique_for: Seconds, over 0, from the push until the key is free, even if the item ends
            earlier. An ended item that is not kept is returned with the given value.
        replace: Whether an item that waits and has the key gets the value and the time of this
            push. The key is free as with `unique_until="claimed"`. An item that returns takes the
            key again if it is free and its job has no stored steps; as a retry, it keeps its time.
        at_most: Seconds, from 0, after the first push from which `replace` does not postpone the
            item any more; by default no limit.
    """

    cost: float
    unique: str | None


class _Waiting(TypedDict, total=False):
    group: str | None
    delay: Duration | None
    at: datetime | None


class UpdateOptions(_Waiting, total=False):
    """The changes of `update`, besides the value. A field that is left out stays.

    Attributes:
        priority: A priority of the queue's type. The item goes behind the last one of it.
        group: Group of the item, or `None` for none. It goes behind the last item of it.
        delay: Seconds, from 0, from now until the item is available.
        at: A `datetime` with a time zone, instead of `delay`.
    """

    priority: Priority


class PushManyOptions(_GroupedPush, total=False):
    """The options of a push of several values: `PushOptions`, and these.

    Attributes:
        unique: A unique key, or `None`, for each value.
        groups: A group, or `None`, for each value, instead of `group`.
        as_many_as_fit: If the queue lacks room, push the first values that fit, perhaps none,
            instead of raising `QueueFull`.
    """

    cost: float
    unique: Iterable[str | None] | None
    groups: Iterable[str | None] | None
    as_many_as_fit: bool


class TaskFields(TypedDict, total=False):
    """The fields of a task, except for its payload.

    Attributes:
        priority: From 1 (`CRITICAL`) to 5 (`DEFERRED`); by default 3 (`MEDIUM`).
        deadline: A `datetime` with a time zone; by default `None`.
        cost: A finite number from 0; by default 0. It orders tasks, and does not count in a
            group's share.
        agent_name: Agent that is to do the task: 1 to 255 bytes of text, or `None`.
        client_id: Client that owns the task: 1 to 255 bytes of text, or `None`.
    """

    priority: int
    deadline: datetime | None
    cost: float
    agent_name: str | None
    client_id: str | None


class TaskOptions(TaskFields, _GroupedPush, total=False):
    """The `TaskFields`, and the `PushOptions` that tasks have.

    Attributes:
        unique: As in `PushOptions`; the call returns the id of the task that has the key.
    """

    unique: str | None


class TaskChanges(TaskFields, _Waiting, total=False):
    """The changes of `TaskQueue.update`: the `TaskFields`, and `UpdateOptions`.

    Attributes:
        payload: A JSON value.
    """

    payload: Any


class JobOptions(_EveryPush, total=False):
    """The options of the push of a job: `PushOptions`, and these.

    `None` stands for the default or the declared value.

    Attributes:
        queue: Name of the queue; by default `"jobs"`.
        priority: The lowest runs first; by default 0.
        group: Name of the group, or a function of the job's arguments that returns one or `None`.
        unique: A unique key, a function of the job's arguments that returns one or `None`, or
            `True` for a key made from the job's name and all arguments.
    """

    queue: str | None
    priority: int | None
    group: Group | None
    cost: float | None
    unique: Unique | None


class QueueOptions(TypedDict, total=False):
    """The options with which a queue is opened, and which `configure` changes.

    Attributes:
        max_size: Maximum number of ready, delayed and claimed items, from 1; `None` for no
            limit. Items beyond a lower limit stay in the queue.
        max_attempts: Number of times an item may be claimed before it becomes a dead letter,
            from 1; `None` for no limit.
        keep: Acknowledged items to keep as done: for a time from one second, such as `"7d"` or
            a `timedelta`; the newest up to a number from 1; or a tuple of both. `None` keeps none.
            Popped items are not kept. Cost: an acknowledgement writes three more keys and the
            payload again.
        shards: Number of shards, from 1 to 64, for a cluster to serve each from other servers;
            `None` for one. More at any time; fewer once the higher ones hold no items. A queue with
            several is first in, first out within a shard, and has no `max_size`, `concurrency` or
            `rate`. Cost: a claim reads the first item of each shard.
    """

    max_size: int | None
    max_attempts: int | None
    keep: Keep | None
    shards: int | None


class QueueLimits(QueueOptions, total=False):
    """The options of a queue that the code of an app declares: `QueueOptions`, and these.

    Attributes:
        concurrency: Maximum number of items claimed at a time by all workers together, from 1
            to 10,000; `None` for no limit. Items claimed before hold no slot if there was no limit.
            Cost: a claim reads one more counter, and claims may conflict when few slots are free.
        rate: Maximum number of items claimed or popped in any window of a time, such as `(100,
            "1m")`: from 1 to 10,000 items; `None` for no limit. Cost: the queue's claims and pops
            conflict with each other.
        kept_attempts: Number of an item's last failed attempts to keep, from 1 to 1,000; by
            default 10.
        traceback_bytes: Bytes to keep from the end of each failed attempt's traceback, from 0
            to 30,000; by default 8,000.
    """

    concurrency: int | None
    rate: tuple[int, Duration] | None
    kept_attempts: int
    traceback_bytes: int


class QueueSettings(QueueLimits, total=False):
    """The options that `configure` changes: `QueueLimits`, and these.

    Attributes:
        paused: `True` stops handing out items: pops and claims find nothing, pushes go on, and
            existing claims stay valid. `False` resumes.
        keep_seconds: The time of `keep`, in seconds from 1. Its number does not change.
        keep_number: The number of `keep`, from 1. Its time does not change.
    """

    paused: bool
    keep_seconds: int | None
    keep_number: int | None


class GroupOptions(TypedDict, total=False):
    """The settings of a group, except for a pause. `None` is the default of all groups.

    Attributes:
        weight: Weight of the group among groups with items of the same priority, from 0.001 to
            1,000; by default 1.
        concurrency: Maximum number of its items claimed at a time, from 1 to 10,000.
        rate: Maximum number of its items claimed or popped in any window of a time, such as
            `(10, "1m")`: from 1 to 10,000 items.
        in_order: Whether a failed item is retried before the items behind it, if `concurrency`
            is 1; by default true.
        max_size: Maximum number of its ready, delayed and claimed items, from 1.
    """

    weight: float | None
    concurrency: int | None
    rate: tuple[int, Duration] | None
    in_order: bool | None
    max_size: int | None


class GroupSettings(GroupOptions, total=False):
    """The settings of a group, which `set_group` changes: `GroupOptions`, and this one.

    Attributes:
        paused: Whether none of its items are handed out.
    """

    paused: bool


class LateOptions(TypedDict, total=False):
    """The time zone of a schedule, and what it does when it is late.

    Attributes:
        tz: Time zone of the expression, such as `"Europe/Lisbon"`; UTC by default.
        missed: Policy for ticks found over a minute late, or after the next tick: `"latest"`
            (the default) pushes for the last, `"skip"` for none, `"all"` for the last 1,000.
        overlap: Policy for a tick while the previous item has not ended: `"allow"` (the
            default) pushes, `"skip"` does not, `"queue"` pushes once it has ended.
    """

    tz: str
    missed: Missed
    overlap: Overlap


class ScheduleOptions(LateOptions, total=False):
    """The options of a schedule: either `cron` or `every`, and any of the others.

    Attributes:
        cron: Times as a cron expression of five fields, or of six with the seconds first.
        every: Interval between ticks, at least a second.
        group: Group of the items, as in `PushOptions`; by default none.
    """

    cron: str
    every: Duration
    group: str | None


class Filters(TypedDict, total=False):
    """The filters of a search. An item must match all of them.

    Attributes:
        priority: Only items of this priority; not for a FIFO queue. A priority queue reads no
            other items, except for done ones.
        agent: Only tasks whose agent's name contains this text, ignoring case.
        id: Only items whose id contains this text.
        error: Only items in any state but done whose last error contains this text, ignoring
            case. Cost: a read for each item that is not dead.
        client: Only items claimed by a client whose name contains this text, ignoring case.
            Cost: a read for each item.
        job: Only jobs of this name, or whose name ends with a dot and this text: `send` finds
            `shop.send`. Cost: reads of each value over 10,000 bytes.
        group: Only items of this group; `""` for items without one. No other items are read,
            except for done items and tasks.
    """

    priority: Priority | None
    agent: str | None
    id: str | None
    error: str | None
    client: str | None
    job: str | None
    group: str | None


class Selecting(Filters, total=False):
    """`Filters`, and the part of the matching items to return.

    Attributes:
        limit: Maximum number of items; 0 for all.
        after: An item or its id: only items behind it.
        reverse: Whether to go in reverse order of keys.
    """

    limit: int
    after: Item[Any] | Task[Any] | str | None
    reverse: bool
