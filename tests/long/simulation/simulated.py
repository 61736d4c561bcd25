"""The common base of simulations: the library with simulated time and randomness."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue
from fdbqueue.coordination import claims, pops, store, sweeper, waiting
from fdbqueue.database import clock, exactly_once
from fdbqueue.queue import backup
from fdbqueue.queue.base import store_of
from tests.long.simulation.scheduler import Scheduler, SimulatedDatabase

SKEWS = [0, 200, 60_000]  # milliseconds by which the clock of a client is ahead

_CLOCKS = (waiting, pops, backup)


class Simulated:
    """A simulated database and its seed; subclasses define the clients."""

    def __init__(self, db: Any, space: Subspace, seed: int, is_quiet: bool = False) -> None:
        self.random = random.Random(f"operations {seed}")
        self.kills = 0 if is_quiet else self.random.choice([0, 1, 3])
        self.scheduler = Scheduler(seed, self.kills)
        faults = 0.0 if is_quiet else self.random.choice([0.0, 0.1, 0.4])
        recoveries = 0.0 if is_quiet else self.random.choice([0.0, 0.005])
        self.db = SimulatedDatabase(db, self.scheduler, faults, recoveries)
        if not is_quiet:
            self.scheduler.skews = self.random.choice([[], self.random.choices(SKEWS, k=4)])
        self._raw = db
        # Other uses of randomness: the last part of keys, and the ids of clients.
        clock._random.seed(seed)
        exactly_once._free_clients.clear()
        db.clear_range_startswith(space.key())

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Patch the library to use the time and randomness of the simulation."""
        with pytest.MonkeyPatch.context() as patch:
            for module in _CLOCKS:
                patch.setattr(module, "time", self.scheduler)
            patch.setattr(clock, "time_ns", self.scheduler.time_ns)
            patch.setattr(clock, "monotonic", self.scheduler.monotonic)
            patch.setattr(exactly_once, "_hour", lambda: 0)  # a full hour changes no trace
            for module in (store, claims):
                patch.setattr(module, "random", self.random)
            for module in (claims, pops, sweeper):
                patch.setattr(module, "MAX_RETRY_DELAY", 0)
            patch.setattr(pops, "sleep_on", self._sleep_on)
            for module in (pops, sweeper):
                patch.setattr(module, "REQUEST_TIMEOUT", 10**9)
            patch.setattr(pops.StagedPops, "_resign_when_idle", lambda *_: None)
            yield

    def end(self, queue: PriorityQueue, db: Any = None) -> None:
        """Apply all commits in flight and return staged items, as no client runs any more.

        No further faults occur. Items return by `db`, if it is given.
        """
        self.db.deliver_late(1.0)
        self.db.faults = self.db.read_faults = 0.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pops, "REQUEST_TIMEOUT", -(10**9))
            store_of(PriorityQueue(queue.subspace)).sweeper.trim(db or self._raw)  # of a new client

    def _sleep_on(self, watches: list[Any], seconds: float) -> Any:
        """Sleep while other clients run, sometimes too long or not long enough."""
        (watch,) = watches
        self.scheduler.note("sleeps")
        for _ in range(self.random.randint(1, 20)):
            self.scheduler.step("sleep")
            if watch.is_ready():
                break
        watch.cancel()
        return watch if self.random.random() < 0.9 else None
