"""Rows of steps, signals and schedules, and the errors of jobs.

Times are in milliseconds since 1970.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple, TypeAlias

from fdbqueue.errors import FdbqueueError
from fdbqueue.layout.codecs import json_bytes
from fdbqueue.layout.values import record_codec
from fdbqueue.types import Missed, Overlap, stored_job

StepKind: TypeAlias = Literal["step", "commit", "sleep", "wait", "run"]
"""A function, a function in a transaction, a sleep, a signal, or another job."""

StepState: TypeAlias = Literal["done", "failed", "timed out", "waiting"]


SKEW = 60_000
"""Milliseconds by which clients' clocks may differ."""


class StoredStep(NamedTuple):
    """A step of a job.

    Attributes:
        due: When the job continues at the latest; `None` for never.
        key: The key of its signal, or the id of the job that it runs.
        number: How many steps were stored before it.
        queue: The queue prefix of the job that it runs; empty for its own.
    """

    kind: StepKind
    state: StepState
    began_at: int
    ended_at: int | None = None
    failures: int = 0
    due: int | None = None
    key: str = ""
    error: str | None = None
    value: bytes = b"null"
    number: int = 0
    queue: bytes = b""

    @property
    def awaits_job(self) -> bool:
        """True if it runs another job, which has not ended."""
        return self.kind == "run" and self.state == "waiting"


encode_step, decode_step = record_codec(StoredStep)


class StoredSignal(NamedTuple):
    """A sent signal: its JSON value, and its expiry."""

    sent_at: int
    ends: int
    value: bytes


encode_signal, decode_signal = record_codec(StoredSignal)


def is_over(due: int | None, now: int) -> bool:
    """Return whether a suspended job may continue; `SKEW` allows for a slow clock.

    >>> is_over(10_000, 9_000), is_over(100_000, 9_000), is_over(None, 9_000)
    (True, False, False)
    """
    return due is not None and due - SKEW <= now


# Alerts


class StoredAlert(NamedTuple):
    """The job that is pushed when an item becomes a dead letter.

    Attributes:
        of: The name of the item's job.
        queue: The name of the new job's queue; empty for the item's own.
    """

    of: str
    job: str
    queue: str = ""
    priority: int = 0
    group: str | None = None
    version: int = 1


encode_alert, decode_alert = record_codec(StoredAlert)


# Names


def renamed_call(payload: bytes, old: str, new: str) -> bytes | None:
    """Return the payload of a job with another name; `None` if it has not the old one.

    >>> renamed_call(b'{"job":"send","args":[1]}', "send", "deliver")
    b'{"job":"deliver","args":[1]}'
    """
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    call = stored_job(value)
    return None if call is None or call.name != old else json_bytes({**value, "job": new})


# Schedules


class Timing(NamedTuple):
    """When a schedule is due: a cron expression, or an interval (`every`) in milliseconds."""

    cron: str = ""
    every: int = 0
    tz: str = "UTC"


class Definition(NamedTuple):
    """The item that a schedule pushes, and its timing; `level` lacks the prefix of all items."""

    timing: Timing
    payload: bytes
    level: bytes
    missed: Missed
    overlap: Overlap
    group: str | None = None
    alert: bytes = b""


class StoredSchedule(NamedTuple):
    """A schedule and its state.

    Attributes:
        declared_at: When a worker last declared it; `None` if a call added it.
        last: The last tick for which it pushed an item, at `position`.
        skipped: Number of ticks that found the last item unfinished or the queue full.
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
        """Return its items' unique key, if ticks do not overlap."""
        return None if self.definition.overlap == "allow" else f"schedule {name}"


_encode_schedule, _decode_schedule = record_codec(StoredSchedule)


def encode_schedule(schedule: StoredSchedule) -> bytes:
    """Encode a schedule; older clients read one without an alert."""
    stored: Any = schedule.definition
    if not schedule.definition.alert:
        stored = stored[: Definition._fields.index("alert")]
    return _encode_schedule(schedule._replace(definition=stored))


def decode_schedule(value: bytes) -> StoredSchedule:
    """Decode a schedule."""
    schedule = _decode_schedule(value)
    definition = Definition(*schedule.definition)
    definition = definition._replace(timing=Timing(*definition.timing))
    return schedule._replace(definition=definition)


MAX_ROW = 100_000
"""Maximum size of a schedule's row, in bytes."""

_STATE_SIZE = 1_500  # bytes of the state of a schedule, apart from the level of its last item


def schedule_size(definition: Definition) -> int:
    """Return the maximum size of a schedule's row in bytes."""
    largest = StoredSchedule(definition, position=definition.level)
    return len(encode_schedule(largest)) + _STATE_SIZE


# Errors


class BatchClosed(FdbqueueError):
    """A push to a closed or unknown batch. Nothing was pushed.

    Attributes:
        id: The id of the batch.
    """

    id: str

    _template = (
        "the batch {self.id} takes no more jobs: it is closed, or the job that it pushes at its "
        "end was removed; push to it within its `with` block, or begin another one"
    )


class BatchNotFound(FdbqueueError, LookupError):
    """A batch that no known queue has. It is deleted with the job that it pushes.

    Attributes:
        id: The id of the batch.
    """

    id: str

    _template = (
        "there is no batch {self.id}; its id is that of the job that it pushes at its end, and it "
        "is gone once that job is"
    )


class TooManyFollowing(FdbqueueError):
    """A push after a job that already has the maximum number of followers.

    The transaction must not commit.

    Attributes:
        id: The id of the job.
        limit: Maximum number of jobs and batches that wait for one job.
    """

    id: str
    limit: int

    _template = (
        "{self.limit} jobs and batches wait for the job {self.id} already; push the others when it "
        "ends, with context.at_end, or after one that follows it"
    )


class JobCancelled(BaseException):
    """The job is cancelled, and stands at this step. No `except Exception` catches it.

    Catch it, or use `finally`, to compensate with further steps. The job then ends as cancelled,
    whether it returns or raises `JobCancelled` again. If an attempt fails or dies meanwhile, the
    same step raises `JobCancelled` in the next one.

    Attributes:
        step: The name of the step.
    """

    def __init__(self, step: str = "") -> None:
        self.step = step
        super().__init__(f"cancelled in the step {step!r}" if step else "cancelled")


class TooManySteps(FdbqueueError):
    """The job has reached the step limit.

    Attributes:
        limit: Maximum number of steps of a job.
    """

    limit: int

    _template = "a job has at most {self.limit:,} steps; let it push other jobs for the rest"


class TooManyWaiting(FdbqueueError):
    """A signal with more waiting jobs than one transaction can wake.

    Attributes:
        name: The name of the signal.
        limit: Maximum number of jobs that wait for the same name and key.
    """

    name: str
    limit: int

    _template = "more than {self.limit:,} jobs wait for {self.name!r}; let each use another key"
