"""Whether calls that are known only by their begin and end can have happened in order.

A call takes effect at some moment between the two. So an item is certainly ready from the end of
its push to the beginning of the next call that names it, and was certainly pushed before another
one if its push had ended when that of the other one began. A call that takes the first items has to
take each item that was certainly ready all the time, and is certainly before one that it has taken.

Calls beside a slow pop or claim are not checked. It may hold other items for a while: those that
were staged for a pop, or that a claim took under a lease that was over when it learned of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.long.hostile.ledger import Operation

_SLOW = {"claim": 0.1, "pop": 1.0}
"""Seconds after which a claim renews a lease of one second, and after which a pop may be taken for
that of a dead process, because the cluster has recovered meanwhile."""


@dataclass(frozen=True)
class Push:
    """When an item was pushed, and where it belongs."""

    value: str
    priority: int
    began: float
    ended: float
    is_delayed: bool = False


def out_of_order(
    pushes: Iterable[Push], calls: Iterable[Operation], ends: Mapping[tuple[str, int], str]
) -> list[str]:
    """Return a problem for each call that did not take the first items.

    Args:
        pushes: All pushes.
        calls: All calls, also pushes.
        ends: At which end a call took items, `"min"` or `"max"`, by its client and number; `"any"`
            if it may take any items, but not none.
    """
    calls, pushed = [*calls], {push.value: push for push in pushes}
    touched = _touched(calls)
    slow = [call for call in calls if call.ended - call.began > _SLOW.get(call.kind, math.inf)]
    problems: list[str] = []
    for call in calls:
        end = ends.get((call.client, call.number))
        if end is None or any(_overlaps(call, other) for other in slow):
            continue
        waiting = [
            push
            for value, push in pushed.items()
            if push.ended < call.began and not push.is_delayed
            if call.ended < touched.get(value, math.inf)
        ]
        last = pushed[call.values[-1]] if call.values else None
        if last is None:
            missed = waiting
        elif end == "any":
            missed = []
        else:
            missed = [push for push in waiting if _is_before(push, last, end)]
        problems += [f"{push} is before the items of {call}" for push in missed[:1]]
    return problems


def _overlaps(call: Operation, other: Operation) -> bool:
    return call is not other and other.began < call.ended and call.began < other.ended


def _touched(calls: Iterable[Operation]) -> dict[str, float]:
    """Return when the first call began that names an item, other than its push."""
    touched: dict[str, float] = {}
    for call in calls:
        for value in call.values if call.kind != "push" else ():
            touched[value] = min(touched.get(value, math.inf), call.began)
    return touched


def _is_before(push: Push, other: Push, end: str) -> bool:
    if push.priority == other.priority:
        return push.ended < other.began
    return (push.priority < other.priority) == (end == "min")
