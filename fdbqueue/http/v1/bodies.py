"""The bodies of requests and responses below `/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from fdbqueue.http.fields import (
    MAX_ITEMS,
    MAX_SECONDS,
    DueTime,
    Integer,
    Limit,
    Log,
    Part,
    PositiveSeconds,
    Priority,
    QueueName,
    Seconds,
    Share,
    Slots,
    Text,
    Time,
    Token,
    Wait,
    WholeSeconds,
)
from fdbqueue.queue.arguments import validate_client_name, validate_scope
from fdbqueue.queue.base import HeldBy
from fdbqueue.queue.batches import BatchKind
from fdbqueue.queue.settings import LIMITS
from fdbqueue.queue.steps import StepKind, StepState
from fdbqueue.types import ItemHeldBy, JobRef, Missed, OnDead, Overlap, State, UniqueUntil, WaitsFor

if TYPE_CHECKING:
    from typing_extensions import Self


class _Request(BaseModel):
    # A text such as "1" is not a number, and an unknown field is an error.
    model_config = ConfigDict(strict=True, extra="forbid", ser_json_inf_nan="constants")


class Push(_Request):
    """An item to push, with the arguments of `push` in Python."""

    item: JsonValue = Field(description="The value; for a task its payload.")
    priority: Priority | None = Field(None, description="By default 0, or 3 for a task.")
    group: Text | None = Field(
        None, description="Its group, which shares what is taken. For a task: its agent."
    )
    delay: Seconds | None = Field(None, description="Seconds until it is ready.")
    at: DueTime | None = Field(None, description="ISO 8601 with a time zone: when it is due.")
    ttl: PositiveSeconds | None = Field(None, description="Seconds until it expires.")
    unique: Text | None = Field(None, description="Push only if no unfinished item has this key.")
    unique_until: UniqueUntil | None = Field(
        None, description="When the key is free again: once the item is claimed, or has ended."
    )
    unique_for: PositiveSeconds | None = Field(
        None, description="Seconds for which the key is not free, instead of `unique_until`."
    )
    deadline: Time | None = Field(None, description="For a task: when it is due.")
    cost: float | None = Field(
        None,
        ge=0,
        description="What it counts for in the share of its group, by default 1. For a task: the "
        "cheapest of equal ones is first, by default 0.",
    )
    agent_name: Text | None = Field(None, description="For a task: the agent that it is for.")
    client_id: Text | None = Field(None, description="For a task: the client that it belongs to.")

    @model_validator(mode="after")
    def _has_one_time(self) -> Self:
        if self.delay is not None and self.at is not None:
            raise ValueError("give a delay or a time, not both")
        validate_scope(self.unique, self.unique_until, self.unique_for)
        return self


class Batch(_Request):
    """Items to push in one transaction."""

    items: list[Push] = Field(min_length=1, max_length=MAX_ITEMS)
    as_many_as_fit: bool = Field(
        False, description="Push the first items if the queue has no room for all."
    )


class FollowUp(Push):
    """An item to push in the transaction of an acknowledgement."""

    queue: QueueName


class Pop(_Request):
    """A pop: the number of items, and the seconds to wait for the first."""

    n: Integer = Field(1, ge=1, le=MAX_ITEMS)
    wait: Wait = 0
    agent: Text | None = Field(None, description="For a task queue, with `n` of 1.")
    max: bool = Field(
        False, description="Pop from a priority queue the items of the highest priorities."
    )


class ClaimRequest(_Request):
    """A claim: the number of items, their lease, and the seconds to wait for the first."""

    n: Integer = Field(1, ge=1, le=MAX_ITEMS)
    lease: PositiveSeconds = Field(30, description="Seconds until others may take the items.")
    wait: Wait = 0
    within: Integer = Field(256, ge=1, le=10_000, description="Choose among this many first items.")
    agent: Text | None = Field(None, description="For a task queue: only tasks of this agent.")
    client: Annotated[Text, AfterValidator(validate_client_name)] | None = Field(
        None, description="The name that `claimed_by` shows."
    )


class OfClaim(_Request):
    """A request about a claim."""

    token: Token


class Ack(OfClaim):
    """A claim whose job is done, and what to push in the same transaction."""

    result: JsonValue = None
    log: Log = ""
    then: list[FollowUp] = Field(default=[], max_length=100)


class Nack(OfClaim):
    """A claim whose job failed."""

    delay: Seconds | None = Field(None, description="Seconds until the next attempt.")
    error: str | None = Field(None, max_length=100_000)
    dead: bool = Field(False, description="Make it a dead letter now.")
    log: Log = ""


class Extend(OfClaim):
    """A claim that needs more time, and what its client reports of the work."""

    lease: PositiveSeconds = 30
    progress: float | None = Field(None, ge=0, le=1, description="The part that is done.")
    message: str = Field("", max_length=1000, description="What happens now; with `progress`.")
    log: Log = ""


class Release(OfClaim):
    """A claim to return as if it had never been made."""

    delay: Seconds | None = Field(None, description="Seconds until the item is ready again.")


class Move(_Request):
    """The new place of an item: its priority, and for a task its other fields."""

    priority: Priority | None = None
    deadline: Time | None = None
    cost: float = Field(0, ge=0)
    agent_name: Text | None = None
    client_id: Text | None = None
    item: JsonValue = Field(None, description="The new payload, for a task.")


class ChangeAll(_Request):
    """A change of all items in a state, or of those that match."""

    change: Literal["remove", "retry", "run_now", "release", "cancel", "reprioritize"]
    state: State
    priority: Priority | None = None
    agent: Part | None = None
    id: Part | None = None
    error: Part | None = None
    client: Part | None = None
    job: Part | None = None
    group: str | None = Field(None, max_length=255, description="Empty for items without a group.")
    limit: Integer = Field(0, ge=0, description="The maximum number of items, 0 for all.")
    to: Priority | None = Field(None, description="The new priority, for `reprioritize`.")


class NewOptions(_Request):
    """The options to change; those left out keep their values, and null removes a limit."""

    max_size: Limit | None = None
    max_attempts: Limit | None = None
    concurrency: Slots | None = None
    rate: tuple[Slots, PositiveSeconds] | None = Field(
        None,
        strict=False,
        description="The most items that may be started in a time, in seconds.",
        examples=[[100, 60]],
    )
    agent_concurrency: Slots | None = None
    keep_seconds: WholeSeconds | None = None
    keep_number: Limit | None = None
    kept_attempts: Integer = Field(10, ge=1, le=LIMITS["kept_attempts"].highest)
    traceback_bytes: Integer = Field(8_000, ge=0, le=LIMITS["traceback_bytes"].highest)
    paused: bool = False


class CreateQueue(NewOptions):
    """A queue to create, with its options."""

    kind: Literal["priority", "fifo", "task"] = "priority"
    ageing: WholeSeconds | None = Field(
        None, description="For a task queue: seconds until a task counts as more urgent."
    )


class Rename(_Request):
    """The new name of a queue."""

    name: QueueName


class Check(_Request):
    """A check of a queue; with `repair`, it corrects counters and indexes."""

    repair: bool = False


# Responses


class Pushed(BaseModel):
    """The stored item, or with `is_new` false the one that has its unique key."""

    id: str
    is_new: bool


class BatchPushed(BaseModel):
    """The stored items, or those that have their unique keys, in the order of the request."""

    ids: list[str]


class Found(BaseModel):
    """An item; a task also has `deadline`, `cost`, `agent_name` and `client_id`."""

    model_config = ConfigDict(extra="allow")

    id: str
    priority: Any
    item: Any
    pushed_at: str | None = Field(description="ISO 8601, by the clock of the pushing client.")


class Popped(BaseModel):
    """The items, in order; none if the queue is empty."""

    items: list[Found]


class Claimed(Found):
    """A claimed item, and the token that ends its claim."""

    token: str
    attempt: int


class Claims(BaseModel):
    """The claimed items, in order; none if there was nothing to claim."""

    claims: list[Claimed]


class Progress(BaseModel):
    """How far the work on a claimed item is."""

    fraction: float = Field(description="The part that is done, from 0 to 1.")
    message: str
    reported_at: str


class Info(BaseModel):
    """Everything about an item, by the names of `ItemInfo` in Python."""

    model_config = ConfigDict(extra="allow")

    id: str
    state: State
    priority: Any
    item: Any
    attempts: int
    max_attempts: int | None
    pushed_at: str | None
    due_at: str | None
    expires_at: str | None
    claimed_by: str | None
    claimed_at: str | None
    lease_ends: str | None
    died_at: str | None
    cancelling: bool
    finished_at: str | None
    outcome: Literal["done", "discarded", "cancelled"] | None
    result: Any
    error: str | None
    unique: str | None
    progress: Progress | None = Field(description="What its client reported; null if not claimed.")
    log: str
    group: str | None = Field(description="Its group, or the agent of a task.")
    held_by: ItemHeldBy | None = Field(description="What keeps a ready item from being claimed.")
    waits_for: WaitsFor | None = Field(description="What it waits for, if it is delayed.")
    parent: JobRef | None = Field(description="The job that runs it in a step.")
    ahead_in_group: int | None = Field(
        description="How many ready items of its group are ahead of it in its priority, up to 100; "
        "null in a list."
    )
    stored_steps: int = Field(description="How many steps of the job are stored.")
    in_batch: bool = Field(description="Whether it counts in a batch, or waits for one.")
    run_time: float | None = Field(description="Seconds that its last attempt ran, once it ended.")
    failed_attempts: list[dict[str, Any]]


class Infos(BaseModel):
    """The items that match, in order, among those that were looked at."""

    items: list[Info]
    next: str | None = Field(description="The `after` of the next page, or null.")
    scanned: int = Field(description="How many items were looked at.")


class Count(BaseModel):
    """The number of items that match, among those that were looked at."""

    count: int
    next: str | None = Field(description="The `after` of the next request, or null.")
    scanned: int = Field(description="How many items were looked at.")


class Job(BaseModel):
    """The items of a job in a sample, by state, and how often and how long it ran."""

    name: str
    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int
    failed_attempts: int
    rate: float | None = Field(description="Done items a second since the time `since`.")
    run_time_median: float | None = Field(description="Seconds, of the done items.")
    run_time_p95: float | None = Field(description="Seconds that 95 % of them did not exceed.")


class Jobs(BaseModel):
    """The jobs of a queue by name, from a sample of its items."""

    jobs: list[Job]
    since: str | None = Field(description="ISO 8601: when the first done item of the sample ended.")
    more: list[State] = Field(description="The states with more items than were looked at.")
    limit: int = Field(description="How many items in each state were looked at, at most.")


class Position(BaseModel):
    """The number of ready items ahead of an item, or null if it is not ready."""

    position: int | None


class Result(BaseModel):
    """The result of a done item, as its handler returned it."""

    result: Any


class Changed(BaseModel):
    """The number of changed items, and the ids of up to 1,000 that were not changed."""

    changed: int
    unchanged: list[str]


class Cleared(BaseModel):
    """The number of items in each state just before."""

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int


class Dropped(BaseModel):
    """The number of items in each state just before; null if they could not be read.

    A note for each other queue says how many of its jobs wait for jobs of this one.
    """

    ready: int | None
    delayed: int | None
    claimed: int | None
    dead: int | None
    done: int | None
    notes: list[str]


class _Limits(BaseModel):
    max_size: int | None
    max_attempts: int | None
    concurrency: int | None
    agent_concurrency: int | None
    keep_seconds: int | None
    keep_number: int | None
    kept_attempts: int
    traceback_bytes: int
    rate: list[float] | None = Field(
        description="The most items that may be started in a time, and this time in seconds.",
        min_length=2,
        max_length=2,
    )


class QueueOptions(_Limits):
    """The options of a queue."""

    paused: bool
    ageing: int | None


class Numbers(Cleared):
    """The items of a queue by state, and its totals."""

    unknown_jobs: int = Field(description="Ready and delayed jobs that a worker did not know.")
    by_priority: dict[str, int] = Field(description="The ready items of each priority.")
    oldest: str | None = Field(description="ISO 8601: when the oldest ready item was pushed.")
    next_due: str | None = Field(description="ISO 8601: when the next delayed item is due.")
    paused: bool
    total_pushed: int
    total_completed: int
    total_failed: int
    total_retried: int
    total_expired: int
    total_removed: int
    total_died: int
    total_put_back: int
    total_rejected: int


class QueueNumbers(_Limits, Numbers):
    """The numbers of a queue: its items by state, its totals, and its limits."""


class _NamedNumbers(Numbers):
    """The name of a queue, its items by state, and its totals."""

    name: str


class _UnknownNumbers(BaseModel):
    """The name of a queue whose numbers are unknown, and the reason."""

    name: str
    error: str


class Queues(BaseModel):
    """The queues, in order of their names, and the `after` of the next page, or null."""

    queues: list[_NamedNumbers | _UnknownNumbers]
    next: str | None


class QueueDescription(BaseModel):
    """A queue: its kind, its options, and its numbers."""

    name: str
    kind: str
    codec: str
    options: QueueOptions
    stats: Numbers


class Scale(BaseModel):
    """The load of a queue, for an autoscaler."""

    ready: int
    delayed: int
    claimed: int
    backlog: int = Field(description="Ready and claimed items; one more if a delayed one is due.")
    oldest_age: float = Field(description="Seconds since the oldest ready item was pushed; or 0.")
    paused: bool


class HistoryBucket(BaseModel):
    """The changes of a queue in a period: 30 seconds, or 15 minutes in the window of a day."""

    begin: str = Field(description="ISO 8601.")
    pushed: int
    taken: int
    completed: int
    failed: int
    died: int


class HistoryWindow(BaseModel):
    """The changes of a queue within the last 5 minutes, hour or day."""

    seconds: int
    since: str = Field(description="ISO 8601: when the window began.")
    pushed: int
    taken: int = Field(description="Items popped or claimed.")
    completed: int = Field(description="Items popped or acknowledged.")
    failed: int = Field(description="Failed attempts.")
    died: int = Field(description="Items that became dead letters.")
    waiting_median: float | None = Field(
        description="The seconds that half of the items waited at most before they were taken."
    )
    waiting_p95: float | None = Field(description="The same for 95 % of the items.")
    running_median: float | None = Field(
        description="The seconds that half of the attempts took at most, from the claim to its end."
    )
    running_p95: float | None = Field(description="The same for 95 % of the attempts.")
    buckets: list[HistoryBucket] = Field(description="The periods in which something happened.")


class History(BaseModel):
    """The history of a queue."""

    windows: list[HistoryWindow]


class Me(BaseModel):
    """The role of a token, and its queues: a name, or the beginning of names and `*`."""

    role: Literal["read", "write", "admin"]
    queues: str


class WorkerList(BaseModel):
    """The running workers."""

    workers: list[dict[str, Any]]


class NewSchedule(_Request):
    """A schedule: what it pushes, and when."""

    item: JsonValue = Field(
        description="The value that it pushes; for a task queue, the fields of the task, with the "
        "seconds from the tick to its deadline."
    )
    priority: Priority | None = Field(None, description="That of a priority queue, by default 0.")
    cron: Text | None = Field(None, description="The times, as five fields of cron, or six.")
    every: Annotated[float, Field(ge=1, lt=MAX_SECONDS)] | None = Field(
        None, description="Seconds between ticks, instead of `cron`."
    )
    tz: Text = Field("UTC", description="The time zone of `cron`.")
    missed: Missed = Field("latest", description="Which ticks to push for that were found late.")
    overlap: Overlap = Field(
        "allow", description="What to do while the item of the last tick has not ended."
    )
    group: Text | None = Field(None, description="The group of the items.")


class Schedule(BaseModel):
    """A schedule and its state."""

    name: str
    value: JsonValue
    priority: Any
    cron: str | None
    every: float | None
    tz: str
    missed: Missed
    overlap: Overlap
    group: str | None
    paused: bool
    next_tick: datetime | None
    next_ticks: list[datetime] = Field(
        description="Up to five, of which `next_tick` is the first; none if it has none."
    )
    last_tick: datetime | None
    last_item: str | None
    declared_at: datetime | None
    pushed: int
    skipped: int


class ScheduleList(BaseModel):
    """The schedules of a queue."""

    schedules: list[Schedule]


class ScheduleRun(BaseModel):
    """The item that was pushed."""

    id: str


class Step(BaseModel):
    """A step of a job."""

    name: str
    kind: StepKind
    state: StepState
    began_at: datetime
    ended_at: datetime | None
    failures: int
    due_at: datetime | None
    key: str
    error: str | None
    value: JsonValue


class StepList(BaseModel):
    """The steps of a job."""

    steps: list[Step]


class ItemBatch(BaseModel):
    """A batch, seen from one of its jobs, or from the job that waits for it."""

    kind: BatchKind = Field(
        description="What waits for it: a job at its end (`then`), a job that follows its jobs"
        " (`after`), or a step of a job that runs them (`run`)."
    )
    queue: str | None = Field(description="The queue of the job that waits, if that has a name.")
    id: str = Field(description="The id of the job that waits.")
    step: str | None = Field(description="The step of that job that gets the result.")
    is_member: bool = Field(description="Whether the item is one of its jobs.")
    on_dead: OnDead
    is_open: bool = Field(description="Whether jobs can be added.")
    is_cancelled: bool = Field(description="Whether jobs that have not begun are not to begin.")
    has_ended: bool
    pushed: int
    done: int
    dead: int
    cancelled: int
    left: int


class BatchList(BaseModel):
    """The batches of a job."""

    batches: list[ItemBatch]


class RetryFrom(_Request):
    """The retry of a dead letter, as a job that goes on with a step."""

    step: Text | None = Field(
        None, description="This step, and all that were stored later, are forgotten."
    )


class NewSignal(_Request):
    """A signal for jobs that wait for it."""

    name: Annotated[str, Field(min_length=1, max_length=255, description="Its name.")]
    key: Annotated[str, Field(max_length=255)] = Field("", description="As a rule the id of a job.")
    value: JsonValue = Field(None, description="Its value.")
    keep: Annotated[float, Field(gt=0, lt=MAX_SECONDS)] = Field(
        2_592_000, description="Seconds for which jobs may still come to wait for it."
    )


class Signalled(BaseModel):
    """The number of jobs that waited for a signal."""

    signalled: int


class Problem(BaseModel):
    """The reason why a request failed (RFC 9457); some types have further fields."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = None


PROBLEM_DESCRIPTIONS = {
    400: "The request is malformed.",
    401: "The request needs a token.",
    403: "The token does not allow this.",
    404: "The queue or the item does not exist.",
    409: "The item or the queue is not in the state that this needs.",
    412: "The options have changed since they were read.",
    413: "The body is too large.",
    415: "The body was not sent as JSON.",
    422: "A value is invalid.",
    429: "The queue is full, or there were too many requests.",
    503: "The database is unavailable.",
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/problem+json": {"schema": Problem.model_json_schema()}},
    }
    for status, text in PROBLEM_DESCRIPTIONS.items()
}


class UngroupedChanges(_Request):
    """Settings of the items without a group."""

    weight: Share | None = Field(None, description="The share of a group.")


class AllGroupsChanges(UngroupedChanges):
    """Settings of all groups that have none of their own."""

    concurrency: Slots | None = Field(
        None, description="The most items of a group that may be claimed at a time."
    )
    rate: tuple[Slots, PositiveSeconds] | None = Field(
        None,
        strict=False,
        description="The most items of a group that may be started in a time, in seconds.",
        examples=[[10, 60]],
    )
    in_order: bool | None = Field(
        None, description="For a concurrency of 1: whether a failed item is tried again first."
    )
    max_size: Limit | None = Field(
        None, description="The most ready, delayed and claimed items of a group."
    )
    latest: bool | None = Field(
        None, description="Whether a push cancels the waiting items of its group."
    )


class GroupChanges(AllGroupsChanges):
    """Settings of a group."""

    paused: bool = Field(False, description="Whether none of its items are handed out.")


class Group(BaseModel):
    """A group that has ready, delayed or claimed items or settings."""

    name: str = Field(description="Empty for the items without a group.")
    ready: int | None
    claimed: int | None
    weight: float
    concurrency: int | None
    paused: bool
    rate: tuple[int, float] | None = Field(description="Its rate: a number of items, and seconds.")
    in_order: bool
    held_by: HeldBy | None = Field(description="What keeps its ready items from being handed out.")
    held_until: datetime | None = Field(description="When its rate allows more, if that holds it.")
    delayed: int | None
    max_size: int | None = Field(description="Its most ready, delayed and claimed items.")
    latest: bool = Field(description="Whether a push cancels the waiting items.")


class GroupList(BaseModel):
    """A page of groups."""

    groups: list[Group]
    for_all: AllGroupsChanges = Field(description="The settings of all groups.")
    next: str | None = Field(description="The `after` of the next page.")
