"""The options of calls, each declared and described here alone.

Signatures take them by `Unpack`; HTTP bodies and the flags of `fdbq` have the same names.
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
    "GroupSettings",
    "JobOptions",
    "PushManyOptions",
    "PushOptions",
    "QueueOptions",
    "QueueSettings",
    "ScheduleOptions",
    "Selecting",
    "TaskOptions",
]


class _EveryPush(TypedDict, total=False):
    delay: Duration | None
    at: datetime | None
    ttl: Duration | None
    unique_until: UniqueUntil | None
    unique_for: Duration | None


class _GroupedPush(_EveryPush, total=False):
    group: str | None


class PushOptions(_GroupedPush, total=False):
    """The options of a push.

    Attributes:
        group: The group of the item, such as the name of a customer: text of 1 to 255 bytes. Within
            a priority, the groups that have items are served in proportion to their weights (see
            `set_group`), however much one of them pushes. Items without a group form a group of
            their own.
        cost: How much the item counts in the share of its group, from 0.001 to 1,000; by default 1.
        delay: Seconds from 0 during which the item is not handed out, by the clocks of clients.
            Then it is ahead of the items of its priority that were pushed after it.
        at: A `datetime` with a time zone, instead of `delay`. The last one is
            9999-12-31T23:59:59.999+00:00.
        ttl: Seconds over 0 after which the item is dropped if no client has taken it, by the clocks
            of clients.
        unique: A key, text of 1 to 255 bytes. If an unfinished item (ready, delayed or claimed) has
            this key, nothing is stored, and the call returns that item, with `is_new` false.
        unique_until: `"claimed"`: the key is free once a client has claimed or popped the item, so
            that one item waits while another is being processed. By default `"ended"`.
        unique_for: Seconds over 0 during which the key is not free, from the push that stored the
            item on, by the clocks of clients, whether the item has ended or not; instead of
            `unique_until`. If it has ended and is not kept, the value of the returned item is the
            one given.
    """

    cost: float
    unique: str | None


class PushManyOptions(_GroupedPush, total=False):
    """The options of a push of several values: `PushOptions` for all of them, and its own.

    Attributes:
        unique: A unique key, or `None`, for each value.
        groups: A group, or `None`, for each value, instead of `group`.
        as_many_as_fit: If the queue has no room for all values, push the first ones that fit, or
            none, instead of raising `QueueFull`.
    """

    cost: float
    unique: Iterable[str | None] | None
    groups: Iterable[str | None] | None
    as_many_as_fit: bool


class TaskFields(TypedDict, total=False):
    """The fields of a task, except for its payload.

    Attributes:
        priority: From 1 (`CRITICAL`) to 5 (`DEFERRED`); by default 3 (`MEDIUM`).
        deadline: A `datetime` with a time zone; by default `None`, for no deadline.
        cost: A finite number from 0, by default 0. It orders the task, and does not count in the
            share of its group.
        agent_name: The agent that the task is for: text of 1 to 255 bytes, or `None`.
        client_id: The client that the task belongs to: text of 1 to 255 bytes, or `None`.
    """

    priority: int
    deadline: datetime | None
    cost: float
    agent_name: str | None
    client_id: str | None


class TaskOptions(TaskFields, _GroupedPush, total=False):
    """The fields of a task, except for its payload, and the `PushOptions` that tasks have.

    Attributes:
        unique: As in `PushOptions`; the call returns the id of the task that has the key.
    """

    unique: str | None


class JobOptions(_EveryPush, total=False):
    """The options with which a job is pushed: `PushOptions`, and its own.

    An option that is `None` has its default, or in `using`, the value that the job was declared
    with.

    Attributes:
        queue: The name of its queue; by default `"jobs"`.
        priority: Its priority, the lowest first; by default 0.
        group: The name of its group, or a function of the arguments that returns one, or `None` for
            none. Groups share the workers in proportion to their weights, however much one of them
            pushes.
        unique: `True`, a unique key, or a function of the arguments that returns one, or `None` for
            no key: nothing is pushed while an unfinished job has the same key. `True` makes a key
            from the name of the job and all arguments.
    """

    queue: str | None
    priority: int | None
    group: Group | None
    cost: float | None
    unique: Unique | None


class QueueOptions(TypedDict, total=False):
    """The options with which a queue is opened, and which `configure` changes.

    Attributes:
        max_size: The maximum number of ready, delayed and claimed items, from 1, or `None` for no
            limit. Items beyond a lower limit stay in the queue.
        max_attempts: How many times an item may be claimed before it becomes a dead letter, from 1,
            or `None` for any number of times.
        keep: Which acknowledged items stay in the queue as done. A time of at least one second, as
            a `timedelta` or a text such as `"7d"`, keeps the items that were done within this time.
            A number of at least 1 keeps that many of the newest items. A tuple of both keeps the
            items to which both apply. `None` keeps none. `get` and `items(state="done")` show them,
            and `result` returns what their handlers returned, if the worker stores it. Popped items
            are not kept. An acknowledgement then writes three more keys for each item, and its
            payload once more.
    """

    max_size: int | None
    max_attempts: int | None
    keep: Keep | None


class QueueSettings(QueueOptions, total=False):
    """The options that `configure` changes: `QueueOptions`, and others.

    Attributes:
        concurrency: How many items all workers together may have claimed at the same time, from 1
            to 10,000, or `None` for no limit. The limit is never exceeded: each claimed item holds
            a slot until its claim ends. Items that are already claimed beyond the limit stay
            claimed, and claims made before there was a limit hold no slot. Each claim reads one
            more counter, and two claims at the same time may conflict when few slots are free.
        rate: How many items may be started, which means claimed or popped, in any window of some
            time, such as `(100, "1m")`; from 1 to 10,000 items; `None` for no limit. Each start is
            counted, so claims and pops of a queue with a rate conflict with each other.
        paused: `True` to stop handing out items: pops and claims find nothing, pushes go on, and
            existing claims stay valid. `False` to hand them out again.
        keep_seconds: The time of `keep`, in seconds from 1; its number stays as it is.
        keep_number: The number of `keep`, from 1; its time stays as it is.
        kept_attempts: How many failed attempts of an item `get` shows until it ends, the last ones,
            from 1 to 1,000; 10 until it is set.
        traceback_bytes: How many bytes of the traceback of each of them are kept, the last ones,
            from 0 to 30,000; 8,000 until it is set.
    """

    concurrency: int | None
    rate: tuple[int, Duration] | None
    paused: bool
    keep_seconds: int | None
    keep_number: int | None
    kept_attempts: int
    traceback_bytes: int


class GroupSettings(TypedDict, total=False):
    """The settings of a group, which `set_group` changes. `None` is the default of all groups.

    Attributes:
        weight: A number from 0.001 to 1,000: within a priority, each group that has items there is
            served in proportion to its weight; by default 1.
        concurrency: The maximum number of its items that may be claimed at a time, from 1 to
            10,000.
        rate: A number n from 1 to 10,000 and a time such as `(10, "1m")`: at most n of its items
            are claimed or popped in any window of this length.
        in_order: Whether an item that failed is retried before the items behind it, if only one may
            be claimed at a time; by default true.
        max_size: The maximum number of its ready, delayed and claimed items, from 1: a push without
            room is refused as by a full queue.
        paused: Whether none of its items are handed out.
    """

    weight: float | None
    concurrency: int | None
    rate: tuple[int, Duration] | None
    in_order: bool | None
    max_size: int | None
    paused: bool


class LateOptions(TypedDict, total=False):
    """The time zone of a schedule, and what it does when it is late.

    Attributes:
        tz: The time zone of the expression, such as `"Europe/Lisbon"`; UTC by default.
        missed: What happens to ticks that are found more than a minute late, or after the next one:
            `"latest"`, the default, pushes for the last one, `"skip"` for none, `"all"` for each of
            the last 1,000.
        overlap: What happens to a tick while the item of the last one has not ended: `"allow"`, the
            default, pushes all the same, `"skip"` does not push, and `"queue"` pushes once it has
            ended.
    """

    tz: str
    missed: Missed
    overlap: Overlap


class ScheduleOptions(LateOptions, total=False):
    """The options of a schedule: one of `cron` and `every`, and any of the others.

    Attributes:
        cron: The times as an expression of five fields, as cron has them, or of six with the
            seconds first.
        every: The interval between ticks, at least a second.
        group: The group of the items, as in `PushOptions`; by default they have none.
    """

    cron: str
    every: Duration
    group: str | None


class Filters(TypedDict, total=False):
    """The filters of a search: it finds the items that match all of them.

    Attributes:
        priority: Only the items of this priority; in a task queue, only tasks of this one, from 1
            to 5; not for a FIFO queue. The priority of a priority queue is found without looking at
            other items, except for done ones.
        agent: Only tasks whose agent's name contains this text, ignoring case.
        id: Only items whose id contains this text.
        error: Only items whose last failed attempt has an error that contains this text, ignoring
            case; for any state but done. Cost: a read of the last failed attempt of each item that
            is not dead.
        client: Only items that are claimed by a client whose name contains this text, ignoring
            case. Cost: a read of the lease of each item.
        job: Only items whose value is a job of this name, or of one that ends with it behind a dot:
            `send` finds `shop.send`. Cost: reads of the pieces of each value over 10,000 bytes.
        group: Only items of this group; an empty string for the items without one. They are found
            without looking at others, except for done items and for tasks.
    """

    priority: Priority | None
    agent: str | None
    id: str | None
    error: str | None
    client: str | None
    job: str | None
    group: str | None


class Selecting(Filters, total=False):
    """The items to look at: those that match the `Filters`, and the part of them.

    Attributes:
        limit: The maximum number of items, from 0 for all.
        after: An item or the id of one: only the items behind it.
        reverse: Whether they are in the opposite order of keys.
    """

    limit: int
    after: Item[Any] | Task[Any] | str | None
    reverse: bool
