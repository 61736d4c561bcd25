"""The bodies of requests below `/v1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from fdbqueue import types
from fdbqueue.http.fields import (
    MAX_ITEMS,
    Duration,
    Integer,
    Keep,
    Number,
    Priority,
    QueueName,
    Wait,
    with_fields,
)
from fdbqueue.options import (
    Filters,
    GroupOptions,
    GroupSettings,
    LateOptions,
    PushOptions,
    QueueLimits,
    QueueOptions,
    QueueSettings,
    ScheduleOptions,
    TaskChanges,
    TaskFields,
    TaskOptions,
    UpdateOptions,
)
from fdbqueue.queue.arguments import MAX_INTEGER, MAX_TEXT


class Body(BaseModel):
    """A body whose options the library checks."""

    # A text such as "1" is not a number, and an unknown field is an error.
    model_config = ConfigDict(strict=True, extra="forbid")

    def given(self) -> dict[str, Any]:
        """Return the request's fields by name."""
        return {name: getattr(self, name) for name in self.model_fields_set}


@with_fields(PushOptions, TaskFields, TaskOptions)
class Push(Body):
    """An item to push, with the options of `push` in Python."""

    item: JsonValue = Field(description="The value; for a task its payload.")
    priority: Priority | None = Field(default=None, description="By default 0, or 3 for a task.")
    unique: str | None = None
    cost: float | None = Field(
        default=None,
        description="How much it counts in the share of its group, by default 1. For a task: the "
        "cheapest of equal ones is first, by default 0.",
    )


class OnDead(Body):
    """The job to push when an item becomes a dead letter."""

    job: str = Field(min_length=1, max_length=MAX_TEXT)
    version: Integer = Field(1, ge=1, le=MAX_INTEGER)
    queue: QueueName | None = Field(None, description="By default that of the item.")
    priority: Integer = 0
    group: str | None = None
    of: str = Field("", max_length=MAX_TEXT, description="The name of the job of the item.")


class Batch(Body):
    """Items to push in one transaction."""

    items: list[Push] = Field(min_length=1, max_length=MAX_ITEMS)
    as_many_as_fit: bool = Field(
        False, description="Push the first items if the queue has no room for all."
    )
    keep: Keep | None = Field(
        None, description="Which done items the queue keeps if this push creates it."
    )
    on_dead: OnDead | None = None


class FollowUp(Push):
    """An item to push in the transaction of an acknowledgement."""

    queue: QueueName


class Pop(Body):
    """The number of items to pop, and the seconds to wait for the first."""

    n: Number = 1
    wait: Wait = 0
    max: bool = Field(
        default=False, description="Pop from a priority queue the items of the highest priorities."
    )


class ClaimRequest(Body):
    """The number of items to claim, their lease, and the seconds to wait for the first."""

    n: Number = 1
    lease: Duration = Field(default=30.0, description="Seconds until others may take the items.")
    wait: Wait = 0
    within: Integer = Field(
        default=256, ge=1, le=10_000, description="Choose among this many first items."
    )
    client: str | None = Field(default=None, description="The name that `claimed_by` shows.")


class OfClaim(Body):
    """A request about a claim."""

    token: str


class _Logged(OfClaim):
    log: str = Field("", description="Lines of the log; the last 8,000 bytes are kept.")


class Ack(_Logged):
    """A claim whose job is done, and what to push in the same transaction."""

    result: JsonValue = None
    then: list[FollowUp] = Field(default=[], max_length=100)


class Nack(_Logged):
    """A claim whose job failed."""

    delay: Duration | None = Field(None, description="Seconds until the next attempt.")
    error: str | None = None
    dead: bool = Field(False, description="Make it a dead letter now.")


class Extend(_Logged):
    """A claim that needs more time, and a report on the work."""

    lease: Duration = 30.0
    progress: float | None = Field(None, ge=0, le=1, description="The part that is done.")
    message: str = Field("", max_length=1000, description="What happens now; with `progress`.")


class Release(OfClaim):
    """A claim to undo."""

    delay: Duration | None = Field(None, description="Seconds until the item is ready again.")


@with_fields(UpdateOptions, TaskChanges, without={"payload"})
class Update(Body):
    """The changes of an item that waits."""

    item: JsonValue = Field(None, description="The new value; for a task its payload.")
    priority: Priority | None = Field(None, description="The item goes behind the last one of it.")


@with_fields(Filters)
class ChangeAll(Body):
    """A change of all matching items."""

    change: Literal["remove", "retry", "run_now", "release", "cancel", "update"]
    state: types.State
    limit: Integer = Field(0, ge=0, description="The maximum number of items, 0 for all.")
    to: Update | None = Field(None, description="What changes, for `update`.")


@with_fields(QueueSettings, QueueLimits, QueueOptions)
class NewOptions(Body):
    """The options to change; others keep their values, and null removes a limit."""


class CreateQueue(NewOptions):
    """A queue to create."""

    kind: Literal["priority", "fifo", "task"] = "priority"


class Rename(Body):
    """The new name of a queue."""

    name: QueueName


class Check(Body):
    """A check of a queue; `repair` corrects counters and indexes."""

    repair: bool = False


@with_fields(GroupSettings, GroupOptions)
class NewGroupSettings(Body):
    """The settings to change; null stands for the setting of all groups."""


@with_fields(ScheduleOptions, LateOptions)
class NewSchedule(Body):
    """A schedule: what it pushes, and when."""

    item: JsonValue = Field(description="The value that it pushes.")
    priority: Priority | None = Field(None, description="That of a priority queue, by default 0.")


class RetryFrom(Body):
    """A retry of a dead letter from a step on."""

    step: str | None = Field(
        None, description="This step, and all that were stored later, are forgotten."
    )


class Cancel(Body):
    """How to cancel a job."""

    force: bool = Field(False, description="Whether to end it now, in any case.")
    children: bool = Field(False, description="Whether to cancel the jobs that it runs, too.")


class NewSignal(Body):
    """A signal for waiting jobs."""

    name: str = Field(description="Its name.")
    key: str = Field("", description="As a rule the id of a job.")
    value: JsonValue = Field(None, description="Its value.")
    keep: Duration = Field(
        2_592_000.0, description="Seconds for which jobs may still come to wait for it."
    )
