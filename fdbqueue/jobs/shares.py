"""How the queues of an app share the slots of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from fdbqueue.queue.arguments import validate_number

_V = TypeVar("_V")


class QueueShare(NamedTuple):
    """The share of one queue.

    Attributes:
        queue: The name of the queue.
        most: The maximum number of jobs of the queue that run at a time; `None` for that of all.
        weight: Its weight.
    """

    queue: str
    most: int | None = None
    weight: float = 1


def shares_of(
    queues: Sequence[str],
    concurrency: int,
    at_most: Mapping[str, int] | None,
    weights: Mapping[str, float] | None,
) -> list[QueueShare]:
    """Return the share of each queue.

    Args:
        queues: The names of the queues.
        concurrency: The number of jobs of all queues that run at a time, from 1.
        at_most: The maximum number of running jobs of some of the queues.
        weights: The weights of some of the queues.

    Raises:
        ValueError: A number is out of range, or a name is not that of a queue.

    Example:
        >>> for share in shares_of(["mail", "images"], 10, {"images": 2}, {"mail": 3}):
        ...     print(share)
        QueueShare(queue='mail', most=None, weight=3)
        QueueShare(queue='images', most=2, weight=1)
    """
    validate_number(concurrency, "concurrency", 1, "jobs")
    limits, weights = _named("at_most", at_most, queues), _named("weights", weights, queues)
    for limit in limits.values():
        validate_number(limit, "at_most", 1, "jobs")
    for weight in weights.values():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < 1e9:
            raise ValueError(f"a weight is a number over 0, not {weight!r}")
    return [QueueShare(each, limits.get(each), weights.get(each, 1)) for each in queues]


def _named(option: str, given: Mapping[str, _V] | None, queues: Sequence[str]) -> Mapping[str, _V]:
    """Return an option of some of the queues."""
    for name in given or ():
        if name not in queues:
            known = ", ".join(queues)
            raise ValueError(f"{option} has {name!r}, but the queues to work on are {known}")
    return given or {}
