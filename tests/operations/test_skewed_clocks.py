"""Schedules among clients whose clocks differ and step, and which die in their transactions."""

from __future__ import annotations

import random
from typing import Any

import pytest

import fdbqueue
from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import error_classes
from fdbqueue.queue.base import store_of
from fdbqueue.types import Database, Missed

WORKERS = 20
SKEW = 30.0  # seconds by which a clock is fast or slow
INTERVAL = 60  # seconds between ticks
CONFLICT = 1020


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
        self.conflicts = 0

    def step(self, longest: float) -> None:
        """Let some time pass, and two clients sweep at once."""
        rng = self.rng
        self.time += rng.uniform(0, longest)
        if rng.random() < 0.1:  # a clock is set, perhaps back
            self.skews[rng.randrange(WORKERS)] = rng.uniform(-SKEW, SKEW)
        together = [self.db.create_transaction() for _ in range(2)]
        for tr in together:
            self.sweep.sweep(tr, self.now(rng.randrange(WORKERS)))
        for tr in together:
            if rng.random() < 0.1:
                continue  # the client dies before its commit
            try:
                tr.commit().wait()
            except error_classes() as error:
                if error.code != CONFLICT:
                    raise
                self.conflicts += 1

    def now(self, worker: int) -> int:
        return round(1000 * (self.time + self.skews[worker]))

    def pop(self) -> None:
        """Pop everything, and note the ticks in seconds since the first one."""
        while items := self.queue.pop_many(self.db, 500):
            self.pushed += [round(item.tick.timestamp()) for item in items]


@pytest.mark.parametrize("missed", ["all", "latest", "skip"])
def test_each_tick_is_pushed_once_whatever_the_clocks_say(
    db: Database, name: str, engine: str, missed: Missed, rng: random.Random
) -> None:
    n = 10_000 if engine == "memory" and missed == "all" else 500
    queue = fdbqueue.PriorityQueue[Any].named(db, name)
    queue.schedules.add(db, "each minute", "tick", every=INTERVAL, missed=missed)
    simulation = Simulation(db, queue, rng)
    # A client that is two minutes late finds that ticks were missed; with "all" that happens often.
    longest = 10 * INTERVAL if missed == "all" else INTERVAL / 6
    while simulation.time < simulation.begin + n * INTERVAL:
        simulation.step(longest)
    for worker in range(WORKERS):
        tr = db.create_transaction()
        simulation.sweep.sweep(tr, simulation.now(worker))
        tr.commit().wait()
    simulation.pop()
    ticks = simulation.pushed
    first = ticks[0]
    assert ticks == [first + number * INTERVAL for number in range(len(ticks))]
    assert first % INTERVAL == 0
    assert len(ticks) >= n
    assert abs(ticks[-1] - simulation.time) <= SKEW + INTERVAL
    assert simulation.conflicts > 0
