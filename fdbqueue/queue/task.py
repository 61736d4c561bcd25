"""The task queue: by priority, then deadline, then cost, then time of creation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.clock import milliseconds, uuids
from fdbqueue.coordination.watches import checked_wait, wait_for_change
from fdbqueue.database.retrying import read
from fdbqueue.layout import Header, Layout, decode_options
from fdbqueue.layout.tasks import checked_id
from fdbqueue.operations.items import Entry
from fdbqueue.operations.names import place
from fdbqueue.operations.options import agreed
from fdbqueue.operations.slots import MOST_SLOTS, First
from fdbqueue.queue.arguments import (
    checked_agent,
    checked_bound,
    checked_unique,
    due_time,
    expiry_time,
    ranked_task,
)
from fdbqueue.queue.task_store import TaskStore
from fdbqueue.types import Claim, Item, Task, TaskPriority

__all__ = ["TaskQueue"]


class TaskQueue(TaskStore):
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
        >>> TaskQueue.named(fdbqueue.open("memory:"), "tasks", max_size=10).given_options.max_size
        10
        """
        subspace = read(db, lambda tr: place(tr, name))
        queue = cls.at(db, subspace, max_size=max_size, ageing=ageing, max_attempts=max_attempts)
        queue.layout.name = name
        return queue

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
        layout = Layout(subspace)
        stored = read(db, lambda tr: tr[layout.options].value)
        if stored is None:
            return cls(subspace, max_size=max_size, ageing=ageing, max_attempts=max_attempts)
        options = decode_options(stored)
        if ageing is None and options.ageing is not None:
            ageing = timedelta(seconds=options.ageing)
        queue = cls(subspace, max_size=max_size, ageing=ageing, max_attempts=max_attempts)
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
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        unique: str | None = None,
    ) -> str | None:
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
            found = self._push_unique(tr, entry, raise_if_full=False)
            return None if found is None else self._id(found.key)
        return next(iter(self.push_many(tr, [task])), None)

    def push_many(
        self, tr: Any, tasks: Iterable[Mapping[str, Any]], *, as_many_as_fit: bool = False
    ) -> list[str]:
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
        given = list(tasks)
        now = time.time()
        if any(task.get("unique") is not None for task in given):
            raise TypeError("unique tasks are pushed one by one, with `push`")
        entries = [self._entry(now, uuid, **task) for uuid, task in zip(uuids(len(given)), given)]
        keys = self._push(tr, entries, as_many_as_fit, raise_if_full=False)
        return [self._id(key) for key in keys]

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
        payload = self.encoded(record)
        return Entry(self.layout.level(rank), payload, uuid, due_time(delay, at), header)

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
        while True:
            item = self.pop_first_of(tr, agent)
            left = deadline - time.monotonic()
            if item is not None or left <= 0:
                break
            left = min(left, self.sweeper.seconds_left(tr))
            wait_for_change(tr, partial(self.to_watch_of, agent=agent), left)
        return None if item is None else self._task(item)

    def pop_first_of(self, tr: Any, agent: str) -> Item | None:
        """Take the first task of an agent; as it is stored, so that it can be put back."""
        return self._change(tr, partial(self._pop_of, agent=agent, now=milliseconds()))

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

    def claim(
        self,
        tr: Any,
        *,
        lease: float = 30,
        n: int = 1,
        within: int = 256,
        wait: float = 0,
        agent: str | None = None,
    ) -> Claim | None:
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
        return self._claimed(tr, lease, n, within, wait, self.first_of(agent))

    def first_of(self, agent: str | None) -> First | None:
        """How to read the first tasks of an agent; `None` for all tasks."""
        return None if agent is None else partial(self._index.first_of, agent=checked_agent(agent))

    def _pop_of(self, tr: Any, agent: str, now: int) -> Item | None:
        found = self._index.first_of(tr, 1, agent) if self.sweeper.admits(tr, now) else []
        if not found:
            return None
        item = self._item(tr, *found[0])
        self._task(item)  # a key that is not a task's stays where it is
        self._take_one(tr, *found[0])
        return item

    def to_watch_of(self, tr: Any, agent: str) -> list[bytes]:
        """What changes once a task of an agent can be taken; nothing if one can be."""
        if not self._index.first_of(tr, 1, agent):
            return [self.layout.came]
        return [self.layout.freed] if self.schedule.is_paused(tr) else []

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
        checked_bound("concurrency", concurrency, MOST_SLOTS)
        self._set_limit(tr, "agent_concurrency", concurrency)

    # Change

    def remove_task(self, tr: Any, task_id: str) -> bool:
        """Take a task out of the queue, wherever it stands; false if it is not there.

        A delayed one too; not one that is claimed, or a dead letter. Conflicts with what takes or
        changes this task. Cost: three reads.

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
            return found is not None and self._remove(tr, found.key)

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
            found = self._index.waiting(tr, random)
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
