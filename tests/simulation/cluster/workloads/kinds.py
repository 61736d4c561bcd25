"""The kinds of queues: how each is created, and how its verbs are called."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import fdbqueue
from tests.simulation.cluster.inside.environment import stopped_clock


class Place(NamedTuple):
    """Where a push puts an item.

    Attributes:
        priority: Its priority, as the model compares it.
        agent: Its agent, or `None`.
    """

    priority: Any
    agent: str | None = None


class Priorities:
    """Priority queues.

    Args:
        chance: The random choices of the seed, the same for all clients.
    """

    has_options = True
    """Whether a push can have a delay, an expiry and a unique key."""
    has_priorities = True
    has_max = True
    agents: tuple[str | None, ...] = (None,)
    """What a pop or a claim may ask for."""

    def __init__(self, chance: random.Random) -> None:
        self._n = chance.choice([1, 2, 4])

    def create(self, tr: Any, name: str, **bounds: Any) -> Any:
        """Return a new queue."""
        return fdbqueue.PriorityQueue.named(tr, name, **bounds)

    def place(self, chance: random.Random) -> Place:
        """Return a random place."""
        return Place(chance.randrange(self._n))

    def push(self, queue: Any, tr: Any, value: str, place: Place, options: Any) -> Any:
        """Push a value; return the item, `None` if the queue is full, and its place."""
        return queue.push(tr, value, place.priority, if_full="drop", **options), place

    def pop(self, queue: Any, tr: Any, at_max: bool, agent: str | None) -> Any:
        """Pop an item at an end, or of an agent."""
        return (queue.pop_max if at_max else queue.pop_min)(tr)

    def peek(self, queue: Any, tr: Any, at_max: bool, agent: str | None) -> Any:
        """Return what `pop` would take."""
        return (queue.peek_max if at_max else queue.peek_min)(tr)

    def claim(self, queue: Any, tr: Any, agent: str | None, **options: Any) -> Any:
        """Claim items, of an agent or of all."""
        return queue.claim(tr, **options)

    def move(self, queue: Any, tr: Any, item: Any, place: Place) -> tuple[Any, Place]:
        """Move an item to another place; return it, or `None` if it has gone, and the place."""
        return queue.reprioritize(tr, item, place.priority), place

    def value(self, item: Any) -> str:
        """Return the value of an item."""
        return str(item.value)

    def priority(self, item: Any) -> Any:
        """Return the priority of an item, as the model compares it."""
        return item.priority


class Fifo(Priorities):
    """FIFO queues."""

    has_options = has_priorities = has_max = False

    def create(self, tr: Any, name: str, max_attempts: int | None = None, **bounds: Any) -> Any:
        """Return a new queue."""
        queue = fdbqueue.Queue.named(tr, name, **bounds)
        queue.configure(tr, max_attempts=max_attempts)
        return queue

    def place(self, chance: random.Random) -> Place:
        """Return the only place."""
        return Place(0)

    def push(self, queue: Any, tr: Any, value: str, place: Place, options: Any) -> Any:
        """Push a value as for `Priorities`."""
        return queue.enqueue(tr, value, if_full="drop"), place

    def pop(self, queue: Any, tr: Any, at_max: bool, agent: str | None) -> Any:
        """Pop the first item."""
        return queue.dequeue(tr)

    def peek(self, queue: Any, tr: Any, at_max: bool, agent: str | None) -> Any:
        """Return the first item."""
        return queue.peek(tr)

    def priority(self, item: Any) -> Any:
        """Return the only priority."""
        return 0


class Tasks(Priorities):
    """Task queues: by priority, which may rise with age, then by deadline and cost."""

    has_max = False
    agents = (None, None, "ada", "bob")

    def __init__(self, chance: random.Random) -> None:
        self._ageing = chance.choice([None, 10])

    def create(self, tr: Any, name: str, **bounds: Any) -> Any:
        """Return a new queue."""
        ageing = None if self._ageing is None else timedelta(seconds=self._ageing)
        return fdbqueue.TaskQueue.named(tr, name, ageing=ageing, **bounds)

    def place(self, chance: random.Random) -> Place:
        """Return a random place. The last deadline stands for none."""
        rank = [chance.choice([1, 3]), chance.choice([1, 2, _NO_DEADLINE]), chance.choice([0, 5])]
        return Place(rank, chance.choice(self.agents))

    def push(self, queue: Any, tr: Any, value: str, place: Place, options: Any) -> Any:
        """Push a value as for `Priorities`; its place depends on the time."""
        with stopped_clock():
            fields = _fields(place) | {"agent_name": place.agent, "payload": value}
            id, aged = queue.push(tr, **fields, **options), self._aged(place, time.time())
            return None if id is None else queue.get(tr, id).item, aged

    def _aged(self, place: Place, created: float) -> Place:
        priority, *rest = place.priority
        step = 0 if self._ageing is None else int(created // self._ageing)
        return place._replace(priority=[priority + step, *rest])

    def pop(self, queue: Any, tr: Any, at_max: bool, agent: str | None) -> Any:
        """Pop the first task, or the first one of an agent."""
        return queue.pop(tr, agent=agent)

    def peek(self, queue: Any, tr: Any, at_max: bool, agent: str | None) -> Any:
        """Return what `pop` would take."""
        return queue.peek(tr, agent=agent)

    def claim(self, queue: Any, tr: Any, agent: str | None, **options: Any) -> Any:
        """Claim tasks, of an agent or of all."""
        return queue.claim(tr, agent=agent, **options)

    def move(self, queue: Any, tr: Any, item: Any, place: Place) -> tuple[Any, Place]:
        """Move a task as for `Priorities`; it keeps its age."""
        aged = self._aged(place, item.created_at.timestamp())
        is_there = queue.reprioritize(tr, item.id, **_fields(place))
        info = queue.get(tr, item) if is_there else None  # it may expire between the two calls
        return info and info.item, aged

    def value(self, item: Any) -> str:
        """Return the value of a task."""
        return str(item.payload)

    def priority(self, item: Any) -> Any:
        """Return the rank of a task."""
        deadline = _NO_DEADLINE if item.deadline is None else item.deadline.year - _YEAR
        place = Place([int(item.priority), deadline, item.cost])
        return self._aged(place, item.created_at.timestamp()).priority


_YEAR = 2030
_NO_DEADLINE = 9


def _fields(place: Place) -> dict[str, Any]:
    """Return the arguments of a push that say where it goes."""
    priority, deadline, cost = place.priority
    year = None if deadline == _NO_DEADLINE else datetime(_YEAR + deadline, 1, 1, tzinfo=_UTC)
    return {"priority": priority, "deadline": year, "cost": cost}


_UTC = timezone.utc

KINDS = (Priorities, Priorities, Fifo, Tasks)
"""What a seed chooses from: most often a priority queue."""
