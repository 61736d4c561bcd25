"""The kinds of queues, and what they do under different names."""

from __future__ import annotations

from typing import Any

from fdbqueue import PriorityQueue, Queue, TaskQueue

KINDS = [PriorityQueue, Queue, TaskQueue]
STATES: Any = ("ready", "delayed", "claimed", "dead", "done")


def push(db: Any, queue: Any, value: object, **options: Any) -> str:
    """Push a value to a queue of any kind; return the id of the item."""
    if isinstance(queue, Queue):
        return str(queue.enqueue(db, value, **options).id)
    if isinstance(queue, TaskQueue):
        return str(queue.push(db, payload=value, agent_name="ada", **options))
    return str(queue.push(db, value, **({"priority": 5} | options)).id)


def value_of(item: Any) -> Any:
    """Return the value of an item, or the payload of a task."""
    return item.payload if hasattr(item, "payload") else item.value


def bring(db: Any, queue: Any, state: str, n: int) -> None:
    """Bring `n` ready items, the next to be claimed, into a state."""
    if state == "ready":
        return
    claim = queue.claim(db, n=n, lease=1000)
    if state == "delayed":
        queue.nack(db, claim, delay=1000, error="busy")
    elif state == "dead":
        queue.nack(db, claim, dead=True, error=ValueError("broken"))
    elif state == "done":
        queue.configure(db, keep=100)
        queue.ack(db, claim, result={"n": 1})


def in_each_state(db: Any, queue: Any, n: int = 2, **options: Any) -> dict[str, list[str]]:
    """Push `n` items for each state, and bring them there; return their ids by state."""
    found = dict[str, list[str]]()
    for state in reversed(STATES):
        found[state] = [push(db, queue, f"{state} {number}", **options) for number in range(n)]
        bring(db, queue, state, n)
    return found
