"""What clients did and saw, and whether one queue, used by one at a time, can explain it.

A history is linearizable if each operation can be given one moment between its beginning and its
end, so that a sorted list, to which they are applied in the order of these moments, gives every
operation the result that it had. An operation that never ended, because its client was killed, may
have taken effect at any moment since it began, or never. A call that pushes several items is as
many operations: which other pushes come between them is left open where they overlap.

A pop that was killed, or failed, may also have taken its items for a while: what had been put aside
for it went back, to some place in its priority.

Source: Wing and Gong, Testing and Verifying Concurrent Objects (1993).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Operation", "explained"]

Queue: TypeAlias = tuple[tuple[int, str], ...]
"""The items in order: by priority, and by arrival within one."""


@dataclass(eq=False)
class Operation:
    """One call of a client."""

    client: int
    kind: str
    arguments: Any
    begin: int
    end: float = math.inf
    result: Any = None
    after: Operation | None = None
    """Another one of the same call, which takes its effect earlier."""
    failed: bool = False
    """Whether it raised an error that says nothing took effect."""

    def __str__(self) -> str:
        ended = f"{self.end} -> {self.result!r}" if self.end < math.inf else "no end"
        return f"client {self.client}: {self.kind} {self.arguments!r} [{self.begin}, {ended}]"


def applied(operation: Operation, queue: Queue) -> tuple[Queue, Any]:
    """The queue after an operation, and the result that it has."""
    if operation.kind == "push":
        priority, _ = item = operation.arguments
        at = bisect_right(queue, priority, key=lambda other: other[0])
        return (*queue[:at], item, *queue[at:]), None
    taken: list[str] = []
    for _ in range(operation.arguments):
        if not queue:
            break
        at = 0
        if operation.kind == "pop_max":
            at = next(n for n, item in enumerate(queue) if item[0] == queue[-1][0])
        taken.append(queue[at][1])
        queue = queue[:at] + queue[at + 1 :]
    return queue, taken


def explained(history: list[Operation]) -> bool:
    """Whether there is an order in which one queue gives every operation its result.

    Every value is pushed once, and the history ends with a pop of everything.
    """
    # So what is known to have come out went nowhere else; and where every result is known, what
    # did not come out was never in.
    came_out = {value for each in history for value in each.result or ()}
    unknown_pops = any(each.end == math.inf and each.kind != "push" for each in history)
    operations = sorted(
        (
            each
            for each in history
            if each.end < math.inf or unknown_pops or each.arguments[1] in came_out
        ),
        key=lambda operation: operation.begin,
    )
    number: dict[Operation | None, int] = {operation: n for n, operation in enumerate(operations)}
    everything_ended = sum(1 << n for n, each in enumerate(operations) if each.end < math.inf)
    seen: set[tuple[int, Queue, Queue]] = set()
    todo: list[tuple[int, Queue, Queue]] = [(0, (), ())]
    while todo:
        state = todo.pop()
        done, queue, aside = state
        if done & everything_ended == everything_ended:
            return True
        if state in seen:
            continue
        seen.add(state)
        # Only what began before the first of the others ended can be next.
        left = [n for n in range(len(operations)) if not done >> n & 1]
        first_end = min(operations[n].end for n in left)
        possible = [n for n in left if operations[n].begin <= first_end]
        # The last one is tried first: one that ended, and of those the one that ended first.
        for n in sorted(possible, key=lambda n: -operations[n].end):
            operation = operations[n]
            before = number.get(operation.after)
            if before is not None and not done >> before & 1:
                continue
            after = done | 1 << n
            if operation.end < math.inf:
                # It is enough to put back what an operation takes, just before it does.
                back = [item for item in aside if item[1] in (operation.result or ())]
                kept = tuple(item for item in aside if item not in back)
                for whole in put_back(queue, back):
                    changed, result = applied(operation, whole)
                    if result == operation.result:
                        todo.append((after, changed, kept))
                continue
            changed, result = applied(operation, queue)
            if operation.kind == "push" or (came_out.isdisjoint(result) and not operation.failed):
                todo.append((after, changed, aside))
                continue
            taken = tuple(item for item in queue if item not in changed)
            coming = tuple(item for item in taken if item[1] in came_out)
            if not operation.failed or coming == taken:
                todo.append((after, changed, aside + coming))
    return False


def put_back(queue: Queue, items: list[tuple[int, str]]) -> list[Queue]:
    """The queues with the items back, each at some place in its priority."""
    if not items:
        return [queue]
    item, *others = items
    begin = bisect_left(queue, item[0], key=lambda other: other[0])
    end = bisect_right(queue, item[0], key=lambda other: other[0])
    return [
        whole
        for at in range(begin, end + 1)
        for whole in put_back((*queue[:at], item, *queue[at:]), others)
    ]
