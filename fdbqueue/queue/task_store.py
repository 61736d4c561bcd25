"""Tasks as they are stored: looked at, found, counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.database.retrying import read
from fdbqueue.errors import ForeignKey
from fdbqueue.layout import Layout
from fdbqueue.layout.priorities import Priorities
from fdbqueue.layout.tasks import RANK, TaskCodec, TaskRecord, checked_id, deadline_from, task_id
from fdbqueue.operations.items import WANT_ALL, Found
from fdbqueue.operations.tasks import TaskIndex, TaskRows
from fdbqueue.queue.arguments import checked_agent, checked_client, whole_seconds
from fdbqueue.queue.claimable import ClaimableStore
from fdbqueue.types import DeadLetter, Item, Options, Task, TaskPriority, TaskStats

__all__ = ["TaskStore"]

_PAGE = 500  # tasks that a look at a database reads in one transaction


class TaskStore(ClaimableStore):
    """The tasks of one subspace: items whose priority is (urgency, deadline, cost)."""

    _position_parts = 3
    rows: TaskRows

    def __init__(
        self,
        subspace: Subspace,
        *,
        max_size: int | None = None,
        ageing: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> None:
        layout = Layout(subspace)
        rows = TaskRows(layout, Priorities(layout, RANK).level_in)
        self._ageing = whole_seconds(ageing)
        options = Options("task", "task", RANK, max_size, self._ageing, max_attempts)
        self._index = TaskIndex(layout, rows)
        super().__init__(layout, rows, TaskCodec(), options, self._index)

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

    def shown(self, item: Item) -> Task:
        return self._task(item)

    def _read(self, tr: Any, key: bytes, stored: bytes) -> Task:
        return self._task(self._item(tr, key, stored))

    def peek(self, tr: Any, *, agent: str | None = None) -> Task | None:
        """The task that `pop` would take, left where it is.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> fdbqueue.TaskQueue.named(db, "tasks").peek(db) is None
        True
        """
        if agent is not None:
            checked_agent(agent)
        self.sweeper.prepare(tr)

        def body(tr: Any) -> Task | None:
            if agent is not None:
                found = self._index.first_of(tr, 1, agent)
                return self._read(tr, *found[0]) if found else None
            rows = self.rows.first(tr, 1)
            return self._read(tr, rows[0].key, rows[0].value) if rows else None

        return read(tr, body)

    def get_all_tasks(self, tr: Any, *, limit: int = 0, reverse: bool = False) -> Iterator[Task]:
        """All tasks that wait, in order; page by page, as `PriorityQueue.items`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
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
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, agent_name="ada", payload=1), tasks.push(db, payload=2)
        >>> [task.payload for task in tasks.get_tasks_for_agent(db, "ada")]
        [1]
        """
        return self._by_index(tr, self.layout.agents, checked_agent(agent_name))

    def get_tasks_for_client(self, tr: Any, client_id: str) -> Iterator[Task]:
        """The tasks of a client that wait, in order; as `get_tasks_for_agent`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, client_id="7", payload=1), tasks.push(db, client_id="8", payload=2)
        >>> [task.payload for task in tasks.get_tasks_for_client(db, "8")]
        [2]
        """
        return self._by_index(tr, self.layout.clients, checked_client(client_id))

    def _by_index(self, tr: Any, index: bytes, name: str) -> Iterator[Task]:
        for page in self._pages(tr, index, name):
            yield from page

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
        random = checked_id(task_id)

        def body(tr: Any) -> Task | None:
            found = self._index.of_id(tr, random)
            return None if found is None else self._read(tr, found.key, found.value)

        return read(tr, body)

    def _found(self, tr: Any, item: Any) -> Found | None:
        return self._index.of_id(tr, checked_id(item.id if isinstance(item, Task) else item))

    def _letter(self, tr: Any, key: bytes, stored: bytes) -> DeadLetter:
        letter = super()._letter(tr, key, stored)
        place = key[len(self.layout.dead) :]
        return replace(letter, id=self._id(self.layout.items + place))

    def _pages(self, tr: Any, index: bytes, name: str) -> Iterator[list[Task]]:
        """The tasks of an agent or client, page by page."""
        prefix = self.layout.indexed(index, name)
        begin, end = self.layout.range_of(prefix)

        def page(tr: Any) -> tuple[bytes, list[Task]]:
            rows = list(tr.get_range(begin, end, limit=_PAGE, streaming_mode=WANT_ALL))
            keys = [self.layout.items + row.key[len(prefix) :] for row in rows]
            # All reads are under way before the first is waited for.
            values = [tr[key] for key in keys]
            tasks = [self._read(tr, key, value.value) for key, value in zip(keys, values)]
            return rows[-1].key + b"\x00" if len(rows) == _PAGE else end, tasks

        while begin < end:
            begin, tasks = read(tr, page)
            yield tasks

    def _count_ahead(self, tr: Any, key: bytes) -> int:
        """How many tasks are ahead of the one with this key."""
        begin = self.layout.range_of(self.layout.items)[0]
        ahead = 0

        def page(tr: Any) -> list[Any]:
            return list(tr.get_range(begin, key, limit=10 * _PAGE, streaming_mode=WANT_ALL))

        while rows := read(tr, page):
            ahead += len(rows)
            begin = rows[-1].key + b"\x00"
        return ahead

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
        random = checked_id(task_id)
        found = read(tr, lambda tr: self._index.waiting(tr, random))
        if found is None:
            return None
        return self._count_ahead(tr, found[0])

    def counts(self, tr: Any) -> dict[TaskPriority, int]:
        """How many tasks of each priority wait; one read of at most five counters.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
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
        >>> tasks = fdbqueue.TaskQueue.named(db, "tasks")
        >>> _ = tasks.push(db, agent_name="ada"), tasks.push(db), tasks.pop(db)
        >>> stats = tasks.get_stats(db)
        >>> stats.total_pushed, stats.total_popped, stats.success_rate, stats.current_size
        (2, 1, 0.5, 1)
        """
        return read(tr, self._index.stats)
