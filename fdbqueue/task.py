"""Tasks: what they are, what they may be, and how they are stored."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

from fdb import tuple as fdb_tuple

from fdbqueue.codec import JsonCodec
from fdbqueue.errors import InvalidItemId, InvalidTask

__all__ = [
    "NO_DEADLINE",
    "RANK",
    "Task",
    "TaskCodec",
    "TaskPriority",
    "TaskRecord",
    "TaskStats",
    "checked_agent",
    "checked_client",
    "checked_cost",
    "checked_id",
    "checked_name",
    "checked_priority",
    "create_deadline",
    "deadline_from",
    "deadline_number",
    "decode_header",
    "ranked_task",
    "task_id",
    "whole_seconds",
]

RANK = (int, int, float)
"""What a task queue takes as priority: the urgency, the deadline in microseconds, the cost."""

NO_DEADLINE = 2**63 - 1
_ID_SIZE = 16  # bytes
_LONGEST_NAME = 255  # bytes of UTF-8
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)

_SIZE = struct.Struct(">H")  # of the header, which stands before the payload
_json = JsonCodec()


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
    clock of who pushed it.
    """

    id: str
    priority: TaskPriority
    deadline: datetime | None
    cost: float
    agent_name: str | None
    client_id: str | None
    payload: Any
    created_at: datetime


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


# What a task may be


def checked_priority(priority: object) -> TaskPriority:
    """The priority; raises `InvalidTask` for another value than 1 to 5.

    >>> checked_priority(1)
    <TaskPriority.CRITICAL: 1>
    """
    if isinstance(priority, int) and not isinstance(priority, bool) and 1 <= priority <= 5:
        return TaskPriority(priority)
    raise InvalidTask("priority", priority, "an integer from 1 (CRITICAL) to 5 (DEFERRED)")


def checked_cost(cost: object) -> float:
    """The cost as a float; raises `InvalidTask` for what is no finite number from zero.

    >>> checked_cost(Decimal("1.50"))
    1.5
    """
    if isinstance(cost, (Real, Decimal)) and not isinstance(cost, bool):
        try:
            number = float(cost)
        except (OverflowError, ValueError):
            number = -1.0
        if isfinite(number) and number >= 0:
            return number
    raise InvalidTask("cost", cost, "a finite number from 0")


def checked_name(field: str, name: object) -> str | None:
    """The name of an agent or client, or `None`; raises `InvalidTask` for another value."""
    if name is None:
        return None
    if isinstance(name, str) and name:
        try:
            if len(name.encode()) <= _LONGEST_NAME:
                return name
        except UnicodeEncodeError:
            pass
    return _no_name(field, name)


def checked_agent(name: object) -> str:
    """The name of an agent to look for."""
    return checked_name("agent_name", name) or _no_name("agent_name", name)


def checked_client(name: object) -> str:
    """The id of a client to look for."""
    return checked_name("client_id", name) or _no_name("client_id", name)


def _no_name(field: str, name: object) -> str:
    raise InvalidTask(field, name, f"text of 1 to {_LONGEST_NAME} bytes in UTF-8")


def task_id(random: bytes) -> str:
    """The id of the task whose key ends with this.

    >>> checked_id(task_id(bytes(16))) == bytes(16)
    True
    """
    return random.hex()


def checked_id(text: object) -> bytes:
    """What the key of the task with this id ends with; raises `InvalidItemId` for another text."""
    try:
        if isinstance(text, str) and len(text) == 2 * _ID_SIZE and text == text.lower():
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise InvalidItemId(text)


def deadline_number(deadline: object) -> int:
    """A deadline in microseconds since 1970, or `NO_DEADLINE`; raises `InvalidTask`.

    >>> deadline_number(None) == NO_DEADLINE
    True
    """
    if deadline is None:
        return NO_DEADLINE
    if not isinstance(deadline, datetime) or deadline.utcoffset() is None:
        raise InvalidTask("deadline", deadline, "a datetime that has a time zone, or None")
    try:
        return (deadline.astimezone(timezone.utc) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise InvalidTask("deadline", deadline, "in the years 1 to 9999 of UTC") from None


def deadline_from(number: int) -> datetime | None:
    """The deadline of this number.

    >>> deadline_from(1_000_000).isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    return None if number == NO_DEADLINE else _EPOCH + number * _MICROSECOND


def whole_seconds(ageing: object) -> int | None:
    """The option in seconds; raises `ValueError` for what is none."""
    if ageing is None:
        return None
    if isinstance(ageing, timedelta) and ageing >= timedelta(seconds=1):
        seconds = ageing // timedelta(seconds=1)
        if timedelta(seconds=seconds) == ageing:
            return seconds
    raise ValueError(f"ageing is a timedelta of whole seconds from 1, or None, not {ageing!r}")


# How a task is stored


class TaskRecord(NamedTuple):
    """What is stored of a task beside its key."""

    priority: TaskPriority
    agent_name: str | None
    client_id: str | None
    payload: Any


def ranked_task(
    ageing: int | None,
    created: float,
    *,
    priority: Any = TaskPriority.MEDIUM,
    deadline: Any = None,
    cost: Any = 0,
    agent_name: Any = None,
    client_id: Any = None,
    payload: Any = None,
) -> tuple[TaskRecord, tuple[int, int, float]]:
    """What is stored of a task, and where it stands; raises `InvalidTask`.

    With ageing, time goes in steps of so many seconds, and the number of the step in which a task
    was created is added to its priority: one step later it is as urgent as a new one of the next
    higher priority.

    >>> ranked_task(None, 0, priority=2, cost=5)[1] == (2, NO_DEADLINE, 5.0)
    True
    >>> [ranked_task(60, now, priority=2)[1][0] for now in (0, 59, 60)]
    [2, 2, 3]
    """
    record = TaskRecord(
        checked_priority(priority),
        checked_name("agent_name", agent_name),
        checked_name("client_id", client_id),
        payload,
    )
    step = 0 if ageing is None else int(created // ageing)
    return record, (record.priority + step, deadline_number(deadline), checked_cost(cost))


class TaskCodec:
    """A task's record: what it is found by, and its payload as JSON.

    >>> record = TaskRecord(TaskPriority.LOW, "ada", None, {"n": 1})
    >>> TaskCodec().decode(TaskCodec().encode(record)) == record
    True
    """

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, TaskRecord):
            raise TypeError(f"this queue stores tasks, not {type(value).__name__}")
        return self._header(value) + _json.encode(value.payload)

    def restore(self, value: TaskRecord, /) -> bytes:
        """The bytes of a record that `decode` returned."""
        return self._header(value) + _json.restore(value.payload)

    @staticmethod
    def _header(record: TaskRecord) -> bytes:
        packed: bytes = fdb_tuple.pack((int(record.priority), record.agent_name, record.client_id))
        return _SIZE.pack(len(packed)) + packed

    def decode(self, payload: bytes, /) -> TaskRecord:
        priority, agent, client = decode_header(payload)
        begin = _SIZE.size + _SIZE.unpack_from(payload)[0]
        return TaskRecord(TaskPriority(priority), agent, client, _json.decode(payload[begin:]))


def decode_header(payload: bytes) -> tuple[int, str | None, str | None]:
    """Priority, agent and client of a stored task."""
    size = _SIZE.unpack_from(payload)[0]
    priority, agent, client = fdb_tuple.unpack(payload[_SIZE.size : _SIZE.size + size])
    return priority, agent, client
