"""How many jobs a worker claims next, and from which of its queues."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from fdbqueue.queue.base import BaseQueue, Stop, store_of
from fdbqueue.types import Claim, Transaction
from fdbqueue.worker.telemetry import Telemetry

_STUCK = 3  # looks in a row at running jobs of which none has ended
_WEIGHT = 0.1  # weight of the latest job in the moving average of durations, or that of a mean
_AHEAD = 0.05  # seconds of work for which jobs are claimed ahead, and wait at most


class Pace:
    """How many jobs to claim, by how long the last ones have taken.

    Args:
        concurrency: The number of jobs that run at a time.
        prefetch: The maximum number of jobs to claim ahead.

    Attributes:
        seconds: The moving average of the duration of a job.
        n_timed: The number of jobs in it.
        may_claim_ahead: False if a job that goes back would lose an attempt or a start.

    Example:
        >>> pace = Pace(concurrency=2, prefetch=100)
        >>> pace.room(held=0), pace.room(held=2)
        (2, 0)
        >>> for _ in range(10):
        ...     pace.note(0.001)
        >>> pace.room(held=2)
        10
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self.concurrency = concurrency
        self._prefetch = prefetch
        self.seconds = 1.0
        self.n_timed = 0
        self.may_claim_ahead = True
        self._looks = 0  # for other jobs, since the last of them ended

    def look(self) -> None:
        """Note that the worker looks for other jobs."""
        self._looks += 1

    def note(self, seconds: float) -> None:
        """Note how long a job has taken that was done."""
        self.n_timed += 1
        weight = max(_WEIGHT, 1 / self.n_timed)
        self.seconds += weight * (max(seconds, 1e-6) - self.seconds)
        self._looks = 0

    def room(self, held: int) -> int:
        """Return how many jobs to claim now; none while more than half are left ahead."""
        free, waiting = max(0, self.concurrency - held), max(0, held - self.concurrency)
        ahead = 0
        if self.may_claim_ahead and self.seconds <= _AHEAD:
            # At first, no more than were timed: one quick job says little about the next hundred.
            ahead = min(self._prefetch, self.soon(held), self.n_timed)
        return free + ahead - waiting if 2 * waiting <= ahead else 0

    def soon(self, held: int) -> int:
        """Return the number of waiting jobs that begin soon, to judge by the last ones."""
        if held and self._looks > _STUCK:
            return 0
        return int(self.concurrency * _AHEAD / self.seconds)

    def is_late(self, seconds: float) -> bool:
        """Return whether a job has waited for longer than it takes to claim it again."""
        return seconds > _AHEAD


class Source:
    """A queue of a worker.

    Args:
        queue: The queue.
        at_most: The number of its jobs that run at a time; `None` for that of the worker.
        weight: Its weight, over 0.
        stores_results: Whether to store what handlers return.

    Attributes:
        store: What is behind the queue.
        name: The name of the queue, or the key of its subspace as text.
        telemetry: Counts its jobs.
        held: The number of its jobs that the worker holds.
        passed: The number of jobs that were claimed, divided by the weight.
        may_have_jobs: False after a claim that found none, until there may be some.
        away_until: When to try again after an error, by the monotonic clock.
        among: The number of jobs to look through, behind jobs that the handler does not know.
        sleep: Ends the sleep of a thread that waits for jobs of the queue; `None` if none waits.
    """

    def __init__(
        self,
        queue: BaseQueue[Any],
        *,
        at_most: int | None = None,
        weight: float = 1.0,
        stores_results: bool = False,
    ) -> None:
        self.queue = queue
        self.at_most = at_most
        self.weight = weight
        self.stores_results = stores_results
        self.store = store_of(queue)
        self.name = self.store.layout.name or repr(queue.subspace.key())
        self.telemetry = Telemetry(self.name)
        self.held = 0
        self.passed = 0.0
        self.may_have_jobs = True
        self.away_until = -math.inf
        self.among = 1
        self.sleep: Stop | None = None

    def unclaim(self, tr: Transaction, claim: Claim, *, now: int, delay: float = 0.0) -> None:
        """Give back a job that has not begun, as if it had never been claimed."""
        due = now + math.ceil(1000 * delay) if delay else None
        self.store.claimed.release(tr, now, claim, due, has_begun=False)

    @property
    def room(self) -> float:
        """The number of jobs that may run besides the claimed ones, whatever the others hold."""
        return math.inf if self.at_most is None else self.at_most - self.held

    @property
    def is_ready(self) -> bool:
        """True if the queue may have jobs, and there is room for them."""
        return self.may_have_jobs and self.room > 0 and not self.is_away

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
        return [each for each in self.sources if each.is_ready]

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
