"""The history of the clients of a queue, and a check that it is linearizable.

A history is linearizable if each operation can be assigned a moment between its beginning and its
end such that a sorted list, to which the operations are applied in the order of these moments,
gives every operation its result. An operation without an end, because its client was killed, may
have taken effect at any moment since it began, or never. A call that pushes several items counts as
several operations; overlapping pushes may come between them.

A killed or failed pop may also have taken its items for a while: items staged for it return to any
position in their priority.

Source: Wing and Gong, Testing and Verifying Concurrent Objects (1993).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, TypeAlias

Queue: TypeAlias = tuple[tuple[int, str], ...]
"""The items in order of priority, and of arrival within a priority."""


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
    """An operation of the same call that takes effect earlier."""
    failed: bool = False
    """Whether it raised an error which guarantees that nothing took effect."""

    def __str__(self) -> str:
        ended = f"{self.end} -> {self.result!r}" if self.end < math.inf else "no end"
        return f"client {self.client}: {self.kind} {self.arguments!r} [{self.begin}, {ended}]"


def apply(operation: Operation, queue: Queue) -> tuple[Queue, Any]:
    """Return the queue after an operation, and the result of the operation."""
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


def is_linearizable(history: list[Operation]) -> bool:
    """Return whether one queue can give every operation its result in some order.

    Every value is pushed once, and the history ends with a pop of everything.
    """
    # So a value known to be popped was popped only once. Where every result is known, a value that
    # was not popped was never pushed.
    popped = {value for each in history for value in each.result or ()}
    unknown_pops = any(each.end == math.inf and each.kind != "push" for each in history)
    operations = sorted(
        (
            each
            for each in history
            if each.end < math.inf or unknown_pops or each.arguments[1] in popped
        ),
        key=lambda operation: operation.begin,
    )
    number: dict[Operation | None, int] = {operation: n for n, operation in enumerate(operations)}
    everything_ended = sum(1 << n for n, each in enumerate(operations) if each.end < math.inf)
    seen: set[tuple[int, Queue, Queue]] = set()
    todo: list[tuple[int, Queue, Queue]] = [(0, (), ())]
    while todo:
        state = todo.pop()
        done, queue, staged = state
        if done & everything_ended == everything_ended:
            return True
        if state in seen:
            continue
        seen.add(state)
        # The next operation must have begun before any other remaining one ended.
        left = [n for n in range(len(operations)) if not done >> n & 1]
        first_end = min(operations[n].end for n in left)
        possible = [n for n in left if operations[n].begin <= first_end]
        # `todo` is a stack, so operations that ended are tried first, in order of their end.
        for n in sorted(possible, key=lambda n: -operations[n].end):
            operation = operations[n]
            before = number.get(operation.after)
            if before is not None and not done >> before & 1:
                continue
            after = done | 1 << n
            if operation.end < math.inf:
                # Staged items only need to return just before the operation that takes them.
                returned = [item for item in staged if item[1] in (operation.result or ())]
                kept = tuple(item for item in staged if item not in returned)
                for restored in put_back(queue, returned):
                    changed, result = apply(operation, restored)
                    if result == operation.result:
                        todo.append((after, changed, kept))
                continue
            changed, result = apply(operation, queue)
            if operation.kind == "push" or (popped.isdisjoint(result) and not operation.failed):
                todo.append((after, changed, staged))
                continue
            taken = tuple(item for item in queue if item not in changed)
            returning = tuple(item for item in taken if item[1] in popped)
            if not operation.failed or returning == taken:
                todo.append((after, changed, staged + returning))
    return False


def put_back(queue: Queue, items: list[tuple[int, str]]) -> list[Queue]:
    """Return the possible queues after the items return, each to any position in its priority."""
    if not items:
        return [queue]
    item, *others = items
    begin = bisect_left(queue, item[0], key=lambda other: other[0])
    end = bisect_right(queue, item[0], key=lambda other: other[0])
    return [
        restored
        for at in range(begin, end + 1)
        for restored in put_back((*queue[:at], item, *queue[at:]), others)
    ]
