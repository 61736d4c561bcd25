"""Clients of a schedule whose clocks differ and step, and which die in their transactions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import error_classes
from fdbqueue.queue.base import store_of
from fdbqueue.types import Database

WORKERS = 20
SKEW = 30.0  # seconds by which a clock is fast or slow
INTERVAL = 60  # seconds between ticks
CONFLICT, TOO_OLD = 1020, 1007


class Simulation:
    """Clients that sweep a queue at simulated times, two at a time; some of them die."""

    def __init__(self, db: Database, queue: Any, rng: random.Random) -> None:
        self.db = db
        self.rng = rng
        self.queue = queue
        self.sweep = store_of(queue)._sweep
        self.begin = self.time = milliseconds() / 1000
        self.skews = [rng.uniform(-SKEW, SKEW) for _ in range(WORKERS)]
        self.pushed: list[int] = []
        self.conflicts = self.deaths = 0
        self.deadly: frozenset[int] = frozenset()
        """Codes of errors of the database that clients may die of."""
        self.while_committing: Callable[[], object] = bool

    def step(self, longest: float) -> None:
        """Let some time pass, and two clients sweep at once."""
        rng = self.rng
        self.time += rng.uniform(0, longest)
        if rng.random() < 0.1:  # a clock is set, perhaps back
            self.skews[rng.randrange(WORKERS)] = rng.uniform(-SKEW, SKEW)
        try:
            together = [self.db.create_transaction() for _ in range(2)]
            for tr in together:
                self.sweep.sweep(tr, self.now(rng.randrange(WORKERS)))
        except error_classes() as error:
            self._note(error)
            return
        for tr in together:
            if rng.random() < 0.1:
                continue  # the client dies before its commit
            try:
                committed = tr.commit()
                self.while_committing()
                committed.wait()
            except error_classes() as error:
                self._note(error)

    def _note(self, error: Any) -> None:
        """Count an error that a client dies of; raise any other."""
        if error.code in (CONFLICT, TOO_OLD):  # too old: the machine is slow
            self.conflicts += 1
        elif error.code in self.deadly:
            self.deaths += 1
        else:
            raise error

    def now(self, worker: int) -> int:
        return round(1000 * (self.time + self.skews[worker]))

    def pop(self) -> None:
        """Pop everything, and note the ticks in seconds since the first one."""
        while items := self.queue.pop_many(self.db, 500):
            self.pushed += [round(item.tick.timestamp()) for item in items]

    def run(self, n: int, longest: float) -> None:
        """Let some number of ticks come due, with steps of up to so many seconds."""
        while self.time < self.begin + n * INTERVAL:
            self.step(longest)

    def finish(self) -> None:
        """Let every client sweep once more, and pop everything."""
        for worker in range(WORKERS):
            tr = self.db.create_transaction()
            self.sweep.sweep(tr, self.now(worker))
            tr.commit().wait()
        self.pop()

    def assert_each_tick_once(self, n: int) -> None:
        """Check that the pushed ticks are those of the grid, at least `n`, each of them once."""
        ticks = self.pushed
        first = ticks[0]
        assert ticks == [first + number * INTERVAL for number in range(len(ticks))]
        assert first % INTERVAL == 0
        assert len(ticks) >= n
        assert abs(ticks[-1] - self.time) <= SKEW + INTERVAL
