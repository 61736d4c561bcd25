"""The values that callers see: items, tasks, claims, options, codecs."""

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
"""What orders the items: an integer of 64 bits, or a tuple; the lowest comes first."""

PriorityKind: TypeAlias = "type[int] | tuple[type, ...]"
"""What a queue takes as priority: `int`, or the types of a tuple's elements, `(int, float)`."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a queue, as it was pushed.

    `value` is what was pushed; `priority` where it stands, `None` in a FIFO queue; `id` a text
    that finds it again in its queue; `key` its key in the database.
    """

    value: Any
    priority: Any
    id: str
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Options:
    """What a queue is: stored with it by its first push, so that all clients agree.

    `kind` is `"priority"`, `"fifo"` or `"task"`; `codec` the name of its codec, of one of the
    caller's own the name of its class; `priorities` what it takes as priority, `None` in a FIFO
    queue; `max_size` how many items it has at most, with delayed and claimed ones, `None` if there
    is no such bound; `ageing` after how many seconds a task that waits is as urgent as a new one of
    the next higher priority, `None` for never; `max_attempts` how often an item is claimed before
    it is a dead letter, `None` for any number of times; `concurrency` how many items are claimed at
    a time at most, in all, and `agent_concurrency`, of a task queue, of each agent; `paused`
    whether nothing is handed out.
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
    """Items that a client has claimed: nobody else gets them while its lease lasts.

    `items` are what was claimed (tasks, of a task queue), in order; `attempts` how often each was
    claimed so far, from 1; `keys` where they stood; `token` shows whose claim it is. Iterated, it
    is a claim of each item.
    """

    items: tuple[Any, ...]
    attempts: tuple[int, ...]
    keys: tuple[bytes, ...] = field(repr=False)
    token: bytes = field(repr=False)

    @property
    def item(self) -> Any:
        """The first item, of a claim of one."""
        return self.items[0]

    @property
    def attempt(self) -> int:
        """How often the first item was claimed so far."""
        return self.attempts[0]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Claim]:
        for parts in zip(self.items, self.attempts, self.keys):
            item, attempt, key = parts
            yield Claim((item,), (attempt,), (key,), self.token)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that failed too often: `error` is what was said at last, `died_at` when.

    `item` is the item (of a task queue, the task), `None` if its payload cannot be read.
    """

    item: Any
    id: str
    attempts: int
    died_at: datetime
    error: str | None


class Codec(Protocol):
    """How values become bytes: `decode(encode(value)) == value`.

    `encode` raises `ValueError` or `TypeError` for what it cannot store, `decode` for bytes that
    it did not write.
    """

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, payload: bytes, /) -> Any: ...


class TaskPriority(IntEnum):
    """How soon a task is to be done.

    >>> TaskPriority.HIGH < TaskPriority.LOW
    True
    """

    CRITICAL = 1
    """Within the hour."""
    HIGH = 2
    """Within four hours."""
    MEDIUM = 3
    """Within a day."""
    LOW = 4
    """Within a week."""
    DEFERRED = 5
    """In a batch some time; it has no deadline."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task, as it was pushed.

    `id` is a text that finds it, wherever it stands; `deadline` is in UTC; `created_at` is by the
    clock of who pushed it; `key` is its key in the database.
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
    """What came of a queue's tasks since it was cleared.

    `success_rate` is the share of the tasks that were popped, or claimed and did not die, of those
    that were pushed; `rejection_rate` that of the pushes for which the queue had no room. `oldest`
    is when the oldest task that waits was pushed; `by_priority` and `by_agent` count those that
    wait.
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
        return self.total_popped / self.total_pushed if self.total_pushed else 0.0

    @property
    def rejection_rate(self) -> float:
        tried = self.total_pushed + self.total_rejected
        return self.total_rejected / tried if tried else 0.0


def create_deadline(
    days_ahead: float = 0, hours_ahead: float = 0, minutes_ahead: float = 0
) -> datetime:
    """A deadline so far from now, by this machine's clock, in UTC.

    To be made outside of a transaction's body, which may run twice.

    >>> create_deadline(days_ahead=1) > create_deadline(hours_ahead=23)
    True
    """
    ahead = timedelta(days=days_ahead, hours=hours_ahead, minutes=minutes_ahead)
    return datetime.now(timezone.utc) + ahead
