"""Groups with faults and kills on any engine: shares, limits, order, and none is stuck."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.database.binding import engine_of
from tests.long.simulation.groups.clients import GROUPS, RATES, SETTINGS, Client, Storm
from tests.long.simulation.groups.ledger import Ledger
from tests.long.simulation.groups.recording import Recording
from tests.long.simulation.log import Log
from tests.long.simulation.simulated import Simulated

_PAUSES = [5, 50, 500, 3_000]  # milliseconds


class GroupSimulation(Simulated):
    """A few clients on one queue; in some seeds only one, without faults."""

    def __init__(self, db: Any, space: Subspace, seed: int) -> None:
        self._is_alone = seed % 5 == 0
        super().__init__(db, space, seed, self._is_alone)
        draw = self.random
        is_staged = draw.random() < 0.3  # pops wait for each other, as on a cluster
        self.db.engine = engine_of(db)._replace(is_remote=is_staged)
        is_exact = self._is_alone or draw.random() < 0.3
        recording = Recording(Log(space["log"]), self._now)
        self._is_full = draw.random() < 0.4
        groups = [*draw.sample(GROUPS[:-1], 2), None] if self._is_full else GROUPS
        settings = SETTINGS[-1] if self._is_full else draw.choice(SETTINGS)
        self.storm = Storm(space, settings, is_exact, recording, groups)
        self.storm.pops = 20 if is_staged else 1
        self.storm.shards = draw.choice([1, 1, 3])
        self.ledger = Ledger(self._is_alone, self.storm.shards)
        self._numbers = itertools.count()

    def _now(self) -> int:
        return self.scheduler.time + max(self.scheduler.skews, default=0)

    def _client(self) -> Client:
        return Client(self.storm, self.db, self.random, next(self._numbers))

    @property
    def events(self) -> Counter[str]:
        """How often something of interest happened."""
        return self.ledger.events

    def run(self) -> list[str]:
        """Run the clients, let every group go on, end all items; return what must not be."""
        n = 1 if self._is_alone else self.kills + self.random.randint(2, 3)
        with self.patched():
            self._client().configure(self.random.choice(RATES))
            if self._is_full:
                self._client().bound()
            self.scheduler.run([self._body() for _ in range(n)])
            self.scheduler.time += 10**6
            last, queue = self._client(), self.storm.queue()
            last.collect(partial(self.end, queue))
            last.drain(self._pause)
        self.storm.replay(self._raw, self.ledger, self.db.version_of.__getitem__)
        report = fdbqueue.admin.check(self._raw, queue)
        checked = [] if report.ok else [f"fdbqueue.admin.check: {report.problems}"]
        return self.ledger.problems + checked

    def _pause(self, seconds: float) -> None:
        self.scheduler.time += round(1000 * seconds)

    def _body(self) -> Callable[[], None]:
        n = self.random.randint(20, 80)

        def body() -> None:
            for _ in range(2):  # one process after the other
                client = self._client()
                for _ in range(n // 2):
                    client.act()
                    if self.random.random() < 0.3:
                        self.scheduler.time += self.random.choice(_PAUSES)
                        self.scheduler.step("pause")

        return body
