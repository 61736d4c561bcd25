"""The stored form of tasks: their order, deadlines and records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from fdbqueue.errors import InvalidTask
from fdbqueue.layout.codecs import JsonCodec, json_bytes

RANK = (int, int, float)
"""The priority type of a task queue: urgency, deadline in microseconds, cost."""

NO_DEADLINE = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_json = JsonCodec()
_NEW_LINE = b"\n"  # which is an escape within a text in JSON


def deadline_number(deadline: object) -> int:
    """Return a deadline in microseconds since 1970, or `NO_DEADLINE`; raise `InvalidTask`."""
    if deadline is None:
        return NO_DEADLINE
    if not isinstance(deadline, datetime) or deadline.utcoffset() is None:
        raise InvalidTask("deadline", deadline, "a datetime with a time zone, or None")
    try:
        return (deadline.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise InvalidTask("deadline", deadline, "in the years 1 to 9999 of UTC") from None


def deadline_from(number: int) -> datetime | None:
    """Return the deadline of a number from `deadline_number`."""
    return None if number == NO_DEADLINE else _EPOCH + number * _MICROSECOND


# How a task is stored


class TaskRecord(NamedTuple):
    """The value of a stored task, without priority, deadline and cost."""

    agent_name: str | None
    client_id: str | None
    payload: Any


class TaskCodec:
    """The encoding of tasks: agent and client as a line of JSON, then the payload."""

    def encode(self, value: TaskRecord, /) -> bytes:
        """Return the bytes of a record; raise `TypeError` or `ValueError`."""
        return json_bytes(value[:2]) + _NEW_LINE + _json.encode(value.payload)

    def restore(self, value: TaskRecord, /) -> bytes:
        """Return the bytes of a record that `decode` returned."""
        return json_bytes(value[:2]) + _NEW_LINE + _json.restore(value.payload)

    def decode(self, payload: bytes, /) -> TaskRecord:
        """Return the record of stored bytes."""
        names, _, value = payload.partition(_NEW_LINE)
        agent, client = _json.decode(names)
        return TaskRecord(agent, client, _json.decode(value))
