"""The kinds of queues: how each is created, and how its verbs are called."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import Any, NamedTuple

import fdbqueue
from tests.support.full import unless_full


class Place(NamedTuple):
    """Where a push puts an item.

    Attributes:
        priority: Its priority, as the model compares it.
    """

    priority: Any


class Priorities:
    """Priority queues.

    Args:
        chance: The random choices of the seed, the same for all clients.
    """

    has_options = True
    """Whether a push can have a delay, an expiry and a unique key."""
    has_priorities = True
    has_max = True

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
        return unless_full(queue.push, tr, value, place.priority, **options), place

    def pop(self, queue: Any, tr: Any, at_max: bool) -> Any:
        """Pop an item at an end."""
        return (queue.pop_max if at_max else queue.pop_min)(tr)

    def peek(self, queue: Any, tr: Any, at_max: bool) -> Any:
        """Return what `pop` would take."""
        return (queue.peek_max if at_max else queue.peek_min)(tr)

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
        return unless_full(queue.enqueue, tr, value), place

    def pop(self, queue: Any, tr: Any, at_max: bool) -> Any:
        """Pop the first item."""
        return queue.dequeue(tr)

    def peek(self, queue: Any, tr: Any, at_max: bool) -> Any:
        """Return the first item."""
        return queue.peek(tr)

    def priority(self, item: Any) -> Any:
        """Return the only priority."""
        return 0


class Tasks(Priorities):
    """Task queues: by priority, then by deadline and cost."""

    has_max = False

    def __init__(self, chance: random.Random) -> None: ...

    def create(self, tr: Any, name: str, **bounds: Any) -> Any:
        """Return a new queue."""
        return fdbqueue.TaskQueue.named(tr, name, **bounds)

    def place(self, chance: random.Random) -> Place:
        """Return a random place. The last deadline stands for none."""
        return Place(
            [chance.choice([1, 3]), chance.choice([1, 2, _NO_DEADLINE]), chance.choice([0, 5])]
        )

    def push(self, queue: Any, tr: Any, value: str, place: Place, options: Any) -> Any:
        """Push a value as for `Priorities`."""
        id = queue.push(tr, **_fields(place), payload=value, **options)
        return None if id is None else queue.get(tr, id).item, place

    def pop(self, queue: Any, tr: Any, at_max: bool) -> Any:
        """Pop the first task."""
        return queue.pop(tr)

    def peek(self, queue: Any, tr: Any, at_max: bool) -> Any:
        """Return what `pop` would take."""
        return queue.peek(tr)

    def move(self, queue: Any, tr: Any, item: Any, place: Place) -> tuple[Any, Place]:
        """Move a task as for `Priorities`."""
        place = Place([place.priority[0], *self.priority(item)[1:]])  # the rest of a task stays
        is_there = queue.reprioritize(tr, item.id, place.priority[0])
        info = queue.get(tr, item) if is_there else None  # it may expire between the two calls
        return info and info.item, place

    def value(self, item: Any) -> str:
        """Return the value of a task."""
        return str(item.payload)

    def priority(self, item: Any) -> Any:
        """Return the priority of a task in the queue, as the model compares it."""
        deadline = _NO_DEADLINE if item.deadline is None else item.deadline.year - _YEAR
        return [int(item.priority), deadline, item.cost]


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
