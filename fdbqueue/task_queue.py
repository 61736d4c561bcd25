"""The task queue: by priority, then deadline, then cost, then time of creation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.database import read
from fdbqueue.directory import find, place
from fdbqueue.errors import ForeignKey, QueueNotFound
from fdbqueue.item_store import ItemStore
from fdbqueue.layout import Layout
from fdbqueue.priorities import Priorities
from fdbqueue.pushes import agreed
from fdbqueue.task import (
    RANK,
    Task,
    TaskCodec,
    TaskPriority,
    TaskRecord,
    TaskStats,
    checked_agent,
    checked_client,
    checked_id,
    deadline_from,
    ranked_task,
    task_id,
    whole_seconds,
)
from fdbqueue.task_index import TaskIndex
from fdbqueue.task_rows import TaskRows
from fdbqueue.types import Item, Options
from fdbqueue.uuids import uuids
from fdbqueue.waiting import checked_wait, wait_for_change

__all__ = ["TaskQueue"]


class TaskQueue(ItemStore):
    """A queue of tasks, by priority, then deadline, then cost, then time of creation.

    The nearest deadline comes first and none last; the cheapest task comes first, and of equal ones
    that which was pushed first. Every task has an id that stays with it, and is found by it, by its
    agent and by its client, at the cost of what is found, however long the queue is.

    As with `PriorityQueue`, every method takes a transaction or a database: in a transaction it is
    part of it, and the caller's own retry rules hold; given a database it takes effect exactly
    once, whatever becomes of a commit's answer. Pushes conflict with nothing; pops conflict with
    each other in transactions, and are served together where they are given a database.

    Parameters: `subspace`, where the queue is (`named` takes a name instead); `max_size`, how many
    tasks wait at most, from 1; `ageing`, after how long a task that waits is as urgent as a new one
    of the next higher priority: whole seconds, or `None` for never. With it no task starves:
    nothing that was pushed more than five times `ageing` after a task comes before it. Both are
    stored with the queue by its first push; `OptionsMismatch` tells a client that differs.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues", with a tuple as priority.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> tasks = TaskQueue.named(db, "tasks")
    >>> for cost in (5, 1):
    ...     _ = tasks.push(db, priority=TaskPriority.HIGH, cost=cost, payload={"cost": cost})
    >>> tasks.pop(db).payload
    {'cost': 1}
    """

    _position_parts = 3
    rows: TaskRows

    def __init__(
        self,
        subspace: Subspace,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
    ) -> None:
        layout = Layout(subspace)
        rows = TaskRows(layout, Priorities(layout, RANK).level_in)
        self._ageing = whole_seconds(ageing)
        options = Options("task", "task", RANK, max_size, self._ageing)
        super().__init__(layout, rows, TaskCodec(), options)
        self._index = TaskIndex(layout, rows)

    @classmethod
    def named(
        cls,
        db: Any,
        name: str,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
    ) -> TaskQueue:
        """The task queue of this name, made by its first push; what is not given is as stored.

        Parameters: `db`, a database or a transaction; `name`, as for `PriorityQueue.named`.

        Raises `InvalidQueueName`, `OptionsMismatch`, `LayoutVersionMismatch`.

        >>> import fdbqueue
        >>> TaskQueue.named(fdbqueue.open("memory:"), "tasks", max_size=10).given_options.max_size
        10
        """
        subspace = read(db, lambda tr: place(tr, name))
        queue = cls.at(db, subspace, max_size=max_size, ageing=ageing)
        queue.layout.name = name
        return queue

    @classmethod
    def existing(cls, db: Any, name: str) -> TaskQueue:
        """The task queue of this name; raises `QueueNotFound` if it was never pushed to.

        >>> import fdbqueue
        >>> TaskQueue.existing(fdbqueue.open("memory:"), "nope")
        Traceback (most recent call last):
        fdbqueue.errors.QueueNotFound: there is no queue named 'nope'; ...
        """
        if read(db, lambda tr: find(tr, name)) is None:
            raise QueueNotFound(name)
        return cls.named(db, name)

    @classmethod
    def at(
        cls,
        db: Any,
        subspace: Subspace,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
    ) -> TaskQueue:
        """The task queue in this subspace, which may be a directory of `fdb.directory`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> TaskQueue.at(db, fdbqueue.Subspace(("my", "tasks"))).size(db)
        0
        """
        layout = Layout(subspace)
        stored = read(db, lambda tr: tr[layout.options].value)
        if stored is None:
            return cls(subspace, max_size=max_size, ageing=ageing)
        options = layout.decode_options(stored)
        if ageing is None and options.ageing is not None:
            ageing = timedelta(seconds=options.ageing)
        queue = cls(subspace, max_size=max_size, ageing=ageing)
        agreed(queue.given_options, options)
        return queue

    # Push

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
    ) -> str | None:
        """Put a task into its place in the order; its id, or `None` if the queue is full.

        Conflicts with nothing, unless the queue has a bound: then as `PriorityQueue.push`. What
        found no room is counted as rejected. Cost: three reads at once and seven keys written, two
        more each for an agent, one more for a client.

        Parameters: `priority`, from 1 (CRITICAL) to 5 (DEFERRED); `deadline`, a `datetime` with a
        time zone, or `None`; `cost`, a finite number from 0; `agent_name` and `client_id`, text up
        to 255 bytes, or `None`; `payload`, a JSON value, up to 8,000,000 bytes.

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
        }
        return next(iter(self.push_many(tr, [task])), None)

    def push_many(
        self, tr: Any, tasks: Iterable[Mapping[str, Any]], *, as_many_as_fit: bool = False
    ) -> list[str]:
        """Put several tasks into the queue in one transaction: all of them, or none; their ids.

        Parameters: `tasks`, each the arguments of `push` by name; `as_many_as_fit`, the first ones
        if the queue has no room for all. Raises as `push`, and `TypeError` for another name.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> len(tasks.push_many(db, [{"payload": 1}, {"payload": 2, "priority": 1}]))
        2
        """
        now = time.time()
        ranked = [ranked_task(self._ageing, now, **task) for task in tasks]
        entries = [
            (self.layout.level(rank), self.encoded(record), uuid)
            for (record, rank), uuid in zip(ranked, uuids(len(ranked)))
        ]
        keys = self._push(tr, entries, as_many_as_fit, raise_if_full=False)
        return [self._id(key) for key in keys]

    def _id(self, key: bytes) -> str:
        return task_id(self.layout.position(key)[-1])

    def _task(self, item: Item) -> Task:
        record: TaskRecord = item.value
        _, deadline, cost = item.priority
        created = self.layout.pushed_at(item.key)
        if created is None:
            raise ForeignKey(item.key)
        return Task(
            self._id(item.key),
            record.priority,
            deadline_from(deadline),
            cost,
            record.agent_name,
            record.client_id,
            record.payload,
            created,
        )

    # Pop and peek

    def pop(self, tr: Any, *, agent: str | None = None, wait: float = 0) -> Task | None:
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
        if agent is None:
            return next(iter(self.pop_many(tr, 1, wait=wait)), None)
        checked_agent(agent)
        deadline = time.monotonic() + checked_wait(tr, wait)
        while (task := self._change(tr, lambda tr: self._pop_of(tr, agent))) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            wait_for_change(
                tr, self.layout.came, lambda tr: self._index.first_of(tr, agent) is None, left
            )
        return task

    def pop_many(self, tr: Any, n: int, *, wait: float = 0) -> list[Task]:
        """Take the first `n` tasks in one transaction, in order; fewer if there are fewer.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push_many(db, [{"payload": n} for n in range(3)])
        >>> [task.payload for task in tasks.pop_many(db, 2)]
        [0, 1]
        """
        return [self._task(item) for item in self._pop(tr, n, False, wait)]

    def peek(self, tr: Any, *, agent: str | None = None) -> Task | None:
        """The task that `pop` would take, left where it is.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> TaskQueue.named(db, "tasks").peek(db) is None
        True
        """
        if agent is not None:
            checked_agent(agent)

        def body(tr: Any) -> Task | None:
            if agent is not None:
                found = self._index.first_of(tr, agent)
                return None if found is None else self._read(tr, *found)
            rows = self.rows.first(tr, 1)
            return self._read(tr, rows[0].key, rows[0].value) if rows else None

        return read(tr, body)

    def _pop_of(self, tr: Any, agent: str) -> Task | None:
        found = self._index.first_of(tr, agent)
        if found is None:
            return None
        task = self._read(tr, *found)
        self._take_one(tr, *found)
        return task

    def _priority_of(self, level: bytes) -> Any:
        return self.layout.priority_of(level)

    def _read(self, tr: Any, key: bytes, stored: bytes) -> Task:
        return self._task(self._item(tr, key, stored))

    # Look

    def get_all_tasks(self, tr: Any, *, limit: int = 0, reverse: bool = False) -> Iterator[Task]:
        """All tasks that wait, in order; page by page, as `PriorityQueue.items`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, priority=5), tasks.push(db, priority=1)
        >>> [int(task.priority) for task in tasks.get_all_tasks(db)]
        [1, 5]
        """
        whole = self.layout.range_of(self.layout.items)
        return map(self._task, self._browse(tr, *whole, limit, None, reverse))

    def get_tasks_for_agent(self, tr: Any, agent_name: str) -> Iterator[Task]:
        """The tasks of an agent that wait, in order.

        By an index: cost of what comes back, two reads for each page of 500, however long the
        queue is. Given a database each page is its own transaction.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, agent_name="ada", payload=1), tasks.push(db, payload=2)
        >>> [task.payload for task in tasks.get_tasks_for_agent(db, "ada")]
        [1]
        """
        return self._by_index(tr, self.layout.agents, checked_agent(agent_name))

    def get_tasks_for_client(self, tr: Any, client_id: str) -> Iterator[Task]:
        """The tasks of a client that wait, in order; as `get_tasks_for_agent`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, client_id="7", payload=1), tasks.push(db, client_id="8", payload=2)
        >>> [task.payload for task in tasks.get_tasks_for_client(db, "8")]
        [2]
        """
        return self._by_index(tr, self.layout.clients, checked_client(client_id))

    def _by_index(self, tr: Any, index: bytes, name: str) -> Iterator[Task]:
        for page in self._index.pages(tr, index, name, self._read):
            yield from page

    def get_task(self, tr: Any, task_id: str) -> Task | None:
        """The task with this id; `None` if it does not wait. Cost: two reads.

        Raises `InvalidItemId` for a text that is no id.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> tasks.get_task(db, tasks.push(db, payload="x")).payload
        'x'
        """
        random = checked_id(task_id)

        def body(tr: Any) -> Task | None:
            found = self._index.of_id(tr, random)
            return None if found is None else self._read(tr, *found)

        return read(tr, body)

    def position(self, tr: Any, task_id: str) -> int | None:
        """How many tasks are ahead of this one; `None` if it does not wait.

        Given a database it counts page by page, and others may push and pop meanwhile. Cost: a scan
        of the tasks that are ahead; `tr.snapshot` conflicts with nothing.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> last, first = tasks.push(db, priority=5), tasks.push(db, priority=1)
        >>> tasks.position(db, first), tasks.position(db, last)
        (0, 1)
        """
        random = checked_id(task_id)
        found = read(tr, lambda tr: self._index.of_id(tr, random))
        if found is None:
            return None
        return self._index.ahead_of(tr, found[0])

    def counts(self, tr: Any) -> dict[TaskPriority, int]:
        """How many tasks of each priority wait; one read of at most five counters.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, priority=2)
        >>> tasks.counts(db)
        {<TaskPriority.HIGH: 2>: 1}
        """
        counted = read(tr, self.rows.counts)
        return {TaskPriority(priority): count for priority, count in counted.items()}

    def get_stats(self, tr: Any) -> TaskStats:
        """What came of the tasks, and how many wait of each priority and agent.

        Cost: reads of counters, one for each priority and agent that has tasks, at once.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, agent_name="ada"), tasks.push(db), tasks.pop(db)
        >>> stats = tasks.get_stats(db)
        >>> stats.total_pushed, stats.total_popped, stats.success_rate, stats.current_size
        (2, 1, 0.5, 1)
        """
        return read(tr, self._index.stats)

    # Change

    def remove_task(self, tr: Any, task_id: str) -> bool:
        """Take a task out of the queue, wherever it stands; false if it does not wait.

        Conflicts with what takes or changes this task. Cost: two reads.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = TaskQueue.named(db, "tasks")
        >>> task = tasks.push(db)
        >>> tasks.remove_task(db, task), tasks.remove_task(db, task)
        (True, False)
        """
        random = checked_id(task_id)

        def body(tr: Any) -> bool:
            found = self._index.of_id(tr, random)
            return found is not None and self._remove(tr, found[0])

        return self._change(tr, body)

    def reprioritize(self, tr: Any, task_id: str, **changes: Any) -> bool:
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
        random = checked_id(task_id)
        self.encoded(ranked_task(None, 0, **changes)[0])  # what is wrong is told before all

        def body(tr: Any) -> bool:
            found = self._index.of_id(tr, random)
            if found is None:
                return False
            task = self._read(tr, *found)
            kept = {field: getattr(task, field) for field in _FIELDS}
            created = task.created_at.timestamp()
            record, rank = ranked_task(self._ageing, created, **{**kept, **changes})
            self._move(tr, *found, self.encoded(record), self.layout.level(rank))
            return True

        return self._change(tr, body)


_FIELDS = ("priority", "deadline", "cost", "agent_name", "client_id", "payload")
