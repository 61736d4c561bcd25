"""The stored form of tasks: ids, deadlines and records."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from fdb import tuple as fdb_tuple

from fdbqueue.errors import InvalidItemId, InvalidTask
from fdbqueue.layout.codecs import JsonCodec
from fdbqueue.types import TaskPriority

RANK = (int, int, float)
"""The priority type of a task queue: urgency, deadline in microseconds, cost."""

NO_DEADLINE = 2**63 - 1
_ID_SIZE = 16  # bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)

_HEADER_SIZE = struct.Struct(">H")  # size of the header, which precedes the payload
_json = JsonCodec()


def task_id(random: bytes) -> str:
    """Return the id of the task whose key ends with these bytes.

    >>> validate_id(task_id(bytes(16))) == bytes(16)
    True
    """
    return random.hex()


def validate_id(text: object) -> bytes:
    """Return the bytes of a task id; raise `InvalidItemId` for another text."""
    try:
        if isinstance(text, str) and len(text) == 2 * _ID_SIZE and text == text.lower():
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise InvalidItemId(text)


def deadline_number(deadline: object) -> int:
    """Return a deadline in microseconds since 1970, or `NO_DEADLINE`; raise `InvalidTask`.

    >>> deadline_number(None) == NO_DEADLINE
    True
    """
    if deadline is None:
        return NO_DEADLINE
    if not isinstance(deadline, datetime) or deadline.utcoffset() is None:
        raise InvalidTask("deadline", deadline, "a datetime with a time zone, or None")
    try:
        return (deadline.astimezone(timezone.utc) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise InvalidTask("deadline", deadline, "in the years 1 to 9999 of UTC") from None


def deadline_from(number: int) -> datetime | None:
    """Return the deadline of a number from `deadline_number`.

    >>> deadline_from(1_000_000).isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    return None if number == NO_DEADLINE else _EPOCH + number * _MICROSECOND


def rank(
    priority: int, deadline: object, cost: float, *, created: float, ageing: int | None
) -> tuple[int, int, float]:
    """Return the rank of a task in its queue, which is its priority there.

    With ageing, time is divided into steps of `ageing` seconds, and the number of the step in which
    a task was created is added to its priority. One step later, the task is as urgent as a new one
    of the next higher priority.

    Example:
        >>> rank(2, None, 5.0, created=0, ageing=None)
        (2, 9223372036854775807, 5.0)
        >>> [rank(2, None, 0.0, created=now, ageing=60)[0] for now in (0, 59, 60)]
        [2, 2, 3]
    """
    step = 0 if ageing is None else int(created // ageing)
    return priority + step, deadline_number(deadline), cost


def rank_at(
    scheduled: tuple[int, int, float], tick: int, ageing: int | None
) -> tuple[int, int, float]:
    """Return the rank of a task that a schedule pushes for a tick, in milliseconds since 1970.

    Args:
        scheduled: Its rank if it were created at the beginning of 1970, with the microseconds from
            the tick to the deadline as the deadline.
        tick: The tick.
        ageing: As for `rank`.

    Example:
        >>> rank_at((2, 3_000_000, 0.0), 60_000, ageing=None)
        (2, 63000000, 0.0)
        >>> rank_at((2, NO_DEADLINE, 0.0), 60_000, ageing=60)[0]
        3
    """
    priority, left, cost = scheduled
    deadline = NO_DEADLINE if left == NO_DEADLINE else tick * 1000 + left
    step = 0 if ageing is None else tick // (1000 * ageing)
    return priority + step, deadline, cost


# How a task is stored


class TaskRecord(NamedTuple):
    """The value of a stored task. Deadline and cost are in its key."""

    priority: TaskPriority
    agent_name: str | None
    client_id: str | None
    payload: Any


class TaskCodec:
    """The encoding of task records: a header for the indexes, then the payload as JSON.

    >>> record = TaskRecord(TaskPriority.LOW, "ada", None, {"n": 1})
    >>> TaskCodec().decode(TaskCodec().encode(record)) == record
    True
    """

    def encode(self, value: object, /) -> bytes:
        """Return the bytes of a record; raise `TypeError` or `ValueError`."""
        if not isinstance(value, TaskRecord):
            raise TypeError(f"this queue stores tasks, not {type(value).__name__}")
        return self._header(value) + _json.encode(value.payload)

    def restore(self, value: TaskRecord, /) -> bytes:
        """Return the bytes of a record that `decode` returned."""
        return self._header(value) + _json.restore(value.payload)

    @staticmethod
    def _header(record: TaskRecord) -> bytes:
        packed: bytes = fdb_tuple.pack((int(record.priority), record.agent_name, record.client_id))
        return _HEADER_SIZE.pack(len(packed)) + packed

    def decode(self, payload: bytes, /) -> TaskRecord:
        """Return the record of stored bytes."""
        priority, agent, client = decode_header(payload)
        begin = _HEADER_SIZE.size + _HEADER_SIZE.unpack_from(payload)[0]
        return TaskRecord(TaskPriority(priority), agent, client, _json.decode(payload[begin:]))


def decode_header(payload: bytes) -> tuple[int, str | None, str | None]:
    """Return the priority, agent and client of a stored task."""
    size = _HEADER_SIZE.unpack_from(payload)[0]
    priority, agent, client = fdb_tuple.unpack(
        payload[_HEADER_SIZE.size : _HEADER_SIZE.size + size]
    )
    return priority, agent, client
