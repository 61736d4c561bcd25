"""Schedules among clients whose clocks differ and step, and which die in their transactions."""

from __future__ import annotations

import random
from typing import Any

import pytest

import fdbqueue
from fdbqueue.types import Database, Missed
from tests.support.skewed_clocks import INTERVAL, Simulation


@pytest.mark.parametrize("missed", ["all", "latest", "skip"])
def test_each_tick_is_pushed_once_whatever_the_clocks_say(
    db: Database, name: str, engine: str, missed: Missed, rng: random.Random
) -> None:
    n = 10_000 if engine == "memory" and missed == "all" else 500
    queue = fdbqueue.PriorityQueue[Any].named(db, name)
    queue.schedules.add(db, "each minute", "tick", every=INTERVAL, missed=missed)
    simulation = Simulation(db, queue, rng)
    # A client that is two minutes late finds that ticks were missed; with "all" that happens often.
    simulation.run(n, 10 * INTERVAL if missed == "all" else INTERVAL / 6)
    simulation.finish()
    simulation.assert_each_tick_once(n)
    assert simulation.conflicts > 0
