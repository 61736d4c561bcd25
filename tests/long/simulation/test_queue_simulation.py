"""Seeded simulation of queues with faults and kills: each result is that of the model.

A seed that fails is run again by `pytest tests/long/simulation -k queue --seed N`, which prints the
trace and the log. `FDBQ_QUEUE_SEEDS` is the number of seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue.errors import error_classes
from tests.long.simulation.queues.clients import Session, Storm
from tests.long.simulation.simulated import Simulated, seeds_of, simulate

SEEDS = int(os.environ.get("FDBQ_QUEUE_SEEDS", "60"))
PAUSES = [5, 50, 500, 3_000]  # milliseconds


class QueueSimulation(Simulated):
    """A few clients of one queue."""

    def __init__(self, db: Any, seed: int) -> None:
        super().__init__(db, Subspace(("unused",)), seed)
        db.clear_range(b"", b"\xff")
        self.storm = Storm(self.random, self.scheduler.stopped_clock)

    def run(self) -> list[str]:
        """Run the clients, take all items, and return what must not be."""
        with self.patched():
            self.storm.begin(self.db.db)
            names = "abcd"[: self.random.randint(1, 4)]
            self.scheduler.run([self._client(name) for name in names])
            self.scheduler.time += 10**7
            self.db.deliver_late(1.0)
            self.db.faults = self.db.read_faults = 0.0
            session = Session(self.storm, self.db, "end", self.random)
            _, _, log = self.storm.end(session, self.db, self.db.version_of.__getitem__)
            self.scheduler.trace += log
        return self.storm.problems

    def _client(self, name: str) -> Callable[[], None]:
        n = self.random.randint(10, 60)
        session = Session(self.storm, self.db, name, self.random, self._raw)

        def body() -> None:
            for _ in range(n):
                try:
                    session.step()
                except error_classes() as error:
                    if error.code != 1031:
                        raise
                if self.random.random() < 0.3:
                    self.scheduler.time += self.random.choice(PAUSES)

        return body


def test_each_result_is_that_of_the_model(memory: Any, request: pytest.FixtureRequest) -> None:
    met = set()
    for seed in (seeds := seeds_of(request, SEEDS)):
        trace = simulate(QueueSimulation(memory, seed), seed).scheduler.trace
        met |= {line.split(": ")[1] for line in trace if "(a " in line or line.endswith("killed")}
    if len([*seeds]) > 1:
        assert {"killed", "(a recovery)", "(a late commit takes place)"} <= met
