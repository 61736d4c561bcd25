"""The check of order finds a call that passes an item, and allows what may have overlapped."""

from __future__ import annotations

import pytest

from tests.long.hostile.ledger import Operation
from tests.long.simulation.cluster.order import Push, out_of_order


def push(began: float, value: str, priority: int = 0, *, ended: float | None = None) -> Push:
    return Push(value, priority, began, began + 1 if ended is None else ended)


def take(began: float, *values: str, kind: str = "pop", ended: float | None = None) -> Operation:
    end = began + 1 if ended is None else ended
    return Operation("a", int(10 * began), kind, "queue", [*values], began=began, ended=end)


A, B = push(1, "a"), push(3, "b")
LATE = push(3, "b", ended=9)

RIGHT = {
    "in order": ([A, B], [take(5, "a"), take(7, "b"), take(9)], "min"),
    "two at once": ([A, B], [take(5, "a", "b")], "min"),
    "by priority": ([A, push(3, "b", -1)], [take(5, "b"), take(7, "a")], "min"),
    "by the highest priority": ([A, push(3, "b", 1)], [take(5, "b"), take(7, "a")], "max"),
    "overlapping pushes": ([A, push(1.5, "b")], [take(5, "b"), take(7, "a")], "min"),
    "a push that has not ended": ([A, LATE], [take(5, "a"), take(7)], "min"),
    "overlapping pops": ([A, B], [take(5, "b"), take(5.5, "a")], "min"),
    "a claim that overlaps": ([A, B], [take(5, "b"), take(4, "a", kind="claim")], "min"),
    "any item": ([A, B], [take(5, "b")], "any"),
    "a delayed item": ([Push("a", 0, 1, 2, is_delayed=True), B], [take(5, "b")], "min"),
}

WRONG = {
    "out of order": ([A, B], [take(5, "b"), take(7, "a")], "min"),
    "out of order within a priority": ([A, B], [take(5, "b"), take(7, "a")], "max"),
    "one passed of two": ([A, B, push(5, "c")], [take(7, "a", "c"), take(9, "b")], "min"),
    "against priority": ([A, push(3, "b", 1)], [take(5, "b"), take(7, "a")], "min"),
    "against the highest priority": ([A, push(3, "b", 1)], [take(5, "a"), take(7, "b")], "max"),
    "nothing": ([A], [take(5), take(7, "a")], "min"),
    "nothing, of any items": ([A], [take(5), take(7, "a")], "any"),
}


@pytest.mark.parametrize(("pushes", "calls", "end"), RIGHT.values(), ids=RIGHT)
def test_the_check_allows(pushes: list[Push], calls: list[Operation], end: str) -> None:
    assert out_of_order(pushes, calls, {(call.client, call.number): end for call in calls}) == []


@pytest.mark.parametrize(("pushes", "calls", "end"), WRONG.values(), ids=WRONG)
def test_the_check_finds(pushes: list[Push], calls: list[Operation], end: str) -> None:
    ends = {(call.client, call.number): end for call in calls}
    (problem,) = out_of_order(pushes, calls, ends)
    assert "is before the items of" in problem
