"""The task queue: ordered by priority, then deadline, then cost, then time of creation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import SansIO, driven
from fdbqueue.coordination.store import Store
from fdbqueue.database.clock import nanoseconds, uuids
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.rows import TaskRowCodec
from fdbqueue.layout.tasks import RANK, TaskCodec, task_id
from fdbqueue.operations.items import Moved, NewItem
from fdbqueue.operations.tasks import TaskItems, count_by_agent
from fdbqueue.queue.arguments import (
    due_time,
    kept_options,
    new_headers,
    validate_agent,
    validate_client,
    validate_client_name,
    validate_if_full,
    validate_lease,
    validate_number,
    validate_priority,
    validate_state,
    validate_task,
    validate_wait,
    whole_seconds,
)
from fdbqueue.queue.base import BaseQueue, find_stored, read_stored
from fdbqueue.queue.schedules import Schedules
from fdbqueue.types import (
    Claim,
    Duration,
    IfFull,
    ItemInfo,
    Keep,
    Options,
    ReadTransaction,
    ReadTransactor,
    State,
    Task,
    TaskPriority,
    TaskStats,
    Transactor,
    UniqueUntil,
    V,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


def create_deadline(
    days_ahead: float = 0, hours_ahead: float = 0, minutes_ahead: float = 0
) -> datetime:
    """Return the time that is the given time from now, by this machine's clock, in UTC.

    Call it outside of a transaction's body, which may run more than once.

    >>> create_deadline(days_ahead=1) > create_deadline(hours_ahead=23)
    True
    """
    ahead = timedelta(days=days_ahead, hours=hours_ahead, minutes=minutes_ahead)
    return datetime.now(timezone.utc) + ahead


class TaskChanges(TypedDict, total=False):
    """The fields that `TaskQueue.reprioritize` can change."""

    priority: int
    deadline: Any
    cost: Any
    agent_name: str | None
    client_id: str | None
    payload: Any


@dataclass(frozen=True, slots=True)
class _FirstForAgent:
    """Reads the first tasks of an agent; equal for the same agent, so that waiters share a line."""

    tasks: TaskItems
    agent: str

    def __call__(self, tr: ReadTransaction, n: int) -> list[StoredItem]:
        return self.tasks.first_for_agent(tr, n, self.agent)


class TaskQueue(BaseQueue[Task[V]]):
    """A queue of tasks, ordered by priority, then deadline, then cost, then time of creation.

    The nearest deadline comes first, and tasks without a deadline last. The cheapest task comes
    first; among equal ones, the one that was pushed first. A task keeps its id, and is found by its
    id, its agent or its client at the cost of the result, however long the queue is.

    Transactions and conflicts are those of `PriorityQueue`. The first push stores the options with
    the queue, and another `max_size` or `max_attempts` is a warning, as there. A push of a client
    with another `ageing` raises `OptionsMismatch`.

    Args:
        subspace: The subspace of the queue; nothing else may be in it.
        max_size: The maximum number of tasks, with delayed and claimed ones, from 1.
        ageing: The time after which a task is as urgent as a new one of the next higher priority,
            in whole seconds; `None` for never. With ageing no task starves: a task pushed
            more than five times `ageing` later never comes first.
        max_attempts: How many times a task may be claimed before it becomes a dead letter, from 1.
        keep: As for `PriorityQueue`.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues", with a tuple as priority.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> for cost in (5, 1):
        ...     _ = tasks.push(db, priority=TaskPriority.HIGH, cost=cost, payload={"cost": cost})
        >>> tasks.pop(db).payload
        {'cost': 1}
    """

    kind: ClassVar[Literal["task"]] = "task"
    """The kind of the queue, as its options have it."""

    def __init__(
        self,
        subspace: Subspace,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> None:
        layout = Layout(subspace)
        levels = Priorities(layout, RANK, are_counted=False)
        self._ageing = whole_seconds(ageing)
        options = Options(
            self.kind, "task", RANK, max_size, self._ageing, max_attempts, **kept_options(keep)
        )
        items = TaskItems(layout, levels, options)
        self._items = items
        codec = TaskRowCodec(layout, levels, TaskCodec())
        super().__init__(Store(layout, levels, items, codec, options, items))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        return {} if stored.ageing is None else {"ageing": timedelta(seconds=stored.ageing)}

    @classmethod
    def named(
        cls,
        db: Transactor,
        name: str,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> TaskQueue[V]:
        """Return the task queue of this name, which its first push creates.

        Options that are left out are those stored with the queue. Cost: three reads in one
        transaction.

        Args:
            db: A database or a transaction.
            name: As for `PriorityQueue.named`.
            max_size: As for the class.
            ageing: As for the class.
            max_attempts: As for the class.
            keep: As for the class.

        Raises:
            InvalidQueueName: A queue cannot have this name.
            OptionsMismatch: The queue has other options, or is of another kind.
            LayoutVersionMismatch: Another release of this library stored the queue.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> TaskQueue.named(db, "tasks", max_size=10).options(db).max_size
            10
        """
        queue: TaskQueue[V] = cls._open(
            db,
            partial(find_stored, name=name),
            max_size=max_size,
            ageing=ageing,
            max_attempts=max_attempts,
            keep=keep,
        )
        return queue

    @classmethod
    def at(
        cls,
        db: Transactor,
        subspace: Subspace,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
        max_attempts: int | None = None,
        keep: Keep | None = None,
    ) -> TaskQueue[V]:
        """Return the task queue in a subspace, which may be a directory of `fdb.directory`.

        Args:
            db: A database or a transaction.
            subspace: The subspace of the queue.
            max_size: As for the class.
            ageing: As for the class.
            max_attempts: As for the class.
            keep: As for the class.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> TaskQueue.at(db, fdbqueue.Subspace(("my", "tasks"))).size(db)
            0
        """
        queue: TaskQueue[V] = cls._open(
            db,
            partial(read_stored, subspace=subspace),
            max_size=max_size,
            ageing=ageing,
            max_attempts=max_attempts,
            keep=keep,
        )
        return queue

    # Push

    @driven
    def push(
        self,
        tr: Transactor,
        *,
        priority: int = TaskPriority.MEDIUM,
        deadline: datetime | None = None,
        cost: float = 0,
        agent_name: str | None = None,
        group: str | None = None,
        client_id: str | None = None,
        payload: V | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        ttl: Duration | None = None,
        unique: str | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Duration | None = None,
        if_full: IfFull = "drop",
    ) -> SansIO[str | None]:
        """Put a task into its place in the queue; return its id, or `None` if the queue is full.

        Conflicts with nothing; with a maximum size, as `PriorityQueue.push`. A task that found no
        room is counted as rejected. Cost: two reads at the same time and five keys written, one
        more for an agent and one for a client.

        Args:
            tr: A transaction or a database.
            priority: From 1 (`CRITICAL`) to 5 (`DEFERRED`).
            deadline: A `datetime` with a time zone, or `None`.
            cost: A finite number from 0.
            agent_name: Text of up to 255 bytes, or `None`.
            group: The same as `agent_name`: the agents of a task queue are its groups.
            client_id: Text of up to 255 bytes, or `None`.
            payload: A JSON value of up to 8,000,000 bytes.
            delay: As for `PriorityQueue.push`.
            at: As for `PriorityQueue.push`.
            ttl: As for `PriorityQueue.push`.
            unique: As for `PriorityQueue.push`; the call returns the id of the task that has the
                key.
            unique_until: As for `PriorityQueue.push`.
            unique_for: As for `PriorityQueue.push`.
            if_full: What to do if the queue is full: `"drop"` stores nothing and returns `None`,
                `"raise"` raises `QueueFull`.

        Raises:
            InvalidTask: A field has an invalid value.
            QueueFull: The queue is full, and `if_full` is `"raise"`. Nothing was stored.
            InvalidValue: The payload is not a JSON value.
            PayloadTooLarge: The encoded task is too large.
            OptionsMismatch: The queue has other options.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = TaskQueue.named(db, "tasks", max_size=1)
            >>> first = tasks.push(db, agent_name="ada", payload={"invoice": 7})
            >>> len(first), tasks.push(db, payload={"invoice": 8})
            (32, None)
        """
        raises = validate_if_full(if_full)
        task: dict[str, Any] = {
            "priority": priority,
            "deadline": deadline,
            "cost": cost,
            "agent_name": agent_name,
            "group": group,
            "client_id": client_id,
            "payload": payload,
            "delay": delay,
            "at": at,
            "ttl": ttl,
            "unique": unique,
            "unique_until": unique_until,
            "unique_for": unique_for,
        }
        return next(iter((yield from self._push(tr, [task], False, raises))), None)

    @driven
    def push_many(
        self,
        tr: Transactor,
        tasks: Iterable[Mapping[str, Any]],
        *,
        as_many_as_fit: bool = False,
        if_full: IfFull = "drop",
    ) -> SansIO[list[str]]:
        """Push several tasks in one transaction, all of them or none; return their ids.

        Args:
            tr: A transaction or a database.
            tasks: The arguments of `push` by name for each task.
            as_many_as_fit: If the queue has no room for all tasks, push the first ones that fit.
            if_full: As for `push`, unless `as_many_as_fit`.

        Raises:
            TypeError: A task has an unknown field, or one of the errors of `push`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = TaskQueue.named(db, "tasks")
            >>> len(tasks.push_many(db, [{"payload": 1}, {"payload": 2, "priority": 1}]))
            2
        """
        raises = validate_if_full(if_full) and not as_many_as_fit
        return (yield from self._push(tr, list(tasks), as_many_as_fit, raises))

    def _push(
        self, tr: Transactor, given: list[Mapping[str, Any]], as_many_as_fit: bool, raises: bool
    ) -> SansIO[list[str]]:
        now = nanoseconds() / 10**9
        items = [self._new_item(now, uuid, **task) for uuid, task in zip(uuids(len(given)), given)]
        return (yield from self._store.push(tr, items, as_many_as_fit, raises))

    def _new_item(
        self,
        now: float,
        uuid: bytes,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        ttl: Duration | None = None,
        unique: str | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Duration | None = None,
        **task: Any,
    ) -> NewItem:
        record, rank = validate_task(self._ageing, now, **task)
        keys = None if unique is None else (unique,)
        (header,) = new_headers(1, ttl, keys, unique_until, unique_for)
        payload = self._store.codec.encode(record)
        return NewItem(
            self._store.levels.level_of_valid(rank), payload, uuid, due_time(delay, at), header
        )

    @property
    def schedules(self) -> Schedules[Mapping[str, Any]]:
        """The schedules that push tasks to this queue."""
        return Schedules(self._store)

    # Pop and peek

    @driven
    def pop(
        self, tr: Transactor, *, agent: str | None = None, wait: Duration = 0
    ) -> SansIO[Task[V] | None]:
        """Remove and return the first task, or the first one of an agent; `None` if there is none.

        Conflicts are those of `PriorityQueue.pop`. A pop for an agent conflicts with clients that
        take or change the agent's first task. Cost: one read of one row, for an agent one more.

        Args:
            tr: A transaction or a database.
            agent: The name of an agent.
            wait: How many seconds to wait for a task, `math.inf` for ever. Needs a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = TaskQueue.named(db, "tasks")
            >>> _ = tasks.push(db, payload="any"), tasks.push(db, agent_name="ada", payload="hers")
            >>> tasks.pop(db, agent="ada").payload, tasks.pop(db, agent="ada")
            ('hers', None)
        """
        wait = validate_wait(tr, wait)
        if agent is None:
            return next(iter((yield from self._store.pop(tr, 1, False, wait))), None)
        return (yield from self._store.pop_of(tr, self._first_for_agent(agent), wait))

    def peek(self, tr: ReadTransactor, *, agent: str | None = None) -> Task[V] | None:
        """Return the task that `pop` would take, without removing it.

        Args:
            tr: A transaction or a database.
            agent: The name of an agent.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> fdbqueue.TaskQueue.named(db, "tasks").peek(db) is None
            True
        """
        if agent is not None:
            agents = self._store.layout.agents
            return next(self._by_index(tr, agents, validate_agent(agent), limit=1), None)
        return next(iter(self._store.reads.peek(tr, 1)), None)

    # Claims

    @driven
    def claim(
        self,
        tr: Transactor,
        *,
        lease: Duration = 30,
        n: int = 1,
        within: int = 256,
        wait: Duration = 0,
        agent: str | None = None,
        client: str | None = None,
    ) -> SansIO[Claim[Task[V]] | None]:
        """Claim the first tasks, or the first tasks of an agent, for the time of a lease.

        Works as `PriorityQueue.claim`. A claim for an agent always takes the agent's first tasks,
        and conflicts with clients that take them.

        Args:
            tr: A transaction or a database.
            lease: The length of the lease in seconds, over 0.
            n: The maximum number of tasks, from 1.
            within: How many of the first tasks to choose from, from 1.
            wait: How many seconds to wait for a task, `math.inf` for ever. Needs a database.
            agent: The name of an agent.
            client: The name that `get` shows for the client, as for `PriorityQueue.claim`.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = TaskQueue.named(db, "tasks")
            >>> _ = tasks.push(db, agent_name="ada", payload="hers")
            >>> claim = tasks.claim(db, agent="ada")
            >>> claim.item.payload
            'hers'
            >>> tasks.ack(db, claim)
        """
        n, within = validate_number(n, "n", 1), validate_number(within, "within", 1)
        lease, wait = validate_lease(lease), validate_wait(tr, wait)
        first = None if agent is None else self._first_for_agent(agent)
        client = None if client is None else validate_client_name(client)
        return self._store.claim(tr, lease, n, within, wait, client, first)

    # Find and count

    def get_all_tasks(
        self, tr: ReadTransactor, *, limit: int = 0, reverse: bool = False
    ) -> Iterator[Task[V]]:
        """Iterate over the ready tasks in order, page by page, as `PriorityQueue.items` does.

        Args:
            tr: A transaction or a database.
            limit: The maximum number of tasks, 0 for all.
            reverse: Iterate from the last task to the first.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> _ = tasks.push(db, priority=5), tasks.push(db, priority=1)
            >>> [int(task.priority) for task in tasks.get_all_tasks(db)]
            [1, 5]
        """
        return self._store.reads.items(tr, None, validate_number(limit, "limit"), None, reverse)

    def items(
        self,
        tr: ReadTransactor,
        *,
        state: State,
        limit: int = 0,
        after: Task[V] | str | None = None,
        reverse: bool = False,
    ) -> Iterator[ItemInfo]:
        """Iterate over an `ItemInfo` for each task in a state, in order.

        Args:
            tr: A transaction or a database.
            state: `"ready"`, `"delayed"`, `"claimed"`, `"dead"` or `"done"`.
            limit: The maximum number of tasks, 0 for all.
            after: A task in any state, or its id: only the tasks behind it.
            reverse: Iterate from the last task to the first.

        Raises:
            InvalidItemId: `after` is not the id of a task, or the task has ended.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> _ = tasks.push(db, payload="later", delay=60)
            >>> [info.item.payload for info in tasks.items(db, state="delayed")]
            ['later']
        """
        limit = validate_number(limit, "limit")
        return self._store.reads.items(tr, validate_state(state), limit, after, reverse)

    def get_tasks_for_agent(self, tr: ReadTransactor, agent_name: str) -> Iterator[Task[V]]:
        """Iterate over the ready tasks of an agent in order.

        Given a database, tasks are read in pages of 500, each in a transaction of its own. Cost:
        two reads for each page of the result, however long the queue is.

        Args:
            tr: A transaction or a database.
            agent_name: The name of the agent.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> _ = tasks.push(db, agent_name="ada", payload=1), tasks.push(db, payload=2)
            >>> [task.payload for task in tasks.get_tasks_for_agent(db, "ada")]
            [1]
        """
        return self._by_index(tr, self._store.layout.agents, validate_agent(agent_name))

    def get_tasks_for_client(self, tr: ReadTransactor, client_id: str) -> Iterator[Task[V]]:
        """Iterate over the ready tasks of a client in order, like `get_tasks_for_agent`.

        Args:
            tr: A transaction or a database.
            client_id: The id of the client.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> for client in ("7", "8"):
            ...     _ = tasks.push(db, client_id=client, payload=f"for {client}")
            >>> [task.payload for task in tasks.get_tasks_for_client(db, "8")]
            ['for 8']
        """
        return self._by_index(tr, self._store.layout.clients, validate_client(client_id))

    def get_task(self, tr: ReadTransactor, task_id: str) -> Task[V] | None:
        """Return the task with this id, in any state.

        Returns `None` if the task has left the queue. Cost: three reads for a ready task, six for
        another.

        Args:
            tr: A transaction or a database.
            task_id: The id of the task.

        Raises:
            InvalidItemId: The text is not a task id.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> tasks.get_task(db, tasks.push(db, payload="x")).payload
            'x'
        """
        return self._store.reads.find(tr, task_id)

    def counts(self, tr: ReadTransactor) -> dict[TaskPriority, int]:
        """Return the number of ready tasks of each priority that has any.

        Given a database, sweeps first, as `stats` does. Cost: one read of at most five counters.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> _ = tasks.push(db, priority=2)
            >>> tasks.counts(db)
            {<TaskPriority.HIGH: 2>: 1}
        """
        counted = self._store.reads.counts(tr)
        return {TaskPriority(priority): count for priority, count in counted.items()}

    def get_stats(self, tr: ReadTransactor) -> TaskStats:
        """Return totals of the queue, and the number of ready tasks of each priority and agent.

        Cost: one read for each priority and agent that has tasks, all at the same time.

        Args:
            tr: A transaction or a database.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
            >>> _ = tasks.push(db, agent_name="ada"), tasks.push(db), tasks.pop(db)
            >>> stats = tasks.get_stats(db)
            >>> stats.total_pushed, stats.total_popped, stats.success_rate, stats.current_size
            (2, 1, 0.5, 1)
        """
        reads = self._store.reads

        def body(tr: ReadTransaction) -> TaskStats:
            stats = reads.numbers.stats(tr, self._store.given_options)
            return TaskStats(
                total_pushed=stats.total_pushed,
                total_popped=stats.total_completed,
                total_rejected=stats.total_rejected,
                total_removed=stats.total_removed,
                total_expired=stats.total_expired,
                total_died=stats.total_died,
                current_size=stats.ready,
                oldest=stats.oldest,
                by_priority={TaskPriority(level): n for level, n in stats.by_priority.items()},
                by_agent=count_by_agent(tr, self._store.layout),
            )

        return reads.look(tr, body)

    # Change

    def reprioritize(self, tr: Transactor, task_id: str, **changes: Unpack[TaskChanges]) -> bool:
        """Change the priority, deadline, cost, agent, client or payload of a task.

        The task keeps its id and stays ready, delayed or dead. It goes behind the tasks that are
        now equal to it. Returns false if the queue does not have the task. Conflicts with clients
        that take or change this task. Cost: three reads for a ready task, eight for another.

        Args:
            tr: A transaction or a database.
            task_id: The id of the task.
            changes: Arguments of `push` by name. Fields that are left out keep their values.

        Raises:
            InvalidTask: A field has an invalid value, or one of the errors of `push`.
            WrongState: The task is claimed or done.

        Example:
            >>> import fdbqueue
            >>> db = fdbqueue.open("memory:")
            >>> tasks = TaskQueue.named(db, "tasks")
            >>> task = tasks.push(db, priority=TaskPriority.LOW, cost=3)
            >>> tasks.reprioritize(db, task, priority=TaskPriority.CRITICAL)
            True
            >>> tasks.get_task(db, task).priority, tasks.get_task(db, task).cost
            (<TaskPriority.CRITICAL: 1>, 3.0)
        """
        # Validate before anything is read.
        self._store.codec.encode(validate_task(None, 0, **changes)[0])
        return self._store.move(tr, task_id, partial(self._changed, changes)) is not None

    def _changed(self, changes: TaskChanges, task: Task) -> Moved:
        """Return the level and the payload of a task with these changes."""
        store = self._store
        kept = {field: getattr(task, field) for field in TaskChanges.__annotations__}
        created = task.created_at.timestamp()
        record, rank = validate_task(self._ageing, created, **{**kept, **changes})
        return store.levels.level_of_valid(rank), store.codec.encode(record)

    def _move_to(self, to: Any) -> Callable[[Task], Moved | None]:
        changes = TaskChanges(priority=validate_priority(to))

        def moved(task: Task) -> Moved | None:
            return None if task.priority == to else self._changed(changes, task)

        return moved

    def _first_for_agent(self, agent: str) -> _FirstForAgent:
        """Return how to read the first tasks of an agent."""
        return _FirstForAgent(self._items, validate_agent(agent))

    def _by_index(
        self, tr: ReadTransactor, index: bytes, name: str, limit: int = 0
    ) -> Iterator[Task[V]]:
        """Yield the first tasks of an agent or client, page by page."""
        store = self._store
        return store.reads.indexed(tr, store.layout.entry_key(index, name), limit)


@driven
def push_task(
    queue: TaskQueue[Any], tr: Transactor, task: Mapping[str, Any]
) -> SansIO[tuple[str, bool] | None]:
    """Push a task; return its id, and false if an earlier push has stored it.

    Args:
        queue: The queue.
        tr: A transaction or a database.
        task: The arguments of `TaskQueue.push` by name.

    Returns:
        `None` if the queue is full.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> [push_task(tasks, db, {"unique": "daily"})[1] for _ in range(2)]
        [True, False]
    """
    (uuid,) = uuids(1)
    item = queue._new_item(nanoseconds() / 10**9, uuid, **task)
    ids: list[str] = yield from queue._store.push(tr, [item])
    return (ids[0], ids[0] == task_id(uuid)) if ids else None
