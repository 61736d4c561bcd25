"""Queues in the caller's transactions, with the clients and the model of `simulation.queues`."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.long.simulation.cluster.inside.clients import Client
from tests.long.simulation.cluster.inside.environment import stopped_clock
from tests.long.simulation.cluster.workloads.shared import (
    conclude,
    look_for_leftovers,
    run_threads,
    wait_for_ends,
)
from tests.long.simulation.queues.clients import Session, Storm

_storms: list[Storm] = []
"""What all clients share, once the first of them has begun."""


class Queues:
    """Each thread makes random operations: half of the transactions have one, the others two."""

    def __init__(self, client: Client) -> None:
        chance = random.Random(f"queues {client.scenario['seed']}")  # the same for all clients
        self._pause = chance.choice([0.05, 0.2, 0.5])
        self._client = client
        if not _storms:
            _storms.append(Storm(chance, stopped_clock))
        self._storm = _storms[0]

    def setup(self, db: Any) -> None:
        """Create the queue."""
        if self._client.id == 0:
            self._storm.begin(db)

    def _session(self, db: Any, name: str) -> Session:
        chance = random.Random(f"{self._client.scenario['seed']} {name}")
        return Session(self._storm, db, name, chance)

    def start(self, db: Any) -> None:
        """Work until the time is over."""
        end = time.monotonic() + self._client.scenario["seconds"]

        def work(name: str) -> None:
            session = self._session(db, name)
            while time.monotonic() < end:
                session.step()
                time.sleep(2 * self._pause * session.random.random())

        run_threads(self._client, work)

    def check(self, db: Any) -> None:
        """Take all items, look for what is left, and replay the log."""
        if self._client.id != 0:
            return
        session = self._session(db, "check")
        wait_for_ends(self._client, db, session.queue)
        log = self._storm.end(session, db)
        look_for_leftovers(self._client, db, session.queue.subspace)
        self._client.keep_log(log)
        conclude(self._client, db, session.queue, self._storm.problems, log)
