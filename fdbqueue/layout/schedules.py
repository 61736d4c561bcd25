"""The stored form of schedules."""

from __future__ import annotations

from typing import NamedTuple

from fdbqueue.layout.records import record_codec
from fdbqueue.types import Missed, Overlap


class Timing(NamedTuple):
    """When a schedule is due: by an expression of cron, or at a fixed interval.

    Attributes:
        cron: The expression, of five or six fields; empty for an interval.
        every: The interval in milliseconds; 0 for an expression.
        tz: The name of the time zone in which the expression holds.
    """

    cron: str = ""
    every: int = 0
    tz: str = "UTC"


class Definition(NamedTuple):
    """The item that a schedule pushes, and its timing.

    Attributes:
        timing: When it is due.
        payload: The encoded value that it pushes.
        level: The prefix of the level to which it pushes, without the prefix of all items.
        missed: What happens to ticks that nobody has found in time.
        overlap: What happens to a tick while the item of the last one has not ended.
        group: The group of the items, or `None`.
    """

    timing: Timing
    payload: bytes
    level: bytes
    missed: Missed
    overlap: Overlap
    group: str | None = None


class StoredSchedule(NamedTuple):
    """A schedule and its state. Times are in milliseconds since 1970.

    Attributes:
        definition: What it pushes, and when.
        next: Its next tick; `None` while it is paused, or if there is none.
        declared_at: When a worker last declared it; `None` if it was added by a call.
        paused: Whether it pushes nothing.
        last: Its last tick for which it has pushed an item, or `None`.
        position: The position of that item; empty if there is none.
        pushed: How many items it has pushed.
        skipped: For how many ticks it pushed none, because the last item had not ended or the
            queue was full.
    """

    definition: Definition
    next: int | None = None
    declared_at: int | None = None
    paused: bool = False
    last: int | None = None
    position: bytes = b""
    pushed: int = 0
    skipped: int = 0

    def unique_key(self, name: str) -> str | None:
        """Return the unique key of its items if its ticks do not overlap; `None` otherwise."""
        return None if self.definition.overlap == "allow" else f"schedule {name}"


encode_schedule, _decode_schedule = record_codec(StoredSchedule)


def decode_schedule(value: bytes) -> StoredSchedule:
    """Return the schedule with this value.

    >>> timing = Timing("*/5 * * * *", tz="Europe/Lisbon")
    >>> schedule = StoredSchedule(Definition(timing, b"{}", b"", "latest", "allow"), 300_000)
    >>> decode_schedule(encode_schedule(schedule)) == schedule
    True
    """
    schedule = _decode_schedule(value)
    definition = Definition(*schedule.definition)
    definition = definition._replace(timing=Timing(*definition.timing))
    return schedule._replace(definition=definition)


MAX_ROW = 100_000
"""Bytes of the row of a schedule: FoundationDB's limit of a value."""

_STATE_SIZE = 1_500  # bytes of the state of a schedule, apart from the level of its last item


def schedule_size(definition: Definition) -> int:
    """Return the most bytes that the row of a schedule with this definition may have."""
    largest = StoredSchedule(definition, position=definition.level)
    return len(encode_schedule(largest)) + _STATE_SIZE
