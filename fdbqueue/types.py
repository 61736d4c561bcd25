"""The values that callers see: items, tasks, claims, options and the codec interface."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

__all__ = [
    "Claim",
    "Codec",
    "DeadLetter",
    "Item",
    "Options",
    "Priority",
    "PriorityKind",
    "Task",
    "TaskPriority",
    "TaskStats",
    "create_deadline",
]

Priority: TypeAlias = "int | tuple[Any, ...]"
"""An item's rank: a 64-bit integer or a tuple. The lowest is popped first."""

PriorityKind: TypeAlias = "type[int] | tuple[type, ...]"
"""The type of a queue's priorities: `int`, or the types of a tuple's elements, `(int, float)`."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a queue.

    Attributes:
        value: The value that was pushed.
        priority: The item's priority; `None` in a FIFO queue.
        id: A text that identifies the item within its queue.
        key: The item's key in the database.
    """

    value: Any
    priority: Any
    id: str
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a queue. The first push stores them, so that all clients agree.

    Attributes:
        kind: `"priority"`, `"fifo"` or `"task"`.
        codec: The name of the codec; the class name of a custom one.
        priorities: The type of its priorities; `None` in a FIFO queue.
        max_size: The most items it may hold, including delayed and claimed ones; `None` for no
            bound.
        ageing: Seconds after which a waiting task is as urgent as a new task of the next higher
            priority; `None` for never.
        max_attempts: How many times an item may be claimed before it becomes a dead letter; `None`
            for any number.
        concurrency: The most items that may be claimed at a time; `None` for no limit.
        agent_concurrency: The most tasks of each agent that may be claimed at a time; `None` for no
            limit. Only for task queues.
        paused: Whether claims and pops are paused.
    """

    kind: str
    codec: str
    priorities: PriorityKind | None
    max_size: int | None
    ageing: int | None = None
    max_attempts: int | None = None
    concurrency: int | None = None
    agent_concurrency: int | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on items: no other client gets them until it expires.

    Iterating over a claim yields one claim per item.

    Attributes:
        items: The claimed items, in order; tasks for a task queue.
        attempts: How many times each item has been claimed so far, from 1.
        keys: The keys of the items in the database.
        token: The fencing token of this claim.
    """

    items: tuple[Any, ...]
    attempts: tuple[int, ...]
    keys: tuple[bytes, ...] = field(repr=False)
    token: bytes = field(repr=False)

    @property
    def item(self) -> Any:
        """The first item; the only one unless several were claimed."""
        return self.items[0]

    @property
    def attempt(self) -> int:
        """Number of times the first item has been claimed so far, from 1."""
        return self.attempts[0]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Claim]:
        for parts in zip(self.items, self.attempts, self.keys):
            item, attempt, key = parts
            yield Claim((item,), (attempt,), (key,), self.token)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that failed too often.

    Attributes:
        item: The item, or the task for a task queue; `None` if its payload cannot be decoded.
        id: The id of the item.
        attempts: How many times the item was claimed.
        died_at: When it became a dead letter, by the clock of the client that reported the failure.
        error: The error of its last attempt; `None` if none was given.
    """

    item: Any
    id: str
    attempts: int
    died_at: datetime
    error: str | None


class Codec(Protocol):
    """An encoding of values as bytes, with `decode(encode(value)) == value`.

    `encode` raises `ValueError` or `TypeError` for a value that it cannot encode, `decode` for
    bytes that it did not write.
    """

    def encode(self, value: Any, /) -> bytes:
        """Return the bytes of a value."""
        ...

    def decode(self, payload: bytes, /) -> Any:
        """Return the value of the bytes that `encode` returned."""
        ...


class TaskPriority(IntEnum):
    """The urgency of a task.

    >>> TaskPriority.HIGH < TaskPriority.LOW
    True
    """

    CRITICAL = 1
    """To be done within the hour."""
    HIGH = 2
    """To be done within four hours."""
    MEDIUM = 3
    """To be done within a day."""
    LOW = 4
    """To be done within a week."""
    DEFERRED = 5
    """To be done in a batch at any time, without a deadline."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a task queue.

    Attributes:
        id: A text that identifies the task within its queue, whatever its state.
        priority: The urgency.
        deadline: When the task is due, in UTC; `None` for no deadline.
        cost: The cost. Among tasks of the same priority and deadline the cheapest is first.
        agent_name: The agent that the task is for; `None` for any.
        client_id: The client that the task belongs to, or `None`.
        payload: The JSON value that was pushed.
        created_at: When the task was pushed, by the clock of the client that pushed it.
        key: The task's key in the database.
    """

    id: str
    priority: TaskPriority
    deadline: datetime | None
    cost: float
    agent_name: str | None
    client_id: str | None
    payload: Any
    created_at: datetime
    key: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TaskStats:
    """The counters of a task queue since it was created or cleared.

    Attributes:
        total_pushed: Tasks pushed.
        total_popped: Tasks popped or claimed, except those that were removed, expired or died.
        total_rejected: Tasks that the queue had no room for.
        total_removed: Tasks removed.
        total_expired: Tasks expired.
        total_died: Tasks that became dead letters and were not retried.
        current_size: Tasks waiting or delayed.
        oldest: When the oldest waiting task was pushed; `None` if none waits.
        by_priority: Waiting tasks of each priority.
        by_agent: Waiting tasks of each agent.
    """

    total_pushed: int
    total_popped: int
    total_rejected: int
    total_removed: int
    total_expired: int
    total_died: int
    current_size: int
    oldest: datetime | None
    by_priority: dict[TaskPriority, int]
    by_agent: dict[str, int]

    @property
    def success_rate(self) -> float:
        """The share of pushed tasks that were popped or claimed and did not die, from 0 to 1."""
        return self.total_popped / self.total_pushed if self.total_pushed else 0.0

    @property
    def rejection_rate(self) -> float:
        """The share of pushes that the queue had no room for, from 0 to 1."""
        tried = self.total_pushed + self.total_rejected
        return self.total_rejected / tried if tried else 0.0


def create_deadline(
    days_ahead: float = 0, hours_ahead: float = 0, minutes_ahead: float = 0
) -> datetime:
    """Return the time that is the given time from now, by this machine's clock, in UTC.

    Call it outside of a transaction's body, which may run more than once.

    >>> create_deadline(days_ahead=1) > create_deadline(hours_ahead=23)
    True
    """
    ahead = timedelta(days=days_ahead, hours=hours_ahead, minutes=minutes_ahead)
    return datetime.now(timezone.utc) + ahead
