"""Queues with faults and kills on any engine: each result is that of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.errors import error_classes
from tests.long.simulation.queues.clients import Session, Storm
from tests.long.simulation.simulated import Simulated

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
            log = self.storm.end(session, self.db, self.db.version_of.__getitem__)
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
