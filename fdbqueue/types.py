"""Public types: items, tasks, claims, and the interfaces of an engine."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, overload

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
    "DeadJob",
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
"""The rank of an item: a 64-bit integer or a tuple. The lowest is popped first."""

PriorityJson: TypeAlias = int | list[Any]
"""The JSON form of a priority; a list stands for a tuple."""

PriorityKind: TypeAlias = type[int] | tuple[type, ...]
"""The type of a queue's priorities: `int`, or the types of a tuple's elements."""

Duration: TypeAlias = float | timedelta | str
"""A length of time: seconds, a `timedelta`, or a text such as "90s" or "1h30m"."""

UniqueUntil: TypeAlias = Literal["claimed", "ended"]
"""The event that frees an item's unique key."""

Outcome: TypeAlias = Literal["done", "discarded", "cancelled"]
"""The end of a done item."""

Missed: TypeAlias = Literal["latest", "skip", "all"]

Overlap: TypeAlias = Literal["allow", "skip", "queue"]

ItemHeldBy: TypeAlias = Literal[
    "queue_paused",
    "queue_concurrency",
    "queue_rate",
    "group_paused",
    "group_concurrency",
    "group_rate",
    "group_retry",
]
"""The limit that keeps a ready item from being claimed."""

OnDead: TypeAlias = Literal["continue", "cancel"]
"""The effect of a batch's dead letter on jobs that have not begun."""

Change: TypeAlias = Literal["remove", "clear", "retry", "release", "cancel", "update"]
"""A change of all matching items."""

State: TypeAlias = Literal["ready", "delayed", "claimed", "dead", "done"]
"""The state of an item; see `ByState`."""


@dataclass(frozen=True, slots=True)
class ByState:
    """The numbers of items by state.

    Attributes:
        ready: Items that can be taken.
        delayed: Items that wait for a time, another attempt, a signal or other jobs.
        claimed: Items under a lease.
        dead: Items that failed for good.
        done: Acknowledged and cancelled items that are kept.
    """

    ready: int
    delayed: int
    claimed: int
    dead: int
    done: int

    @property
    def by_state(self) -> dict[str, int]:
        """The numbers by state name."""
        return {state: getattr(self, state) for state in STATES}


class StateMeaning(NamedTuple):
    """The meaning of a state.

    Attributes:
        changes: The changes of `change_all` that apply to its items.
        has_ended: Whether its items have ended: they hold no unique key, count in no bound,
            never expire, and release the items that wait for them.
    """

    changes: tuple[Change, ...]
    has_ended: bool = False


STATES: dict[State, StateMeaning] = {
    "ready": StateMeaning(("remove", "clear", "cancel", "update")),
    "delayed": StateMeaning(("remove", "clear", "retry", "cancel", "update")),
    "claimed": StateMeaning(("clear", "release", "cancel")),
    "dead": StateMeaning(("remove", "clear", "retry"), has_ended=True),
    "done": StateMeaning(("remove", "clear"), has_ended=True),
}
"""The states; `layout/keys.py` says how each is stored."""

ENDED: frozenset[State] = frozenset(state for state, of in STATES.items() if of.has_ended)
"""The states of ended items."""


def states_with(change: Change) -> tuple[State, ...]:
    """Return the states to which a change applies.

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
        value: The pushed value.
        priority: Its priority; `None` in a FIFO queue.
        id: A text that identifies the item within its queue.
        key: Its key in the database.
        is_new: False if a push found this item under its unique key.
        tick: The tick of the schedule that pushed it, or `None`.
        metadata: Other stored data, for `put_back`.
    """

    value: V_co
    priority: Any
    id: str
    key: bytes = field(repr=False)
    is_new: bool = field(default=True, repr=False, compare=False)
    tick: datetime | None = field(default=None, repr=False, compare=False)
    metadata: tuple[Any, ...] = field(default=(), repr=False, compare=False, metadata=_INTERNAL)


Keep: TypeAlias = timedelta | str | int | tuple[timedelta | str, int]


Unique: TypeAlias = bool | str | Callable[..., str | None]
"""The `unique` of `JobOptions`; `False` for none."""

Group: TypeAlias = str | Callable[..., str | None]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a queue, which the first push stores. `None` stands for no limit.

    Attributes:
        kind: `"priority"`, `"fifo"` or `"task"`.
        codec: The codec's name; the class name of a custom one.
        priorities: The type of priorities; `None` in a FIFO queue.
        max_size: Maximum number of unfinished items.
        max_attempts: Number of claims after which a failing item becomes a dead letter.
        concurrency: Maximum number of items claimed at a time.
        paused: Whether claims and pops are paused.
        keep_seconds: Seconds for which done items are kept.
        keep_number: Number of the newest done items to keep. None are kept if this is 0, or if
            both are `None`.
        kept_attempts: Number of an item's last failed attempts to keep.
        traceback_bytes: Bytes kept of each failed attempt's traceback.
        rate: Maximum number of items claimed or popped in a time, and that time in seconds.
        limited_groups: Whether a group has or had a bound, which pushes check.
        has_groups: Whether a group has or had items, which take turns.
        shards: The number of shards; `None` for one.
        shards_before: The number before its first change, if the queue had items then: where
            groups are to which nobody has pushed since.
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
    shards: int | None = None
    shards_before: int | None = None

    @property
    def has_had_shards(self) -> bool:
        """True if the queue has several shards, or has had them with items."""
        return (self.shards, self.shards_before) != (None, None)

    @property
    def keeps_done(self) -> bool:
        """True if acknowledged items are kept."""
        return self.keep_number != 0 and (
            self.keep_number is not None or self.keep_seconds is not None
        )


@dataclass(frozen=True, slots=True)
class Claim(Generic[V_co]):
    """A lease on items or tasks: no other client gets them until it expires.

    Iterate over it for one claim per item.

    Attributes:
        items: The claimed items or tasks, in order.
        attempts: The number of each item's attempt, from 1.
        keys: The items' keys in the database.
        token: The fencing token.
        client: The name of the client.
    """

    items: tuple[V_co, ...]
    attempts: tuple[int, ...]
    keys: tuple[bytes, ...] = field(repr=False)
    token: bytes = field(repr=False)
    client: str = field(default="", repr=False)

    @property
    def item(self) -> V_co:
        """The first item, usually the only one."""
        return self.items[0]

    @property
    def attempt(self) -> int:
        """The first item's attempt, from 1."""
        return self.attempts[0]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Claim[V_co]]:
        for item, attempt, key in zip(self.items, self.attempts, self.keys):
            yield Claim((item,), (attempt,), (key,), self.token, self.client)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt of an item. Each time is by the clock of the client that noted it.

    Attributes:
        number: Its number, from 1.
        started_at: When the item was claimed; `None` if an earlier release stored the attempt.
        ended_at: When its client reported the failure, or another found the lease over.
        client: The client that claimed the item; empty if unknown.
        error: The error, if the client gave one.
        traceback: The end of the exception's traceback, or `None`.
        log: The lines logged.
        retried_at: When the dead letter was retried, or `None`.
        retried_by: The client that retried it: host and process id, or its `by`.
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
        """The time from the claim to the end; `None` if unknown."""
        return _between(self.started_at, self.ended_at)


def _between(start: datetime | None, end: datetime | None) -> timedelta | None:
    """Return the time between two moments, at least 0; their clocks may differ."""
    return None if start is None or end is None else max(end - start, timedelta())


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a claimed item.

    Attributes:
        fraction: The part done, from 0 to 1.
        message: The current activity; 1,000 characters are kept.
        reported_at: When the client reported it, by its clock; `None` in a new report.
    """

    fraction: float
    message: str = ""
    reported_at: datetime | None = None


class StoredJob(NamedTuple):
    """A call of a job, as an item's value stores it. Its text is the call.

    Attributes:
        name: The job's name.
        args: The positional arguments in stored form.
        kwargs: The keyword arguments.
        version: The job's version at the push.

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
    """Return the job that is the value of an item, or `None`."""
    if not isinstance(value, dict):
        return None
    stored = typing.cast(Any, value)
    name, version = stored.get("job"), stored.get("version", 1)
    args, kwargs = stored.get("args", []), stored.get("kwargs", {})
    has_name = isinstance(name, str) and isinstance(version, int)
    has_arguments = isinstance(args, list) and isinstance(kwargs, dict)
    return StoredJob(name, args, kwargs, version) if has_name and has_arguments else None


def job_of(item: Item[Any] | Task[Any] | None) -> StoredJob | None:
    """Return the job of an item or a task, or `None`."""
    return stored_job(item.payload if isinstance(item, Task) else item and item.value)


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that has become a dead letter, for the job that `App.job(on_dead=...)` names.

    Attributes:
        job: Its name.
        args: Its positional arguments in stored form; `None` if the call is over 10,000 bytes.
        kwargs: Its keyword arguments, as `args`.
        error: Why it died.
        attempts: The number of its failed attempts, also before a retry by hand.
        id: The id of its item.
        queue: The name of its queue, if any.
    """

    job: str
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    error: str | None
    attempts: int
    id: str
    queue: str | None


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job to which another job is linked.

    Attributes:
        queue: Its queue's name, if any.
        id: Its item's id.
        step: The step in which one runs the other, or `None`.
    """

    queue: str | None
    id: str
    step: str | None = None


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The reason why an item waits.

    Attributes:
        kind: Its time, another attempt, a signal, jobs that it runs in a step, jobs that it
            follows, the other jobs of its batch, or a worker that knows its job.
        why: The same in words.
        step: The step in which its job waits, or `None`.
        signal: The signal's name, or `None`.
        key: The signal's key, or `None`.
        jobs: Up to 100 unfinished jobs that it waits for; empty for a batch.
        left: The number of unfinished jobs, including a batch's, or `None`.
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
    """Everything about a stored item.

    A field that does not apply, or is unknown, is `None`.

    Attributes:
        item: The item or task; `None` if its payload cannot be decoded.
        id: Its id.
        state: Its state.
        attempts: How many times it was claimed, without released claims.
        max_attempts: How many times it may be claimed; `None` for no limit.
        pushed_at: When it was pushed, by the clock of that client.
        due_at: When a delayed item becomes ready.
        expires_at: When it expires unless a client takes it.
        claimed_by: The client that claimed it, also of a done item; empty if unknown.
        claimed_at: When, by its clock.
        lease_ends: When the lease of a claimed item ends, unless extended.
        died_at: When it became a dead letter.
        cancelling: Whether it was cancelled and has not ended.
        finished_at: When a done item ended.
        outcome: How a done item ended.
        result: A done item's stored result.
        error: The error of its last failed attempt; why a done item was discarded or cancelled.
        unique: Its unique key.
        group: Its group.
        held_by: What keeps a ready item from being claimed, besides items ahead of it.
        waits_for: What it waits for, if it is delayed or no worker knows its job.
        parent: The job that runs it in a step.
        ahead_in_group: Ready items of its group and priority ahead of a ready one, up to 100;
            `None` in lists.
        progress: A claimed item's reported progress.
        log: The lines logged for a claimed or done item.
        stored_steps: The number of the job's stored steps.
        in_batch: Whether it has counted in a batch, or has waited for one.
        failed_attempts: Its last failed attempts, oldest first.
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
        """The job that is the item's value, or `None`."""
        return job_of(self.item)

    @property
    def run_time(self) -> timedelta | None:
        """The run time of its last attempt; `None` if unknown, or if the attempt has not ended."""
        if self.state == "claimed" or self.finished_at is not None:
            return _between(self.claimed_at, self.finished_at)
        return self.failed_attempts[-1].run_time if self.failed_attempts else None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of search results.

    Attributes:
        items: The matching items, in order.
        next: The `after` of the next page; `None` after the last one.
        scanned: The number of items read.
    """

    items: list[ItemInfo]
    next: str | None
    scanned: int


@dataclass(frozen=True, slots=True)
class MatchCount:
    """The number of matching items among the items read.

    Attributes:
        count: The number.
        next: The `after` of the next call; `None` if all items were read.
        scanned: The number of items read.
    """

    count: int
    next: str | None
    scanned: int


@dataclass(frozen=True, slots=True)
class QueueStats(ByState):
    """The numbers of a queue at one moment.

    The totals count from the queue's creation or last `clear`, never fall, and add up:

        total_pushed + total_put_back == ready + delayed + claimed + dead
                                         + total_completed + total_expired + total_removed

    Attributes:
        unknown_jobs: Ready and delayed items left by a worker that does not know their job.
        by_priority: Ready items of each priority that has any; empty for a FIFO queue.
        oldest: When the oldest ready item was pushed, if known; in a task queue, the oldest of
            the first 100.
        next_due: When the next delayed item is due, or `None`; in the past if no client has
            swept since.
        paused: Whether the queue is paused.
        options: The queue's options; `None` from `overview`.
        total_pushed: Items pushed.
        total_completed: Items popped or acknowledged.
        total_failed: Attempts that failed, including ended leases.
        total_retried: Failed items that returned for another attempt, and retried dead letters.
        total_expired: Items that expired before they were taken.
        total_removed: Items removed, or cancelled before they began, and dropped dead letters.
        total_died: Items that became dead letters.
        total_put_back: Popped items that were put back.
        total_rejected: Items for which the queue had no room.
        error: Why `overview` could not read the numbers, which are then 0.
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

    def has_due(self, now: datetime) -> bool:
        """Return whether a delayed item is due that no client has made ready."""
        return self.next_due is not None and self.next_due <= now

    def waiting_since(self, now: datetime) -> datetime | None:
        """Return when the oldest ready item was pushed, or when one that is still delayed was due.

        `None` if no item waits.
        """
        due = self.next_due if self.has_due(now) else None
        return min(filter(None, (self.oldest, due)), default=None)

    @property
    def unfinished(self) -> int:
        """The number of ready, delayed and claimed items."""
        return sum(n for state, n in self.by_state.items() if state not in ENDED)

    @property
    def is_empty(self) -> bool:
        """True if the numbers are known, and all items are done."""
        return not (self.error or self.unfinished or self.dead)


@dataclass(frozen=True, slots=True)
class HistoryBucket:
    """The changes of a queue in one short period of a `HistoryWindow`.

    Attributes:
        begin: When it began. It lasts 30 seconds, or 15 minutes in the window of a day.
    """

    begin: datetime
    pushed: int
    taken: int
    completed: int
    failed: int
    died: int


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """The changes of a queue in the last minutes or hours.

    An item waits while it is ready. Times come from samples, one transaction a second of each
    client, and are accurate to about a sixth.

    Attributes:
        seconds: The length: 300, 3,600 or 86,400.
        since: When it began, less than `seconds` ago.
        pushed: Items pushed.
        taken: Items popped or claimed.
        completed: Items popped or acknowledged.
        failed: Failed attempts.
        died: New dead letters.
        waiting_median: Median wait in seconds, or `None`.
        waiting_p95: 95th percentile of the wait.
        running_median: Median run time in seconds, or `None`.
        running_p95: 95th percentile of the run time.
        buckets: The periods in which something changed.
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

    Both raise `ValueError` or `TypeError` for a value or bytes that they cannot convert.
    """

    def encode(self, value: V, /) -> bytes:
        """Return a value as bytes."""
        ...

    def decode(self, payload: bytes, /) -> V:
        """Return the encoded value."""
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
    """To be done at any time."""


@dataclass(frozen=True, slots=True)
class Task(Generic[V_co]):
    """A task of a task queue; `Task[Invoice]` has payloads of the type `Invoice`.

    Attributes:
        id: A text that identifies the task within its queue.
        priority: The urgency.
        deadline: When it is due, in UTC, or `None`.
        cost: Among tasks of equal priority and deadline, the cheapest is first.
        agent_name: The agent that is to do it; `None` for any.
        client_id: The client that owns it, or `None`.
        payload: The pushed JSON value.
        created_at: When it was pushed, by the clock of that client.
        key: Its key in the database.
        metadata: As for `Item`.
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
    metadata: tuple[Any, ...] = field(default=(), repr=False, compare=False, metadata=_INTERNAL)


@dataclass(frozen=True, slots=True)
class TaskStats:
    """The counters of a task queue since it was created or cleared.

    Attributes:
        total_pushed: As in `QueueStats`, also the other totals.
        total_popped: Tasks popped or acknowledged.
        current_size: Ready tasks.
        oldest: When the oldest ready task was pushed, or `None`.
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
        """The share of pushed tasks that were popped or acknowledged."""
        return self.total_popped / self.total_pushed if self.total_pushed else 0.0

    @property
    def rejection_rate(self) -> float:
        """The share of pushes that found no room."""
        tried = self.total_pushed + self.total_rejected
        return self.total_rejected / tried if tried else 0.0


# The interfaces of an engine: what FoundationDB's binding and the embedded engine have in common.
# They stand here and not in `database/`, because code that runs inside a transaction names them.


class _HasKey(Protocol):
    def as_foundationdb_key(self) -> bytes: ...


class _HasValue(Protocol):
    def as_foundationdb_value(self) -> bytes: ...


KeyLike: TypeAlias = bytes | _HasKey
"""A key, or an object such as a `Subspace`."""

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
        """True if the reference key counts."""
        ...

    @property
    def offset(self) -> int:
        """The offset in keys."""
        ...

    def __add__(self, offset: int, /) -> KeySelector: ...


KeyOrSelector: TypeAlias = KeyLike | KeySelector
"""A key, or a key selector."""


class Future(Protocol):
    """The result of an asynchronous call."""

    def wait(self) -> Any:
        """Return the result once ready, or raise its error."""
        ...

    def is_ready(self) -> bool:
        """Return whether the result or its error is ready."""
        ...

    def block_until_ready(self) -> None:
        """Wait for the result or its error."""

    def on_ready(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(future)` once ready."""

    def cancel(self) -> None:
        """Give up on the result."""


class _Bytes(Future, _HasKey, _HasValue, Protocol):
    """A future that behaves like the bytes it holds."""

    def __bytes__(self) -> bytes: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> bytes: ...


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
    """The key of a key selector, or a versionstamp."""

    @property
    def value(self) -> bytes:
        """The bytes."""
        ...


class KeyValue(Protocol):
    """A row of a range read. It unpacks into its key and its value."""

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
    """Reads. A transaction's return futures, a database's return results."""

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
        """Return the rows from `begin` (inclusive) to `end` (exclusive); a database, as a list."""
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
        """Return a future for the transaction's read version."""
        ...


class _Writes(Protocol):
    """Writes."""

    def set(self, key: KeyLike, value: ValueLike) -> None:
        """Set the value of a key."""

    def clear(self, key: KeyLike) -> None:
        """Clear a key."""

    def clear_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Clear all keys from `begin` (inclusive) to `end` (exclusive)."""

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
        """The options, set by `set_...` methods."""
        ...


class Transaction(ReadTransaction, _Writes, Protocol):
    """A transaction of the binding or the embedded engine.

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
        """Make others conflict as if the range had been written."""

    def add_write_conflict_key(self, key: KeyLike) -> None:
        """Make others conflict as if the key had been written."""

    def watch(self, key: KeyLike) -> Future:
        """Return a future that is ready once the key's value differs from the value seen here."""
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
        """Return a future for the commit's versionstamp. Call it before the commit."""
        ...

    def reset(self) -> None:
        """Restore the state of a new transaction."""

    def cancel(self) -> None:
        """Cancel the transaction. Every further operation fails with 1025."""


class Engine(NamedTuple):
    """The properties of a database that FoundationDB's API does not show.

    An embedded database has them in `engine`; a database without this attribute is a cluster.

    Attributes:
        is_remote: Whether reads and commits are round trips to a server. Then pops are staged,
            and a thread performs several transactions at once.
        commits_are_certain: Whether no commit with an unknown result is ever repeated. Then no
            receipts are needed.
    """

    is_remote: bool
    commits_are_certain: bool


class Database(_Reads[bytes | None, Sequence[KeyValue]], _Writes, Protocol):
    """A database of the binding or the embedded engine; `fdbqueue.open` returns one.

    Each operation on it is a transaction of its own, retried until it commits.

    Source: FoundationDB documentation, Python API, "Database objects".
    """

    def create_transaction(self) -> Transaction:
        """Return a new transaction; prefer `fdbqueue.transactional`."""
        ...


Transactor: TypeAlias = Transaction | Database
"""The caller's transaction, or a database to run one on."""

ReadTransactor: TypeAlias = ReadTransaction | Database
"""A transaction, its `snapshot`, or a database."""
