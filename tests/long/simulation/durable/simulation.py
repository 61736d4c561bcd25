"""Schedules, steps, signals and batches with faults and kills on any engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from tests.long.simulation.durable.clients import Client, Storm
from tests.long.simulation.durable.ledger import Ledger
from tests.long.simulation.simulated import SKEWS, Simulated

MET = {
    *("done", "failed", "dead", "cancelled", "lost", "tick", "batch", "timed out"),
    *("done after others", "cancelled after others", "alert"),
    *("compensated, cancelled", "told again"),
    *("signal before the wait", "signal after the wait"),
    *("suspended by run", "suspended by suspend", "suspended by wait"),
}
"""What has to happen in some of the seeds."""

_SCALE = 0.02
_LEASES = (0.05, 0.1, 0.3, 30.0)
_STEPS = 60
_PAUSES = (0.05, 0.2, 1.5)


class DurableSimulation(Simulated):
    """A few clients on one queue."""

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        is_quiet = seed % 5 == 0
        super().__init__(db, space, seed, is_quiet)
        if not is_quiet:
            self.scheduler.skews = self.random.choices(SKEWS, k=self.random.choice([0, 6, 6]))
        self.db.read_faults /= 20  # a sweep may push a hundred ticks
        self._is_carried = self.random.random() < 0.5
        self.storm = Storm(space, _SCALE, _LEASES, shards=1 + seed % 3)
        self.ledger = Ledger(max(self.scheduler.skews, default=0))

    @property
    def events(self) -> Counter[str]:
        """How often something of interest happened."""
        return self.ledger.events

    def run(self) -> list[str]:
        """Run the clients, end everything, and replay the log; return what must not be."""
        clients = self.kills + self.random.randint(2, 3)
        with self.patched():
            self.storm.begin(self._raw)
            self.scheduler.run([self._body(f"{number}") for number in range(clients)])
            self.scheduler.time += 10**5
            self.end(self.storm.queue())
            if self._is_carried:
                self.storm.carry(self._raw)
            stuck = self._client("drain", is_calm=True).drain()
        self.ledger.replay(self.storm.log.read(self._raw))
        queue = self.storm.queue()
        self.ledger.problems += stuck
        done, dead = (queue.items(self._raw, state=state) for state in ("done", "dead"))
        self.ledger.close(self.storm.pushed, self.storm.seen, done, dead)
        self.ledger.events["lost"] = self.storm.lost
        report = fdbqueue.admin.check(self._raw, queue)
        checked = [] if report.ok else [f"fdbqueue.admin.check: {report.problems}"]
        return self.ledger.problems + checked

    def _body(self, name: str) -> Callable[[], None]:
        n = self.random.randint(20, 80)

        def body() -> None:
            for life in range(3):  # one process after the other
                client = self._client(f"{name}.{life}")
                for _ in range(n // 3):
                    client.act()
                    if self.random.random() < 0.3:
                        self._pause(self.random.choice(_PAUSES))

        return body

    def _client(self, name: str, is_calm: bool = False) -> Client:
        return Client(self.storm, self.db, name, self.random, self._pause, is_calm)

    def _pause(self, seconds: float) -> None:
        for _ in range(_STEPS):  # meanwhile others go on
            self.scheduler.time += round(1000 * seconds / _STEPS)
            self.scheduler.step("pause")
