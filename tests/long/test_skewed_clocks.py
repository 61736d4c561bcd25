"""Schedules among clients whose clocks differ and step, and which die in their transactions."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

import fdbqueue
from fdbqueue.database import clock
from fdbqueue.types import Database, Missed
from tests.long.skewed_clocks import INTERVAL, Simulation

TICKS = int(os.environ.get("FDBQ_TICKS", "250"))  # run more by hand


@pytest.mark.long
@pytest.mark.parametrize("missed", ["all", "latest", "skip"])
def test_each_tick_is_pushed_once_whatever_the_clocks_say(
    db: Database, name: str, missed: Missed, rng: random.Random
) -> None:
    queue = fdbqueue.PriorityQueue[Any].named(db, name)
    queue.schedules.add(db, "each minute", "tick", every=INTERVAL, missed=missed)
    simulation = Simulation(db, queue, rng)
    # A client that is two minutes late finds that ticks were missed; with "all" that happens often.
    simulation.run(TICKS, 10 * INTERVAL if missed == "all" else INTERVAL / 6)
    simulation.finish()
    simulation.assert_each_tick_once(TICKS)
    assert simulation.conflicts > 0


@pytest.mark.parametrize("way", ["resume", "run and resume", "new timing"])
def test_a_schedule_that_a_slower_client_lets_go_on_does_not_repeat_its_last_tick(
    db: Database, name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(seconds: float) -> fdbqueue.PriorityQueue[Any]:
        """Return a queue as a client sees it some time after the tick, by its clock."""
        monkeypatch.setattr(clock, "time_ns", lambda: round((tick + seconds) * 10**9))
        return fdbqueue.PriorityQueue[Any].named(db, name)

    queue = fdbqueue.PriorityQueue[Any].named(db, name)
    queue.schedules.add(db, "each minute", "tick", every=INTERVAL)
    due = queue.schedules.all(db)[0].next_tick
    tick = due.timestamp()
    item = client(10).pop(db)
    assert item.tick == due
    slow = client(-20).schedules
    if way == "new timing":
        slow.add(db, "each minute", "tick", every=INTERVAL / 2)
    else:
        slow.pause(db, "each minute")
        if way == "run and resume":
            slow.run_now(db, "each minute")
            assert client(-20).pop(db) is not None
        slow.resume(db, "each minute")
    after = INTERVAL / 2 if way == "new timing" else INTERVAL
    assert client(after - 1).pop(db) is None
    item = client(after).pop(db)
    assert item.tick is not None
    assert item.tick.timestamp() == tick + after
