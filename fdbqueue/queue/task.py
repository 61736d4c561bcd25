"""The task queue: ordered by priority, then deadline, then cost, then time of creation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.sans_io import SansIO, driven
from fdbqueue.coordination.store import Store
from fdbqueue.layout.items import Level
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.priorities import TaskLevels
from fdbqueue.layout.rows import TaskRowCodec
from fdbqueue.layout.tasks import RANK, TaskCodec, TaskRecord
from fdbqueue.operations.items import Items, NewItem
from fdbqueue.options import QueueOptions, TaskChanges, TaskFields, TaskOptions
from fdbqueue.queue.arguments import given_options, validate_name, validate_options, validate_task
from fdbqueue.queue.base import BaseQueue, new_item, update_item
from fdbqueue.types import ReadTransactor, Task, TaskPriority, TaskStats, Transactor, V

if TYPE_CHECKING:
    from typing_extensions import Unpack


_FIELDS = (*TaskFields.__annotations__, "payload")


def create_deadline(
    days_ahead: float = 0, hours_ahead: float = 0, minutes_ahead: float = 0
) -> datetime:
    """Return the time that far from now, in UTC. Call it outside of transactions.

    >>> create_deadline(days_ahead=1) > create_deadline(hours_ahead=23)
    True
    """
    ahead = timedelta(days=days_ahead, hours=hours_ahead, minutes=minutes_ahead)
    return datetime.now(UTC) + ahead


class TaskQueue(BaseQueue[Task[V]]):
    """A queue of tasks, ordered by priority, then deadline, then cost, then time of creation.

    The nearest deadline comes first, and no deadline last. It works as a `PriorityQueue` with the
    priority (priority, deadline, cost).

    Example:
        >>> _ = tasks.push(db, cost=5), tasks.push(db, cost=1, payload={"any": "JSON"})
        >>> tasks.pop(db).payload
        {'any': 'JSON'}
    """

    kind: ClassVar[Literal["task"]] = "task"
    """The kind of the queue, as its options have it."""

    def __init__(self, subspace: Subspace, **options: Unpack[QueueOptions]) -> None:
        layout = Layout(subspace)
        levels = TaskLevels(layout)
        given = given_options(self.kind, "task", RANK, options)
        items, rows = Items(layout, levels, given), TaskRowCodec(layout, levels, TaskCodec())
        super().__init__(Store(items, rows, given))

    @classmethod
    def named(
        cls, db: Transactor, name: str | Subspace, **options: Unpack[QueueOptions]
    ) -> TaskQueue[V]:
        """Return the task queue of this name, as `PriorityQueue.named` does.

        Example:
            >>> TaskQueue.named(db, "tasks", max_size=10).options(db).max_size
            10
        """
        queue: TaskQueue[V] = cls._open(db, name, **options)
        return queue

    # Push

    @driven
    def push(
        self, tr: Transactor, *, payload: V | None = None, **task: Unpack[TaskOptions]
    ) -> SansIO[str | None]:
        """Push a task, as `PriorityQueue.push`; return its id, or `None` if the queue is full.

        The payload is a JSON value; the fields are `fdbqueue.options.TaskOptions`.

        Raises:
            InvalidTask: A field has an invalid value.

        Example:
            >>> _ = tasks.push(db, agent_name="ada", payload={"invoice": 7})
            >>> tasks.pop(db).agent_name
            'ada'
        """
        given: Any = {"payload": payload, **task}
        ids = yield from self._store.push(tr, [self._new_item(given)], as_many_as_fit=True)
        return ids[0] if ids else None

    @driven
    def push_many(
        self, tr: Transactor, tasks: Iterable[Mapping[str, Any]], *, as_many_as_fit: bool = False
    ) -> SansIO[list[str]]:
        """Push several tasks in one transaction, all of them or none; return their ids.

        Each task is a mapping with the arguments of `push`. Without room for all, the call raises
        `QueueFull`, or with `as_many_as_fit` pushes the first.

        Example:
            >>> len(tasks.push_many(db, [{"payload": 1}, {"payload": 2, "priority": 1}]))
            2
        """
        items = [*map(self._new_item, tasks)]
        return self._store.push(tr, items, as_many_as_fit)

    def _new_item(self, task: Mapping[str, Any]) -> NewItem:
        fields = {name: task[name] for name in _FIELDS if name in task}
        options: Any = {name: task[name] for name in task if name not in fields}
        record, priority = validate_task(**fields)
        return new_item(self._store, record, priority, TaskOptions, options)

    # Find and count

    def get_all_tasks(self, tr: ReadTransactor, *, limit: int = 0) -> Iterator[Task[V]]:
        """Iterate over the ready tasks in order, as `items` does.

        Example:
            >>> _ = tasks.push(db, priority=5), tasks.push(db, priority=1)
            >>> [int(task.priority) for task in tasks.get_all_tasks(db)]
            [1, 5]
        """
        return self.items(tr, limit=limit)

    def get_tasks_for_agent(self, tr: ReadTransactor, agent_name: str) -> Iterator[Task[V]]:
        """Iterate over the ready tasks of an agent in order, by reading all tasks.

        Example:
            >>> _ = tasks.push(db, agent_name="ada"), tasks.push(db)
            >>> [task.agent_name for task in tasks.get_tasks_for_agent(db, "ada")]
            ['ada']
        """
        name = validate_name("agent_name", agent_name)
        return (task for task in self.get_all_tasks(tr) if task.agent_name == name)

    def get_tasks_for_client(self, tr: ReadTransactor, client_id: str) -> Iterator[Task[V]]:
        """Iterate over the ready tasks of a client in order, by reading all tasks.

        Example:
            >>> [*tasks.get_tasks_for_client(db, "7")]
            []
        """
        id = validate_name("client_id", client_id)
        return (task for task in self.get_all_tasks(tr) if task.client_id == id)

    def get_task(self, tr: ReadTransactor, task_id: str) -> Task[V] | None:
        """Return the task with this id, in any state, or `None` if it has left the queue.

        Example:
            >>> tasks.get_task(db, tasks.push(db, payload="x")).payload
            'x'
        """
        return self._store.reads.find(tr, task_id)

    def counts(self, tr: ReadTransactor) -> dict[TaskPriority, int]:
        """Return the number of ready tasks of each priority that has any.

        Example:
            >>> _ = tasks.push(db, priority=2)
            >>> tasks.counts(db)
            {<TaskPriority.HIGH: 2>: 1}
        """
        counted = self._store.reads.counts(tr)
        return {TaskPriority(priority): count for priority, count in counted.items()}

    def get_stats(self, tr: ReadTransactor) -> TaskStats:
        """Return totals of the queue, and the number of ready tasks of each priority and agent.

        Given a database, they are not of one moment. Cost: as for `stats`, and a read of all tasks.

        Example:
            >>> _ = tasks.push(db, agent_name="ada"), tasks.push(db)
            >>> tasks.get_stats(db).by_agent
            {'ada': 1}
        """
        stats = self._store.reads.stats(tr)
        by_agent: Counter[str] = Counter()
        oldest: datetime | None = None
        for task in self.get_all_tasks(tr):
            if task.agent_name is not None:
                by_agent[task.agent_name] += 1
            oldest = min(oldest or task.created_at, task.created_at)
        return TaskStats(
            total_pushed=stats.total_pushed,
            total_popped=stats.total_completed,
            total_rejected=stats.total_rejected,
            total_removed=stats.total_removed,
            total_expired=stats.total_expired,
            total_died=stats.total_died,
            current_size=stats.ready,
            oldest=oldest,
            by_priority={TaskPriority(level): n for level, n in stats.by_priority.items()},
            by_agent=dict(sorted(by_agent.items())),
        )

    # Change

    def update(self, tr: Transactor, task_id: str, **changes: Unpack[TaskChanges]) -> Task[V]:
        """Change a task that waits, as `PriorityQueue.update`; it goes behind its new equals.

        The `changes` are `fdbqueue.options.TaskChanges`.

        Raises:
            InvalidTask: A field has an invalid value.
            WrongState: The task is claimed, dead, done or gone.
            QueueFull: The new group is full.

        Example:
            >>> task = tasks.push(db, priority=TaskPriority.LOW, payload={"invoice": 7})
            >>> tasks.update(db, task, priority=1).payload, tasks.peek(db).priority
            ({'invoice': 7}, <TaskPriority.CRITICAL: 1>)
        """
        validate_options(TaskChanges, changes)
        options: Mapping[str, Any] = changes
        given: dict[str, Any] = {name: options[name] for name in _FIELDS if name in options}
        validate_task(**given)
        levels, encode = self._store.levels, self._store.codec.encode
        has_record = not given.keys().isdisjoint(TaskRecord._fields)

        def change(task: Task[V], level: Level) -> tuple[Level, bytes | None]:
            fields: dict[str, Any] = {name: getattr(task, name) for name in _FIELDS}
            record, rank = validate_task(**{**fields, **given})
            payload = encode(record, was_decoded="payload" not in given) if has_record else None
            return levels.level(rank), payload

        return update_item(self._store, tr, task_id, changes, change)


@driven
def push_tasks(
    queue: TaskQueue[Any],
    tr: Transactor,
    tasks: Iterable[Mapping[str, Any]],
    *,
    as_many_as_fit: bool = False,
) -> SansIO[list[tuple[str, bool]]]:
    """Push tasks as `TaskQueue.push_many` does.

    Returns their ids, and false for each that an earlier push has stored.

    Example:
        >>> [new for _, new in push_tasks(tasks, db, [{"unique": "daily"}] * 2)]
        [True, False]
    """
    store, items = queue._store, [*map(queue._new_item, tasks)]
    ids = yield from store.push(tr, items, as_many_as_fit)
    keys = [store.layout.unpack_item_key(store.codec.key_of(id)) for id in ids]
    return [(id, key[-1] == item.random) for id, key, item in zip(ids, keys, items)]
