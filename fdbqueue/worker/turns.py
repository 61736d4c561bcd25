"""From which of its queues a worker claims jobs next."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.queue.base import BaseQueue, Stop, store_of


@dataclass(eq=False)
class Source:
    """A queue of a worker.

    Args:
        queue: The queue.
        at_most: The number of its jobs that run at a time; `None` for that of the worker.
        weight: Its weight, over 0.
        stores_results: Whether to store what handlers return, if the queue keeps done items.

    Attributes:
        store: What is behind the queue.
        name: The name of the queue, or the key of its subspace as text.
        held: The number of its jobs that the worker holds.
        passed: The number of jobs that were claimed, divided by the weight.
        may_have_jobs: False after a claim that found none, until there may be some.
        away_until: When to try again after an error, by the monotonic clock.
        among: The number of jobs to look through, behind jobs that the handler does not know.
        sleep: Ends the sleep of a thread that waits for jobs of the queue; `None` if none waits.
    """

    queue: BaseQueue[Any]
    at_most: int | None = None
    weight: float = 1.0
    stores_results: bool = False
    held: int = field(default=0, init=False)
    passed: float = field(default=0.0, init=False)
    may_have_jobs: bool = field(default=True, init=False)
    away_until: float = field(default=-math.inf, init=False)
    among: int = field(default=1, init=False)
    sleep: Stop | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.store = store_of(self.queue)
        self.name = self.store.layout.name or repr(self.queue.subspace.key())

    @property
    def room(self) -> float:
        """The number of jobs that may run besides the claimed ones, whatever the others hold."""
        return math.inf if self.at_most is None else self.at_most - self.held

    @property
    def is_away(self) -> bool:
        """True for a while after an error."""
        return self.away_until > time.monotonic()


class Turns:
    """The queues of a worker, which claims from one after the other.

    In order, the next turn is that of the first queue that may have jobs. By weight, it is that of
    the queue with the fewest claimed jobs for its weight; a queue that had none does not make up
    for it later.

    A worker learns of new jobs a moment late. In order, that would be too late: a job that is ready
    when a slot becomes free would not be the first. So once all slots are taken, each queue may
    have jobs.

    Args:
        sources: The queues.
        in_order: Whether turns go in the order of the queues, instead of by weight.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> mail, images = (fdbqueue.PriorityQueue.named(db, name) for name in ("mail", "images"))
        >>> turns = Turns([Source(mail, weight=3), Source(images)], in_order=False)
        >>> for _ in range(5):
        ...     source, n = turns.next(free=1)
        ...     turns.note(source, n, free=1)
        ...     print(source.name)
        mail
        images
        mail
        mail
        mail
    """

    def __init__(self, sources: Sequence[Source], *, in_order: bool = True) -> None:
        self.sources = sources
        self.in_order = in_order
        self._latest = 0.0  # the `passed` of the latest turn's queue, before that turn

    @property
    def ready(self) -> list[Source]:
        """The queues that may have jobs, and have room for them."""
        now = time.monotonic()
        may = [each for each in self.sources if each.may_have_jobs and each.away_until <= now]
        return [each for each in may if each.at_most is None or each.held < each.at_most]

    def next(self, free: int) -> tuple[Source, int] | None:
        """Return the queue to claim from, and how many jobs; `None` if none may have any.

        Args:
            free: The number of jobs for which the worker has room.
        """
        ready = self.ready
        if not ready:
            return None
        if self.in_order:
            source, n = ready[0], free
        else:
            source = min(ready, key=lambda each: each.passed)
            n = int(free * source.weight / sum(each.weight for each in ready))
        return source, max(1, int(min(n, source.room)))

    def note(self, source: Source, n: int, free: int) -> None:
        """Note that `n` jobs were claimed from a queue, while the worker had room for `free`."""
        source.may_have_jobs = n > 0
        if not self.in_order and n > 0:
            self._latest = source.passed
            source.passed += n / source.weight
        elif self.in_order and n >= free:
            self.rouse()

    def want(self, source: Source) -> None:
        """Note that a queue may have jobs."""
        if not source.may_have_jobs:
            source.may_have_jobs = True
            source.passed = max(source.passed, self._latest)

    def rouse(self) -> None:
        """Note that any queue may have jobs, and end the sleeps of threads that wait for some."""
        for each in self.sources:
            self.want(each)
            sleep = each.sleep  # which its thread may end meanwhile
            if sleep is not None:
                sleep.set()
