"""The types that callers see: items, tasks, claims, and the interfaces of an engine."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    overload,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
    OfCodec = TypeVar("OfCodec", default=Any)
    V_co = TypeVar("V_co", covariant=True, default=Any)
else:  # a default needs Python 3.13, or a library that only type checkers need
    from typing import TypeVar

    V = TypeVar("V")
    OfCodec = TypeVar("OfCodec")
    V_co = TypeVar("V_co", covariant=True)

_Value_co = TypeVar("_Value_co", covariant=True)
_Rows_co = TypeVar("_Rows_co", covariant=True)

__all__ = [
    "Codec",
    "FailedAttempt",
    "HistoryWindow",
    "ItemInfo",
    "MatchCount",
    "Options",
    "Priority",
    "QueueStats",
    "ReadTransactor",
    "SearchPage",
    "State",
    "StoredJob",
    "TaskStats",
    "Transactor",
]

Priority: TypeAlias = int | tuple[Any, ...]
"""An item's rank: a 64-bit integer or a tuple. The lowest is popped first."""

PriorityJson: TypeAlias = int | list[Any]
"""The JSON form of a priority: an integer, or a list for a tuple."""

PriorityKind: TypeAlias = type[int] | tuple[type, ...]
"""The type of a queue's priorities: `int`, or the types of a tuple's elements, `(int, float)`."""

Duration: TypeAlias = float | timedelta | str
"""A length of time: a number of seconds, a `timedelta`, or a text such as "90s" or "1h30m"."""

UniqueUntil: TypeAlias = Literal["claimed", "ended"]
"""When the unique key of an item is free again: once it is claimed, or once it has ended."""

Outcome: TypeAlias = Literal["done", "discarded", "cancelled"]
"""How a done item ended: acknowledged, discarded by its handler, or cancelled."""

Missed: TypeAlias = Literal["latest", "skip", "all"]
"""The policy for ticks of a schedule that nobody found in time: push for the last one, for none, or
for each of the last 1,000."""

Overlap: TypeAlias = Literal["allow", "skip", "queue"]
"""The policy for a tick while the item of the last one has not ended: push all the same, not at
all, or once it has ended."""

ItemHeldBy: TypeAlias = Literal[
    "queue_paused",
    "queue_concurrency",
    "queue_rate",
    "group_paused",
    "group_concurrency",
    "group_rate",
    "group_retry",
]
"""The reason why a ready item is not claimed: a limit of its queue or its group."""

OnDead: TypeAlias = Literal["continue", "cancel"]
"""The fate of the other jobs of a batch when one becomes a dead letter: they go on, or those
that have not begun are cancelled."""

Change: TypeAlias = Literal["remove", "clear", "retry", "release", "cancel", "reprioritize"]
"""A change of all items that match."""

State: TypeAlias = Literal["ready", "delayed", "claimed", "dead", "done"]
"""The state of an item: it can be taken, waits, has a lease, failed too often, or is done."""


@dataclass(frozen=True, slots=True)
class ByState:
    """The number of items in each state.

    Attributes:
        ready: Items that can be taken.
        delayed: Items that were pushed with a delay, or wait for their next attempt.
        claimed: Items under a lease.
        dead: Items that failed too often.
        done: Acknowledged and cancelled items that are kept.
    """

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int

    @property
    def by_state(self) -> dict[str, int]:
        """The numbers by the names of the states."""
        return {state: getattr(self, state) for state in STATES}


class StateMeaning(NamedTuple):
    """The meaning of a state.

    Attributes:
        changes: The changes of the items in it, as `change_all` names them.
        has_ended: Whether they have ended. Such an item holds no unique key, takes no place below a
            bound, never expires, and counts as ended for the items that wait for it.
    """

    changes: tuple[Change, ...]
    has_ended: bool = False


STATES: dict[State, StateMeaning] = {
    "ready": StateMeaning(("remove", "clear", "cancel", "reprioritize")),
    "delayed": StateMeaning(("remove", "clear", "retry", "cancel", "reprioritize")),
    "claimed": StateMeaning(("clear", "release", "cancel")),
    "dead": StateMeaning(("remove", "clear", "retry", "reprioritize"), has_ended=True),
    "done": StateMeaning(("remove", "clear"), has_ended=True),
}
"""The states of items, and what each means. `layout/keys.py` says how each is stored."""

ENDED: frozenset[State] = frozenset(state for state, of in STATES.items() if of.has_ended)
"""The states of items that have ended."""


def states_with(change: Change) -> tuple[State, ...]:
    """Return the states of items to which a change applies.

    >>> states_with("retry")
    ('delayed', 'dead')
    """
    return tuple(state for state, of in STATES.items() if change in of.changes)


Json: TypeAlias = dict[str, Any] | list[Any] | str | float | None
"""A JSON value."""


_INTERNAL = {"in_json": False}  # a field that the JSON form of an item leaves out


@dataclass(frozen=True, slots=True)
class Item(Generic[V_co]):
    """An item of a queue; `Item[Page]` has values of the type `Page`.

    Attributes:
        value: The value that was pushed.
        priority: The item's priority; `None` in a FIFO queue.
        id: A text that identifies the item within its queue.
        key: The item's key in the database.
        is_new: False if a push with a unique key stored nothing, and returned this item.
        tick: The tick of the schedule that pushed it; `None` if none has, or if `push` returned it.
        metadata: What else is stored with the item, for `put_back`.
    """

    value: V_co
    priority: Any
    id: str
    key: bytes = field(repr=False)
    is_new: bool = field(default=True, repr=False, compare=False)
    tick: datetime | None = field(default=None, repr=False, compare=False)
    metadata: tuple[Any, ...] = field(default=(), repr=False, compare=False, metadata=_INTERNAL)


Keep: TypeAlias = timedelta | str | int | tuple[timedelta | str, int]
"""Which done items a queue keeps: by age, such as `"7d"`, by number of the newest, or within both.
"""


Unique: TypeAlias = bool | str | Callable[..., str | None]
"""A unique key of a job, a function of its arguments that returns one or `None`, `True` for a key
made from all arguments, or `False` for none."""

Group: TypeAlias = str | Callable[..., str | None]
"""The name of a group, or a function of a job's arguments that returns one, or `None` for none."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a queue. The first push stores them, so that all clients agree.

    Attributes:
        kind: `"priority"`, `"fifo"` or `"task"`.
        codec: The name of the codec; the class name of a custom one.
        priorities: The type of its priorities; `None` in a FIFO queue.
        max_size: The most items it may hold, including delayed and claimed ones; `None` for no
            bound.
        max_attempts: How many times an item may be claimed before it becomes a dead letter; `None`
            for any number.
        concurrency: The most items that may be claimed at a time; `None` for no limit.
        paused: Whether claims and pops are paused.
        keep_seconds: For how many seconds acknowledged items are kept; `None` for any time.
        keep_number: How many acknowledged items are kept, the newest; `None` for any number. No
            items are kept if both are `None`, or if this is 0.
        kept_attempts: How many failed attempts of an item are kept, the last ones.
        traceback_bytes: How many bytes of the traceback of a failed attempt are kept, the last
            ones.
        rate: The most items that may be claimed or popped in a time, and that time in seconds;
            `None` for no limit.
        limited_groups: Whether a push has to check that its group is not full, because a group has
            or has had a bound (see `set_group`).
        has_groups: Whether a claim has to look for turns of groups, because a group has or has had
            items.
    """

    kind: str
    codec: str
    priorities: PriorityKind | None
    max_size: int | None = None
    max_attempts: int | None = None
    concurrency: int | None = None
    paused: bool = False
    keep_seconds: int | None = None
    keep_number: int | None = None
    kept_attempts: int = 10
    traceback_bytes: int = 8_000
    rate: tuple[int, float] | None = None
    limited_groups: bool = False
    has_groups: bool = False

    @property
    def keeps_done(self) -> bool:
        """True if acknowledged items are kept."""
        return self.keep_number != 0 and (
            self.keep_number is not None or self.keep_seconds is not None
        )


@dataclass(frozen=True, slots=True)
class Claim(Generic[V_co]):
    """A lease on items, or tasks: no other client gets them until it expires.

    Iterating over a claim yields one claim per item.

    Attributes:
        items: The claimed items, in order; tasks for a task queue.
        attempts: How many times each item has been claimed so far, from 1.
        keys: The keys of the items in the database.
        token: The fencing token of this claim.
        client: The name of the client that has claimed them.
    """

    items: tuple[V_co, ...]
    attempts: tuple[int, ...]
    keys: tuple[bytes, ...] = field(repr=False)
    token: bytes = field(repr=False)
    client: str = field(default="", repr=False)

    @property
    def item(self) -> V_co:
        """The first item; the only one unless several were claimed."""
        return self.items[0]

    @property
    def attempt(self) -> int:
        """Number of times the first item has been claimed so far, from 1."""
        return self.attempts[0]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Claim[V_co]]:
        for item, attempt, key in zip(self.items, self.attempts, self.keys):
            yield Claim((item,), (attempt,), (key,), self.token, self.client)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt of an item.

    Attributes:
        number: Which attempt it was, from 1.
        started_at: When the item was claimed, by the clock of that client; `None` if an earlier
            release has stored the attempt.
        ended_at: When it failed, by the clock of the client that reported it, or that found the
            lease over.
        client: The name of the client that had claimed the item; empty if unknown.
        error: What went wrong; `None` if the client did not say.
        traceback: The end of the traceback of the exception; `None` without one.
        log: The lines that the handler logged, as text.
        retried_at: When the dead letter that this attempt left was retried, by the clock of the
            client that did so; `None` if it was not.
        retried_by: The name of that client: its host and process id, or what it passed as `by`.
    """

    number: int
    started_at: datetime | None
    ended_at: datetime
    client: str
    error: str | None
    traceback: str | None
    log: str
    retried_at: datetime | None = None
    retried_by: str | None = None

    @property
    def run_time(self) -> timedelta | None:
        """How long it ran, from the claim to its end; `None` if that is not known."""
        return _between(self.started_at, self.ended_at)


def _between(start: datetime | None, end: datetime | None) -> timedelta | None:
    """Return the time from a start to an end, at least 0: they may be of different clocks."""
    return None if start is None or end is None else max(end - start, timedelta())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work on a claimed item is.

    Attributes:
        fraction: The part that is done, from 0 to 1.
        message: What happens at present; its first 1,000 characters are kept.
        reported_at: When the client reported it, by its clock; `None` in a report to be made.
    """

    fraction: float
    message: str = ""
    reported_at: datetime | None = None


class StoredJob(NamedTuple):
    """A call of a job, as the value of an item has it; its text is that of the call.

    Attributes:
        name: The name of the job.
        args: Its positional arguments in their stored form.
        kwargs: Its keyword arguments in their stored form.
        version: The version of the job that pushed it.

    Example:
        >>> print(StoredJob("shop.send", ["ada@example.com"], {"subject": "hi"}, 1))
        shop.send('ada@example.com', subject='hi')
    """

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    version: int

    def __str__(self) -> str:
        named = (f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{self.name}({', '.join([*map(repr, self.args), *named])})"

    @property
    def value(self) -> dict[str, Any]:
        """The value of the item."""
        value = {"job": self.name, "args": self.args, "kwargs": self.kwargs}
        return value if self.version == 1 else {**value, "version": self.version}


def stored_job(value: object) -> StoredJob | None:
    """Return the job that is the value of an item; `None` if it is none.

    >>> stored_job({"job": "shop.send", "args": ["ada@example.com"]})
    StoredJob(name='shop.send', args=['ada@example.com'], kwargs={}, version=1)
    >>> stored_job("send") is None
    True
    """
    if not isinstance(value, dict):
        return None
    stored = typing.cast(Any, value)
    name, version = stored.get("job"), stored.get("version", 1)
    args, kwargs = stored.get("args", []), stored.get("kwargs", {})
    has_name = isinstance(name, str) and isinstance(version, int)
    has_arguments = isinstance(args, list) and isinstance(kwargs, dict)
    return StoredJob(name, args, kwargs, version) if has_name and has_arguments else None


def job_of(item: Item[Any] | Task[Any] | None) -> StoredJob | None:
    """Return the job that is the value of an item, or the payload of a task."""
    return stored_job(item.payload if isinstance(item, Task) else item and item.value)


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job to which another job is linked.

    Attributes:
        queue: The name of its queue; `None` if the queue has none.
        id: The id of its item.
        step: The step in which one of them runs the other; `None` for any other link.
    """

    queue: str | None
    id: str
    step: str | None = None


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The reason why an item waits.

    Attributes:
        kind: What it is: its time, another attempt, a signal, the jobs that it runs in a step, the
            jobs that it follows, the other jobs of its batch, or a worker that knows its job.
        why: The same in words, such as `"no worker knows the job 'shop.send'"`.
        step: The name of the step in which its job waits; `None` if it does not.
        signal: The name of the signal that it waits for, or `None`.
        key: The key of that signal, or `None`.
        jobs: The unfinished jobs that it waits for, up to 100; empty for a batch.
        left: The number of unfinished jobs, also for a batch; `None` for other kinds.
    """

    kind: Literal["time", "retry", "signal", "children", "jobs", "batch", "worker"]
    why: str
    step: str | None = None
    signal: str | None = None
    key: str | None = None
    jobs: tuple[JobRef, ...] = ()
    left: int | None = None


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """Everything about an item that is in one of the states.

    Attributes:
        item: The item, or the task for a task queue; `None` if its payload cannot be decoded.
        id: The id of the item.
        state: Its state.
        attempts: How many times it was claimed, without claims that were released.
        max_attempts: How many times it may be claimed; `None` for any number of times.
        pushed_at: When it was pushed, by the clock of the client that pushed it; `None` if another
            implementation of the recipe did.
        due_at: When a delayed item becomes ready; `None` in any other state.
        expires_at: When it expires unless a client takes it before; `None` for never.
        claimed_by: The name of the client that has claimed it, or had claimed it if it is done; an
            empty text if that is not known; `None` in any other state.
        claimed_at: When that client claimed it, by its clock; `None` in any other state, or if that
            is not known.
        lease_ends: When the lease of a claimed item ends, unless it is extended; `None` in any
            other state, or if it is not known.
        died_at: When it became a dead letter; `None` in any other state.
        cancelling: Whether it was cancelled, and is still claimed.
        finished_at: When a done item ended; `None` in any other state.
        outcome: How a done item ended; `None` in any other state.
        result: What the handler of a done item returned, if that is stored; otherwise `None`.
        error: The error of its last failed attempt; `None` if none failed, or none was given. Of a
            done item, why it was discarded or cancelled.
        unique: Its unique key, or `None`.
        group: Its group, or `None`.
        held_by: What keeps a ready item from being claimed, regardless of the items ahead of it;
            `None` for nothing, or in any other state.
        waits_for: What the item waits for, if it is delayed or no worker knows its job; otherwise
            `None`.
        parent: The job that runs it in a step, or `None`.
        ahead_in_group: How many ready items of its group are ahead of a ready one in its priority,
            up to 100; `None` without a group, in any other state, and in lists of items.
        progress: How far the work on a claimed item is, as its client has reported; `None` in any
            other state, or if it has not.
        log: The lines that the handler of a claimed or done item has logged, as text.
        stored_steps: How many steps of the job are stored.
        in_batch: Whether it counts, or has counted, in a batch when it ends, or waits, or has
            waited, for one.
        failed_attempts: Its last failed attempts, the oldest first, as many as the queue keeps.
    """

    item: Any
    id: str
    state: State
    attempts: int
    max_attempts: int | None
    pushed_at: datetime | None
    due_at: datetime | None
    expires_at: datetime | None
    claimed_by: str | None
    claimed_at: datetime | None
    lease_ends: datetime | None
    died_at: datetime | None
    cancelling: bool
    finished_at: datetime | None
    outcome: Outcome | None
    result: Any
    error: str | None
    unique: str | None
    group: str | None
    held_by: ItemHeldBy | None
    waits_for: WaitsFor | None
    parent: JobRef | None
    ahead_in_group: int | None
    progress: Progress | None
    log: str
    stored_steps: int
    in_batch: bool
    failed_attempts: tuple[FailedAttempt, ...]

    @property
    def job(self) -> StoredJob | None:
        """The job that is the value of the item; `None` if it is none, or cannot be decoded."""
        return job_of(self.item)

    @property
    def run_time(self) -> timedelta | None:
        """How long its last attempt ran, from the claim to the end.

        `None` if none has ended, if the time is not known, or if the item is claimed: then it has
        run since `claimed_at`.
        """
        if self.state == "claimed" or self.finished_at is not None:
            return _between(self.claimed_at, self.finished_at)
        return self.failed_attempts[-1].run_time if self.failed_attempts else None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of the items that a search found.

    Attributes:
        items: The items that match, in order; perhaps none.
        next: The `after` of the next page, which is the id of the last item that the search looked
            at; `None` if it looked at all items.
        scanned: How many items the search looked at.
    """

    items: list[ItemInfo]
    next: str | None
    scanned: int


@dataclass(frozen=True, slots=True)
class MatchCount:
    """The number of items that match, among the ones looked at.

    Attributes:
        count: How many items match.
        next: The `after` of the next call, which is the id of the last item that this one looked
            at; `None` if it looked at all items.
        scanned: How many items it looked at.
    """

    count: int
    next: str | None
    scanned: int


@dataclass(frozen=True, slots=True)
class QueueStats(ByState):
    """The numbers of a queue at one moment.

    Every item is in one state. A popped or acknowledged item is completed, whether it is kept or
    not. The totals count from the creation of the queue, or from its last `clear`, and never fall.
    They add up:

        total_pushed + total_put_back == ready + delayed + claimed + dead
                                         + total_completed + total_expired + total_removed

    Attributes:
        unknown_jobs: Ready and delayed items that a worker has left because it does not know their
            job.
        by_priority: The ready items of each priority that has any; empty for a FIFO queue.
        oldest: When the oldest ready item was pushed; `None` if there is none, or if another
            implementation of the recipe pushed it. In a task queue, the oldest of the first 100.
        next_due: When the next delayed item is due; `None` if none is delayed. If this is in the
            past, no client has swept since then.
        paused: Whether the queue is paused.
        options: The options of the queue, with its limits; `None` from `overview`, which does not
            read them.
        total_pushed: Items pushed. A retry is not a push.
        total_completed: Items popped or acknowledged.
        total_failed: Attempts that failed, including those whose lease ran out.
        total_retried: Failed items that returned for another attempt, and retried dead letters.
        total_expired: Items that expired before they were taken.
        total_removed: Items removed, or cancelled while they waited, and dead letters dropped.
        total_died: Items that became dead letters.
        total_put_back: Popped items that were put back.
        total_rejected: Items for which the queue had no room.
        error: Why the numbers are not known, from `overview`: its bytes cannot be read. All numbers
            are 0 then. `None` if they are known.
    """

    unknown_jobs: int
    by_priority: dict[Any, int]
    oldest: datetime | None
    next_due: datetime | None
    paused: bool
    options: Options | None
    total_pushed: int
    total_completed: int
    total_failed: int
    total_retried: int
    total_expired: int
    total_removed: int
    total_died: int
    total_put_back: int
    total_rejected: int
    error: str | None = None

    @property
    def unfinished(self) -> int:
        """The number of ready, delayed and claimed items, which `max_size` limits."""
        return sum(n for state, n in self.by_state.items() if state not in ENDED)

    @property
    def is_empty(self) -> bool:
        """True if the queue has no item in any state but done, and its numbers are known."""
        return not (self.error or self.unfinished or self.dead)


@dataclass(frozen=True, slots=True)
class HistoryBucket:
    """The changes of a queue within one short period.

    Attributes:
        begin: When the period began. It lasts 30 seconds, or 15 minutes in the window of a day.
        pushed: Items pushed.
        taken: Items popped or claimed.
        completed: Items popped or acknowledged.
        failed: Attempts that failed.
        died: Items that became dead letters.
    """

    begin: datetime
    pushed: int
    taken: int
    completed: int
    failed: int
    died: int


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """The changes of a queue within the last minutes or hours, up to now.

    An item waits from the moment at which it becomes ready, by its push, its delay or its retry,
    until a pop or claim takes it. Each client notes the waiting times of one transaction a second,
    and the run times of another, so they come from a sample of the items. They are accurate to
    about a sixth.

    Attributes:
        seconds: The length of the window: 300, 3,600 or 86,400 seconds.
        since: When it began. Its last period is not over, so this is less than `seconds` ago.
        pushed: Items pushed.
        taken: Items popped or claimed.
        completed: Items popped or acknowledged.
        failed: Attempts that failed.
        died: Items that became dead letters.
        waiting_median: The seconds that half of the items waited at most; `None` if none was taken.
        waiting_p95: The seconds that 95 % of the items waited at most.
        running_median: The seconds that half of the attempts took at most, from the claim to its
            end; `None` if none ended.
        running_p95: The seconds that 95 % of the attempts took at most.
        buckets: The periods of the window in which something changed, in order.
    """

    seconds: int
    since: datetime
    pushed: int
    taken: int
    completed: int
    failed: int
    died: int
    waiting_median: float | None
    waiting_p95: float | None
    running_median: float | None
    running_p95: float | None
    buckets: tuple[HistoryBucket, ...]


class Codec(Protocol[V]):
    """An encoding of values as bytes, with `decode(encode(value)) == value`.

    `encode` raises `ValueError` or `TypeError` for a value that it cannot encode, `decode` for
    bytes that it did not write.
    """

    def encode(self, value: V, /) -> bytes:
        """Return the bytes of a value."""
        ...

    def decode(self, payload: bytes, /) -> V:
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
class Task(Generic[V_co]):
    """A task of a task queue; `Task[Invoice]` has payloads of the type `Invoice`.

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
        metadata: What else is stored with the task, for `put_back`.
    """

    id: str
    priority: TaskPriority
    deadline: datetime | None
    cost: float
    agent_name: str | None
    client_id: str | None
    payload: V_co
    created_at: datetime
    key: bytes = field(default=b"", repr=False, compare=False)
    metadata: tuple[Any, ...] = field(
        default=(), repr=False, compare=False, metadata={"in_json": False}
    )


@dataclass(frozen=True, slots=True)
class TaskStats:
    """The counters of a task queue since it was created or cleared.

    Attributes:
        total_pushed: Tasks pushed.
        total_popped: Tasks popped or acknowledged.
        total_rejected: Tasks that the queue had no room for.
        total_removed: Tasks removed.
        total_expired: Tasks expired.
        total_died: Tasks that became dead letters.
        current_size: Tasks that are ready.
        oldest: When the oldest ready task was pushed; `None` if none is ready.
        by_priority: Ready tasks of each priority.
        by_agent: Ready tasks of each agent.
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
        """The share of pushed tasks that were popped or acknowledged, from 0 to 1."""
        return self.total_popped / self.total_pushed if self.total_pushed else 0.0

    @property
    def rejection_rate(self) -> float:
        """The share of pushes that the queue had no room for, from 0 to 1."""
        tried = self.total_pushed + self.total_rejected
        return self.total_rejected / tried if tried else 0.0


# The interfaces of an engine: what FoundationDB's binding and the embedded engine have in common.
# They stand here and not in `database/`, because code that runs inside a transaction names them.


class _HasKey(Protocol):
    """An object with a key, such as a `Subspace`."""

    def as_foundationdb_key(self) -> bytes:
        """Return the key."""
        ...


class _HasValue(Protocol):
    """An object with a value."""

    def as_foundationdb_value(self) -> bytes:
        """Return the value."""
        ...


KeyLike: TypeAlias = bytes | _HasKey
"""A key, or an object with a key, such as a `Subspace`."""

ValueLike: TypeAlias = bytes | _HasValue
"""A value, or an object with a value."""


class KeySelector(Protocol):
    """A key described by an offset in keys from a reference key."""

    @property
    def key(self) -> bytes:
        """The reference key."""
        ...

    @property
    def or_equal(self) -> bool:
        """True if the reference key itself is counted."""
        ...

    @property
    def offset(self) -> int:
        """The offset in keys."""
        ...

    def __add__(self, offset: int, /) -> KeySelector: ...


KeyOrSelector: TypeAlias = KeyLike | KeySelector
"""A key, or a key selector."""


class Future(Protocol):
    """The result of an asynchronous call, such as a watch or a commit."""

    def wait(self) -> Any:
        """Return the result once it is ready, or raise its error."""
        ...

    def is_ready(self) -> bool:
        """Return whether the result, or its error, is ready."""
        ...

    def block_until_ready(self) -> None:
        """Wait until the result, or its error, is ready."""

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(future)` once ready."""

    def cancel(self) -> None:
        """Give up on a result that is not ready yet."""


class _Bytes(Future, Protocol):
    """A future that behaves like the bytes it holds."""

    def __bytes__(self) -> bytes: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> bytes: ...

    def as_foundationdb_key(self) -> bytes:
        """Return the bytes, for use as a key."""
        ...

    def as_foundationdb_value(self) -> bytes:
        """Return the bytes, for use as a value."""
        ...


class Value(_Bytes, Protocol):
    """The value of a key, which may be absent."""

    @property
    def value(self) -> bytes | None:
        """The bytes; `None` if the key has no value."""
        ...

    def present(self) -> bool:
        """Return whether the key has a value."""
        ...


class Key(_Bytes, Protocol):
    """The key of a key selector, or the versionstamp of a commit."""

    @property
    def value(self) -> bytes:
        """The bytes."""
        ...


class KeyValue(Protocol):
    """One row of a range read. It unpacks into its key and its value."""

    @property
    def key(self) -> bytes:
        """The key."""
        ...

    @property
    def value(self) -> bytes:
        """The value."""
        ...

    def __iter__(self) -> Iterator[bytes]: ...


class RangeResult(Protocol):
    """The rows of a range read, fetched in batches during iteration."""

    def __iter__(self) -> Iterator[KeyValue]: ...

    def to_list(self) -> Sequence[KeyValue]:
        """Return all rows as a list."""
        ...


class _Reads(Protocol[_Value_co, _Rows_co]):
    """The reads of a transaction, which return futures, and of a database, which return results."""

    def get(self, key: KeyLike) -> _Value_co:
        """Return the value of a key; a database returns `None` if it has none."""
        ...

    def get_range(
        self,
        begin: KeyOrSelector | None,
        end: KeyOrSelector | None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = -1,
    ) -> _Rows_co:
        """Return the rows from `begin` up to, but not including, `end`; a database, as a list."""
        ...

    def get_range_startswith(
        self, prefix: KeyLike, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> _Rows_co:
        """Return the rows whose keys start with `prefix`."""
        ...

    @overload
    def __getitem__(self, key: KeyLike, /) -> _Value_co: ...

    @overload
    def __getitem__(self, key: slice, /) -> _Rows_co: ...


class ReadTransaction(_Reads[Value, RangeResult], Protocol):
    """The reads of a transaction. `tr.snapshot` offers the same without read conflicts."""

    def get_key(self, key_selector: KeySelector) -> Key:
        """Return the key that a selector describes."""
        ...

    def get_read_version(self) -> Future:
        """Return a future for the version that the transaction reads at."""
        ...


class _Writes(Protocol):
    """The writes of a transaction. Those of a database are each a transaction of its own."""

    def set(self, key: KeyLike, value: ValueLike) -> None:
        """Set the value of a key."""

    def clear(self, key: KeyLike) -> None:
        """Clear a key."""

    def clear_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Clear all keys from `begin` up to, but not including, `end`."""

    def clear_range_startswith(self, prefix: KeyLike) -> None:
        """Clear all keys that start with `prefix`."""

    def __setitem__(self, key: KeyLike, value: ValueLike, /) -> None: ...

    def __delitem__(self, key: KeyLike | slice, /) -> None: ...

    def add(self, key: KeyLike, param: ValueLike) -> None:
        """Add a little-endian integer. A missing value counts as zero."""

    def bit_and(self, key: KeyLike, param: ValueLike) -> None:
        """Apply a bitwise "and". A missing value becomes the parameter."""

    def bit_or(self, key: KeyLike, param: ValueLike) -> None:
        """Apply a bitwise "or". A missing value counts as zeros."""

    def bit_xor(self, key: KeyLike, param: ValueLike) -> None:
        """Apply a bitwise "xor". A missing value counts as zeros."""

    def max(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the larger of two little-endian integers."""

    def min(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the smaller of two little-endian integers. A missing value becomes the parameter."""

    def byte_max(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the value that sorts later, byte by byte."""

    def byte_min(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the value that sorts earlier. A missing value becomes the parameter."""

    def append_if_fits(self, key: KeyLike, param: ValueLike) -> None:
        """Append to the value, unless the result would exceed 100,000 bytes."""

    def compare_and_clear(self, key: KeyLike, param: ValueLike) -> None:
        """Clear the key if its value equals the parameter."""

    def set_versionstamped_key(self, key: KeyLike, param: ValueLike) -> None:
        """Set a key with the commit's versionstamp at the offset in its last four bytes."""

    def set_versionstamped_value(self, key: KeyLike, param: ValueLike) -> None:
        """Set a value with the commit's versionstamp at the offset in its last four bytes."""

    @property
    def options(self) -> Any:
        """The options, set by `set_...` methods, which the binding makes from a list."""
        ...


class Transaction(ReadTransaction, _Writes, Protocol):
    """A transaction: the binding's, or the embedded engine's.

    Source: FoundationDB documentation, Python API, "Transaction objects".
    """

    @property
    def snapshot(self) -> ReadTransaction:
        """Reads of the same transaction without read conflicts."""
        ...

    def add_read_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Conflict as if the range had been read."""

    def add_read_conflict_key(self, key: KeyLike) -> None:
        """Conflict as if the key had been read."""

    def add_write_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Make other transactions conflict as if the range had been written."""

    def add_write_conflict_key(self, key: KeyLike) -> None:
        """Make other transactions conflict as if the key had been written."""

    def watch(self, key: KeyLike) -> Future:
        """Return a future that is ready once the key's value differs from the one seen here."""
        ...

    def commit(self) -> Future:
        """Apply all writes atomically, unless a key that was read has changed (1020)."""
        ...

    def on_error(self, error: BaseException | int) -> Future:
        """Prepare the next attempt after a retryable error, or fail with the error."""
        ...

    def set_read_version(self, version: int) -> None:
        """Read at this version."""

    def get_committed_version(self) -> int:
        """Return the version of the commit; -1 if nothing was written."""
        ...

    def get_versionstamp(self) -> Key:
        """Return a future for the versionstamp, ready after the commit. Call before the commit."""
        ...

    def reset(self) -> None:
        """Restore the state of a new transaction."""

    def cancel(self) -> None:
        """Cancel the transaction. Every further operation fails with 1025."""


class Engine(NamedTuple):
    """The properties of a database that FoundationDB's API does not show.

    A database of the embedded engine has them as its attribute `engine`. A database of
    FoundationDB's binding has no such attribute: it is a cluster.

    Attributes:
        is_remote: Whether each read and each commit is a round trip to a server. Then a second
            attempt costs more than a request to another process, so pops are staged, and a thread
            with several transactions performs another one while it waits.
        commits_are_certain: Whether no commit with an unknown result is ever repeated. Then an
            operation takes effect once without a receipt.
    """

    is_remote: bool
    commits_are_certain: bool


class Database(_Reads[bytes | None, Sequence[KeyValue]], _Writes, Protocol):
    """A database: the binding's, or the embedded engine's; `fdbqueue.open` returns one.

    Each operation on the database itself is a transaction of its own, retried until it commits.

    Source: FoundationDB documentation, Python API, "Database objects".
    """

    def create_transaction(self) -> Transaction:
        """Return a new transaction. `fdbqueue.transactional` is the convenient way to use one."""
        ...


Transactor: TypeAlias = Transaction | Database
"""A transaction of the caller's, or a database for one of the library's own."""

ReadTransactor: TypeAlias = ReadTransaction | Database
"""A transaction, its `snapshot`, or a database: reads need no more."""
