"""The task queue: by priority, then deadline, then cost, then time of creation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypedDict

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.clock import uuids
from fdbqueue.coordination.steps import Steps, driven
from fdbqueue.coordination.store import Store
from fdbqueue.database.pages import read_pages
from fdbqueue.database.retrying import read
from fdbqueue.layout import Header, Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.tasks import RANK, TaskCodec, TaskRowCodec
from fdbqueue.operations.items import Entry
from fdbqueue.operations.slots import MOST_SLOTS, First
from fdbqueue.operations.tasks import TaskIndex, TaskRows
from fdbqueue.queue.arguments import (
    checked_agent,
    checked_bound,
    checked_client,
    checked_lease,
    checked_number,
    checked_unique,
    checked_wait,
    due_time,
    expiry_time,
    ranked_task,
    whole_seconds,
)
from fdbqueue.queue.base import BaseQueue, find_stored, open_stored, read_stored
from fdbqueue.types import Claim, Options, Task, TaskPriority, TaskStats

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TaskQueue"]


class TaskChanges(TypedDict, total=False):
    """What `TaskQueue.reprioritize` changes."""

    priority: int
    deadline: Any
    cost: Any
    agent_name: str | None
    client_id: str | None
    payload: Any


class TaskQueue(BaseQueue[Task]):
    """A queue of tasks, by priority, then deadline, then cost, then time of creation.

    The nearest deadline comes first and none last; the cheapest task comes first, and of equal ones
    that which was pushed first. Every task has an id that stays with it, and is found by it, by its
    agent and by its client, at the cost of what is found, however long the queue is.

    As with `PriorityQueue`, every method takes a transaction or a database: in a transaction it is
    part of it, and the caller's own retry rules hold; given a database it takes effect exactly
    once, whatever becomes of a commit's answer. Pushes conflict with nothing; pops conflict with
    each other in transactions, and are served together where they are given a database.

    Parameters: `subspace`, where the queue is (`named` takes a name instead); `max_size`, how many
    tasks there are at most, with delayed and claimed ones, from 1; `max_attempts`, how often a task
    is claimed before it is a dead letter, from 1; `ageing`, after how long a task that waits is as
    urgent as a new one of the next higher priority: whole seconds, or `None` for never. With it no
    task starves: nothing that was pushed more than five times `ageing` after a task comes before
    it. They are stored with the queue by its first push; `OptionsMismatch` tells a client that
    differs.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues", with a tuple as priority.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> tasks = TaskQueue.named(db, "tasks")
    >>> for cost in (5, 1):
    ...     _ = tasks.push(db, priority=TaskPriority.HIGH, cost=cost, payload={"cost": cost})
    >>> tasks.pop(db).payload
    {'cost': 1}
    """

    def __init__(
        self,
        subspace: Subspace,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> None:
        layout = Layout(subspace)
        levels = Priorities(layout, RANK)
        rows = TaskRows(layout, levels)
        self._ageing = whole_seconds(ageing)
        self._index = TaskIndex(layout, rows)
        options = Options("task", "task", RANK, max_size, self._ageing, max_attempts)
        items = TaskRowCodec(layout, levels, TaskCodec())
        super().__init__(Store(layout, levels, rows, items, options, self._index))

    @classmethod
    def _kept(cls, stored: Options) -> dict[str, Any]:
        return {} if stored.ageing is None else {"ageing": timedelta(seconds=stored.ageing)}

    @classmethod
    def named(
        cls,
        db: Any,
        name: str,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> TaskQueue:
        """The task queue of this name, made by its first push; what is not given is as stored.

        Parameters: `db`, a database or a transaction; `name`, as for `PriorityQueue.named`.

        Raises `InvalidQueueName`, `OptionsMismatch`, `LayoutVersionMismatch`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> TaskQueue.named(db, "tasks", max_size=10).options(db).max_size
        10
        """
        return open_stored(
            cls,
            read(db, partial(find_stored, name=name)),
            max_size=max_size,
            ageing=ageing,
            max_attempts=max_attempts,
        )

    @classmethod
    def at(
        cls,
        db: Any,
        subspace: Subspace,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> TaskQueue:
        """The task queue in this subspace, which may be a directory of `fdb.directory`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> TaskQueue.at(db, fdbqueue.Subspace(("my", "tasks"))).size(db)
        0
        """
        return open_stored(
            cls,
            read(db, partial(read_stored, subspace=subspace)),
            max_size=max_size,
            ageing=ageing,
            max_attempts=max_attempts,
        )

    # Push

    @driven
    def push(
        self,
        tr: Any,
        *,
        priority: int = TaskPriority.MEDIUM,
        deadline: Any = None,
        cost: Any = 0,
        agent_name: str | None = None,
        client_id: str | None = None,
        payload: Any = None,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        unique: str | None = None,
    ) -> Steps[str | None]:
        """Put a task into its place in the order; its id, or `None` if the queue is full.

        Conflicts with nothing, unless the queue has a bound: then as `PriorityQueue.push`. What
        found no room is counted as rejected. Cost: two reads at once and five keys written, one
        more each for an agent and a client.

        Parameters: `priority`, from 1 (CRITICAL) to 5 (DEFERRED); `deadline`, a `datetime` with a
        time zone, or `None`; `cost`, a finite number from 0; `agent_name` and `client_id`, text up
        to 255 bytes, or `None`; `payload`, a JSON value, up to 8,000,000 bytes; `delay` or `at`,
        before which nobody gets the task, `ttl` and `unique`, as `PriorityQueue.push`: of a task
        that is there already, its id comes back.

        Raises `InvalidTask`, `InvalidValue` and `PayloadTooLarge`, all of them `ValueError`, and
        `OptionsMismatch`; nothing is stored then.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks", max_size=1)
        >>> first = tasks.push(db, agent_name="ada", payload={"invoice": 7})
        >>> len(first), tasks.push(db, payload={"invoice": 8})
        (32, None)
        """
        task = {
            "priority": priority,
            "deadline": deadline,
            "cost": cost,
            "agent_name": agent_name,
            "client_id": client_id,
            "payload": payload,
            "delay": delay,
            "at": at,
            "ttl": ttl,
        }
        if unique is not None:
            entry = self._entry(time.time(), *uuids(1), **task, unique=checked_unique(unique))
            found = yield from self._store.push_unique(tr, entry, raise_if_full=False)
            return None if found is None else found.id
        return next(iter((yield from self._push(tr, [task], False))), None)

    @driven
    def push_many(
        self, tr: Any, tasks: Iterable[Mapping[str, Any]], *, as_many_as_fit: bool = False
    ) -> Steps[list[str]]:
        """Put several tasks into the queue in one transaction: all of them, or none; their ids.

        Parameters: `tasks`, each the arguments of `push` by name, without `unique`;
        `as_many_as_fit`, the first ones if the queue has no room for all. Raises as `push`, and
        `TypeError` for another name.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> len(tasks.push_many(db, [{"payload": 1}, {"payload": 2, "priority": 1}]))
        2
        """
        return (yield from self._push(tr, list(tasks), as_many_as_fit))

    def _push(
        self, tr: Any, given: list[Mapping[str, Any]], as_many_as_fit: bool
    ) -> Steps[list[str]]:
        now = time.time()
        if any(task.get("unique") is not None for task in given):
            raise TypeError("unique tasks are pushed one by one, with `push`")
        entries = [self._entry(now, uuid, **task) for uuid, task in zip(uuids(len(given)), given)]
        keys = yield from self._store.push(tr, entries, as_many_as_fit, raise_if_full=False)
        return list(map(self._store.codec.id_of, keys))

    def _entry(
        self,
        now: float,
        uuid: bytes,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        unique: str | None = None,
        **task: Any,
    ) -> Entry:
        record, rank = ranked_task(self._ageing, now, **task)
        header = Header(expires=expiry_time(ttl), unique=unique)
        payload = self._store.codec.encode(record)
        return Entry(self._store.layout.level(rank), payload, uuid, due_time(delay, at), header)

    # Pop and peek

    @driven
    def pop(self, tr: Any, *, agent: str | None = None, wait: float = 0) -> Steps[Task | None]:
        """Take the first task, or the first one of an agent; `None` if there is none.

        As `PriorityQueue.pop`. Of an agent: conflicts with what takes or changes the agent's first
        task. Cost: one read of one row, for an agent one more.

        Parameters: `agent`, the name of an agent; `wait`, how many seconds to wait for a task if
        there is none, `math.inf` for ever; it needs a database.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, payload="any"), tasks.push(db, agent_name="ada", payload="hers")
        >>> tasks.pop(db, agent="ada").payload, tasks.pop(db, agent="ada")
        ('hers', None)
        """
        wait = checked_wait(tr, wait)
        if agent is None:
            return next(iter((yield from self._store.pop(tr, 1, False, wait))), None)
        return (yield from self._store.pop_of(tr, self._first_of(agent), wait))

    @driven
    def pop_many(self, tr: Any, n: int, *, wait: float = 0) -> Steps[list[Task]]:
        """Take the first `n` tasks in one transaction, in order; fewer if there are fewer.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push_many(db, [{"payload": n} for n in range(3)])
        >>> [task.payload for task in tasks.pop_many(db, 2)]
        [0, 1]
        """
        n, wait = checked_number(n), checked_wait(tr, wait)
        return (yield from self._store.pop(tr, n, False, wait))

    def peek(self, tr: Any, *, agent: str | None = None) -> Task | None:
        """The task that `pop` would take, left where it is.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> fdbqueue.TaskQueue.named(db, "tasks").peek(db) is None
        True
        """
        if agent is not None:
            return self._store.peek_of(tr, self._first_of(agent))
        return next(iter(self._store.peek(tr, 1)), None)

    # Claims

    @driven
    def claim(
        self,
        tr: Any,
        *,
        lease: float = 30,
        n: int = 1,
        within: int = 256,
        wait: float = 0,
        agent: str | None = None,
    ) -> Steps[Claim | None]:
        """Claim the first tasks, or the first ones of an agent, for a time.

        As `PriorityQueue.claim`; of an agent always the first ones, and conflicts with who takes
        them.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, agent_name="ada", payload="hers")
        >>> claim = tasks.claim(db, agent="ada")
        >>> claim.item.payload
        'hers'
        >>> tasks.ack(db, claim)
        """
        n, within = checked_number(n, "n", 1), checked_number(within, "within", 1)
        lease, wait = checked_lease(lease), checked_wait(tr, wait)
        first = None if agent is None else self._first_of(agent)
        return (yield from self._store.claim(tr, lease, n, within, wait, first))

    # Limits

    def set_agent_concurrency(self, tr: Any, concurrency: int | None) -> None:
        """Let so many tasks of each agent be claimed at a time at most, by all workers.

        Tasks without an agent are not limited. A claim passes over the tasks of agents that have to
        wait, and takes what comes first of the others. As `set_concurrency`; a claim that meets
        such tasks costs a read for each agent, besides.

        Parameters: `concurrency`, from 1 to 10,000, or `None` for no limit.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> for agent in ("ada", "ada", "bob"):
        ...     _ = tasks.push(db, agent_name=agent)
        >>> tasks.set_agent_concurrency(db, 1)
        >>> [claim.item.agent_name for claim in tasks.claim(db, n=3)]
        ['ada', 'bob']
        """
        bound = checked_bound("concurrency", concurrency, MOST_SLOTS)
        self._store.set_limit(tr, "agent_concurrency", bound)

    # Find and count

    def get_all_tasks(self, tr: Any, *, limit: int = 0, reverse: bool = False) -> Iterator[Task]:
        """All tasks that wait, in order; page by page, as `PriorityQueue.items`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, priority=5), tasks.push(db, priority=1)
        >>> [int(task.priority) for task in tasks.get_all_tasks(db)]
        [1, 5]
        """
        return self._store.browse(tr, checked_number(limit, "limit"), None, reverse)

    def get_tasks_for_agent(self, tr: Any, agent_name: str) -> Iterator[Task]:
        """The tasks of an agent that wait, in order.

        By an index: cost of what comes back, two reads for each page of 500, however long the
        queue is. Given a database each page is its own transaction.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, agent_name="ada", payload=1), tasks.push(db, payload=2)
        >>> [task.payload for task in tasks.get_tasks_for_agent(db, "ada")]
        [1]
        """
        return self._by_index(tr, self._store.layout.agents, checked_agent(agent_name))

    def get_tasks_for_client(self, tr: Any, client_id: str) -> Iterator[Task]:
        """The tasks of a client that wait, in order; as `get_tasks_for_agent`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, client_id="7", payload=1), tasks.push(db, client_id="8", payload=2)
        >>> [task.payload for task in tasks.get_tasks_for_client(db, "8")]
        [2]
        """
        return self._by_index(tr, self._store.layout.clients, checked_client(client_id))

    def get_task(self, tr: Any, task_id: str) -> Task | None:
        """The task with this id, also one that is delayed, claimed or dead; `None` if it ended.

        Cost: three reads, of one that does not wait six.

        Raises `InvalidItemId` for a text that is no id.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> tasks.get_task(db, tasks.push(db, payload="x")).payload
        'x'
        """
        return self._store.find(tr, task_id)

    def position(self, tr: Any, task_id: str) -> int | None:
        """How many tasks are ahead of this one; `None` if it does not wait.

        Given a database it counts page by page, and others may push and pop meanwhile. Cost: a scan
        of the tasks that are ahead; `tr.snapshot` conflicts with nothing.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> last, first = tasks.push(db, priority=5), tasks.push(db, priority=1)
        >>> tasks.position(db, first), tasks.position(db, last)
        (0, 1)
        """
        return self._store.position(tr, task_id)

    def counts(self, tr: Any) -> dict[TaskPriority, int]:
        """How many tasks of each priority wait; one read of at most five counters.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, priority=2)
        >>> tasks.counts(db)
        {<TaskPriority.HIGH: 2>: 1}
        """
        counted = self._store.counts(tr)
        return {TaskPriority(priority): count for priority, count in counted.items()}

    def get_stats(self, tr: Any) -> TaskStats:
        """What came of the tasks, and how many wait of each priority and agent.

        Cost: reads of counters, one for each priority and agent that has tasks, at once.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, agent_name="ada"), tasks.push(db), tasks.pop(db)
        >>> stats = tasks.get_stats(db)
        >>> stats.total_pushed, stats.total_popped, stats.success_rate, stats.current_size
        (2, 1, 0.5, 1)
        """
        return read(tr, self._index.stats)

    # Change

    def reprioritize(self, tr: Any, task_id: str, **changes: Unpack[TaskChanges]) -> bool:
        """Give a task another priority, deadline, cost, agent, client or payload; it keeps its id.

        It stands behind those that are equal to it then. False if it does not wait. Conflicts with
        what takes or changes this task. Cost: three reads.

        Parameters: `changes`, arguments of `push` by name; what is not given stays as it is. Raises
        as `push`; nothing is changed then.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> task = tasks.push(db, priority=TaskPriority.LOW, cost=3)
        >>> tasks.reprioritize(db, task, priority=TaskPriority.CRITICAL)
        True
        >>> tasks.get_task(db, task).priority, tasks.get_task(db, task).cost
        (<TaskPriority.CRITICAL: 1>, 3.0)
        """
        store = self._store
        store.codec.encode(ranked_task(None, 0, **changes)[0])  # what is wrong is told before all

        def changed(task: Task) -> tuple[bytes, bytes]:
            kept = {field: getattr(task, field) for field in TaskChanges.__annotations__}
            created = task.created_at.timestamp()
            record, rank = ranked_task(self._ageing, created, **{**kept, **changes})
            return store.layout.level(rank), store.codec.encode(record)

        return store.move(tr, task_id, changed) is not None

    def _first_of(self, agent: str) -> First:
        """Return how to read the first tasks of an agent."""
        return partial(self._index.first_of, agent=checked_agent(agent))

    def _by_index(self, tr: Any, index: bytes, name: str) -> Iterator[Task]:
        """Iterate over the tasks of an agent or client, page by page."""
        layout, decode = self._store.layout, self._store.codec.decode
        prefix = layout.indexed(index, name)

        def page(tr: Any, rows: list[Any]) -> list[Task]:
            keys = [layout.items + row.key[len(prefix) :] for row in rows]
            # All reads are under way before the first is waited for.
            values = [tr[key] for key in keys]
            return [decode(tr, key, value.value) for key, value in zip(keys, values)]

        return chain.from_iterable(read_pages(tr, *layout.range_of(prefix), page))
