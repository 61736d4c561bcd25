"""The answers of the routes below `/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from fdbqueue import types
from fdbqueue.http.fields import with_fields
from fdbqueue.queue import batches, schedules
from fdbqueue.queue.base import GroupInfo
from fdbqueue.queue.steps import Step
from fdbqueue.types import ItemInfo, QueueStats, State
from fdbqueue.worker.presence import WorkerInfo

# Items


class Pushed(BaseModel):
    """The stored item, or with `is_new` false the holder of its unique key."""

    id: str
    is_new: bool


class Followed(BaseModel):
    """The stored items, or the holders of their unique keys, in order."""

    ids: list[str]


class BatchPushed(Followed):
    """The stored items, and for each whether it is new, or the holder of its unique key."""

    is_new: list[bool]


class Found(BaseModel):
    """An item; a task also has `deadline`, `cost`, `agent_name` and `client_id`."""

    id: str
    priority: Any
    item: Any
    pushed_at: datetime | None = Field(description="By the clock of the pushing client.")


class Popped(BaseModel):
    """The items, in order; none if the queue is empty."""

    items: list[Found]


class Claimed(Found):
    """A claimed item, and the token that ends its claim."""

    token: str
    attempt: int


class Claims(BaseModel):
    """The claimed items, in order, if any."""

    claims: list[Claimed]


@with_fields(ItemInfo)
class Info(BaseModel):
    """Everything about an item or a task."""

    item: Any = Field(description="Its value, or its payload.")
    priority: Any
    run_time: float | None = Field(description="Seconds that its last attempt ran, once it ended.")


class Infos(BaseModel):
    """The matching items, in order."""

    items: list[Info]
    next: str | None = Field(description="The `after` of the next page, or null.")
    scanned: int = Field(description="How many items were looked at.")


class Position(BaseModel):
    """The number of ready items ahead, or null if the item is not ready."""

    position: int | None


class Result(BaseModel):
    """A done item's result."""

    result: Any


class Changed(BaseModel):
    """The number of changed items, and the ids of up to 1,000 unchanged ones."""

    changed: int
    unchanged: list[str]


class StepList(BaseModel):
    """The steps of a job."""

    steps: list[Step]


@with_fields(batches.ItemBatch, batches.BatchProgress)
class ItemBatch(BaseModel):
    """A batch in which a job counts, or for which it waits."""

    left: int = Field(description="How many jobs have not ended.")
    has_ended: bool = Field(description="Whether all jobs have ended, and none can be added.")


class BatchList(BaseModel):
    """The batches of a job."""

    batches: list[ItemBatch]


class Signalled(BaseModel):
    """The number of jobs that waited for a signal."""

    signalled: int


# Queues


@with_fields(types.ByState)
class _ByState(BaseModel):
    pass


class Cleared(_ByState):
    """The number of items in each state just before."""


_numbers: dict[str, Any] = dict.fromkeys(types.STATES, (int | None, ...))
Dropped = create_model(
    "Dropped",
    __doc__="The number of items in each state just before; null if they could not be read.",
    **_numbers,
)


@with_fields(QueueStats, without=("error", "options"))
class Numbers(BaseModel):
    """A queue's items by state, and its totals."""

    by_priority: dict[str, int]


@with_fields(
    types.Options,
    without=(
        *("kind", "codec", "priorities"),
        *("limited_groups", "has_groups", "shards_before"),
    ),
)
class Options(BaseModel):
    """The options of a queue."""

    rate: list[float] | None = Field(min_length=2, max_length=2)


class QueueNumbers(Numbers, Options):
    """A queue's items by state, its totals and its limits."""


class _NamedNumbers(Numbers):
    """A queue's name, its items by state, and its totals."""

    name: str


class _UnknownNumbers(BaseModel):
    """The name of a queue, and why its numbers are unknown."""

    name: str
    error: str


class Queues(BaseModel):
    """The queues by name, and the `after` of the next page, or null."""

    queues: list[_NamedNumbers | _UnknownNumbers]
    next: str | None


class QueueDescription(BaseModel):
    """A queue's kind, options and numbers."""

    name: str
    kind: str
    codec: str
    options: Options
    stats: Numbers


class Scale(BaseModel):
    """The load of a queue, for an autoscaler."""

    ready: int
    delayed: int
    claimed: int
    backlog: int = Field(description="Ready and claimed items; one more if a delayed one is due.")
    oldest_age: float = Field(
        description="Seconds since the oldest ready item was pushed, or was due; or 0."
    )
    paused: bool


class History(BaseModel):
    """The totals of the last 5 minutes, hour and day."""

    windows: list[types.HistoryWindow]


class Job(_ByState):
    """A job's items in a sample by state, and its runs."""

    name: str
    failed_attempts: int
    rate: float | None = Field(description="Done items a second since the time `since`.")
    run_time_median: float | None = Field(description="Seconds, of the done items.")
    run_time_p95: float | None = Field(description="Seconds that 95 % of them did not exceed.")


class Jobs(BaseModel):
    """The jobs of a queue by name, from a sample of its items."""

    jobs: list[Job]
    since: datetime | None = Field(description="When the first done item of the sample ended.")
    more: list[State] = Field(description="The states with more items than were looked at.")
    limit: int = Field(description="How many items in each state were looked at, at most.")


class GroupList(BaseModel):
    """A page of groups."""

    groups: list[GroupInfo]
    for_all: dict[str, Any] = Field(description="The settings of all groups.")
    ungrouped: dict[str, Any] = Field(description="The weight of items without a group.")
    next: str | None = Field(description="The `after` of the next page.")


@with_fields(schedules.Schedule)
class Schedule(BaseModel):
    """A schedule and its state."""

    every: float | None = Field(description="Seconds between its ticks, or null.")
    next_ticks: list[datetime] = Field(
        description="Up to five, of which `next_tick` is the first; none if it has none."
    )


class ScheduleList(BaseModel):
    """The schedules of a queue."""

    schedules: list[Schedule]


class ScheduleRun(BaseModel):
    """The item that was pushed."""

    id: str


# The server


class WorkerList(BaseModel):
    """The running workers."""

    workers: list[WorkerInfo]


class Me(BaseModel):
    """The token's role and queues: a name, or a prefix and `*`."""

    role: Literal["read", "write", "admin"]
    queues: str


class Problem(BaseModel):
    """The reason why a request failed (RFC 9457); some types have more fields."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = None


DESCRIPTIONS = {
    400: "The request is malformed.",
    401: "The request needs a token.",
    403: "The token does not allow this.",
    404: "The queue or the item does not exist.",
    409: "The item or the queue is not in the state that this needs.",
    412: "The options have changed since they were read.",
    413: "The body is too large.",
    415: "The body was not sent as JSON.",
    422: "A value is invalid.",
    429: "The queue is full.",
    503: "The database is unavailable.",
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/problem+json": {"schema": Problem.model_json_schema()}},
    }
    for status, text in DESCRIPTIONS.items()
}
