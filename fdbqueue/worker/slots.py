"""The slots of a process, which the workers of several queues share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from fdbqueue.queue.base import Stop

_LOOK = 1.0  # seconds from one look at whether a worker was stopped to the next


class Slots:
    """The slots for the jobs of several workers. Each of them has a `Share`.

    Workers claim one after the other, and only jobs for which slots are free. The next turn is that
    of the first worker whose queue may have jobs. By weight, it is that of the worker with the
    fewest claimed jobs for its weight; one that had nothing to claim does not make up for it later.

    A worker that has found nothing sleeps, and learns of new jobs a moment late. In the order, that
    would be too late: a job that is ready when a slot becomes free would not be the first. So
    workers in order sleep only while slots are free and no other one claims jobs. When the last
    slot is taken, all of them wake, and they look in their order when one becomes free.

    Args:
        n: The number of slots.
        by_weight: Whether turns go by weight, instead of in the order of the shares.
        drain: Whether the workers end once none has found a job since the last one ended.
    """

    def __init__(self, n: int, *, by_weight: bool = False, drain: bool = False) -> None:
        self.n = n
        self.by_weight = by_weight
        self.drain = drain
        self.shares: list[Share] = []
        self.changed = threading.Condition()
        self.turn: Share | None = None
        self.time = 0.0
        """The `passed` of the last worker that has claimed jobs, before that claim."""

    @property
    def held(self) -> int:
        """The number of slots that are taken."""
        return sum(share.held() for share in self.shares)

    @property
    def wanting(self) -> list[Share]:
        """The shares of the workers that would claim jobs."""
        return [each for each in self.shares if each.wants and not each.is_away and each.room > 0]

    def next(self) -> Share | None:
        """Return whose turn it is; `None` if another one has its turn, or nobody can claim."""
        wanting = self.wanting
        if self.turn is not None or self.held >= self.n or not wanting:
            return None
        return min(wanting, key=lambda share: share.passed) if self.by_weight else wanting[0]

    def rouse(self) -> None:
        """Let all workers look for jobs. The caller has the lock."""
        for share in self.shares:
            share.want()


class Share:
    """The share of one worker in the slots.

    Args:
        slots: The slots.
        held: Returns the number of jobs that the worker holds.
        most: The most jobs of the worker at a time.
        weight: Its weight, over 0.

    Attributes:
        wants: Whether its queue may have jobs.
        is_away: Whether it takes no turn at present, because of an error or for good.
        passed: The number of jobs that it has claimed, divided by its weight.
    """

    def __init__(
        self, slots: Slots, held: Callable[[], int], most: int, weight: float = 1.0
    ) -> None:
        self.held = held
        self.wants = True
        self.is_away = False
        self.passed = 0.0
        self._slots = slots
        self._most = most
        self._weight = weight
        self._sleep: Stop | None = None
        slots.shares.append(self)

    @property
    def room(self) -> int:
        """The number of jobs that the worker itself has room for."""
        return self._most - self.held()

    def want(self) -> None:
        """Let the worker look for jobs; wake it if it sleeps. The caller has the lock."""
        if not self.wants:
            self.wants, self.passed = True, max(self.passed, self._slots.time)
        if self._sleep is not None:
            self._sleep.set()

    @contextmanager
    def freeing(self) -> Generator[None]:
        """Let go of a job, so that the workers learn of its end and of a free slot at once."""
        with self._slots.changed:
            yield
            if self._slots.drain:  # it may have pushed jobs to any queue
                self._slots.rouse()
            self._slots.changed.notify_all()

    def feed(
        self, stop: Stop, claim: Callable[[int], int], sleep: Callable[[Stop], object]
    ) -> bool:
        """Claim jobs in the turn of the worker; if there are none, sleep until there may be some.

        Args:
            stop: Set once the worker is stopped.
            claim: `claim(n)` claims up to `n` jobs, and returns their number.
            sleep: `sleep(stop)` sleeps until the queue may have jobs, or `stop` is set.

        Returns:
            False if nothing is left to do for any worker.

        Raises:
            Exception: `claim` or `sleep` has raised it. Others take turns until the next call.
        """
        goes_on = False
        try:
            goes_on = self._claimed(stop, claim) > 0 or self._rest(stop, sleep)
            return goes_on
        finally:
            with self._slots.changed:
                self.is_away = stop.is_set or not goes_on
                self._slots.changed.notify_all()

    def _claimed(self, stop: Stop, claim: Callable[[int], int]) -> int:
        slots, claimed = self._slots, 0
        with slots.changed:
            self.want()
            self.is_away = False
            while not stop.is_set and slots.next() is not self:
                slots.changed.wait(_LOOK)
            if stop.is_set:
                return 0
            n = free = slots.n - slots.held
            if slots.by_weight:
                n = int(n * self._weight / sum(each._weight for each in slots.wanting))
            slots.turn = self
            self.wants = False  # unless a job ends meanwhile: what it pushed may not be seen
        try:
            claimed = claim(max(1, min(n, self.room)))
        finally:
            with slots.changed:
                slots.turn = None
                if claimed:
                    slots.time = self.passed
                    self.passed += claimed / self._weight
                    self.wants = True
                # A quick job that took the last slot may have ended already.
                was_full = claimed >= free or slots.held >= slots.n
                if was_full and not slots.by_weight:
                    slots.rouse()
                slots.changed.notify_all()
        return claimed

    def _rest(self, stop: Stop, sleep: Callable[[Stop], object]) -> bool:
        """Sleep until the queue may have jobs; return false if nothing is left to do."""
        slots = self._slots
        with slots.changed:
            while not (stop.is_set or self.wants or self._may_sleep):
                slots.changed.wait(_LOOK)
            if stop.is_set or self.wants or slots.drain:
                return self.wants
            pause = self._sleep = Stop()
        try:
            stop.add(pause)
            sleep(pause)
        finally:
            stop.discard(pause)
            self._sleep = None
        return True

    @property
    def _may_sleep(self) -> bool:
        """True if nothing that other workers do concerns this one, which has found no jobs."""
        slots = self._slots
        if slots.by_weight and not slots.drain:
            return True
        return slots.turn is None and not slots.wanting and not (slots.drain and slots.held)
