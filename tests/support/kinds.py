"""The kinds of queues, and what they do under different names."""

from __future__ import annotations

from typing import Any

from fdbqueue import PriorityQueue, Queue, TaskQueue

KINDS = [PriorityQueue, Queue, TaskQueue]


def push(db: Any, queue: Any, value: object) -> str:
    """Push a value to a queue of any kind; return the id of the item."""
    if isinstance(queue, Queue):
        return str(queue.enqueue(db, value).id)
    if isinstance(queue, TaskQueue):
        return str(queue.push(db, payload=value, agent_name="ada"))
    return str(queue.push(db, value, 5).id)
