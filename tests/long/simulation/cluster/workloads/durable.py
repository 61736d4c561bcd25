"""Schedules, steps, signals and batches, with the ledger of `tests.long.simulation.durable`.

Many of their processes are killed in the middle of a step, and some stop for longer than a lease.
"""

from __future__ import annotations

import random
import time
from typing import Any

from fdb.subspace_impl import Subspace

from tests.long.simulation.cluster.inside.clients import Client as SimulatedClient
from tests.long.simulation.cluster.workloads.shared import (
    act_for,
    conclude,
    keep_running,
    look_for_leftovers,
    run_threads,
)
from tests.long.simulation.durable.clients import Client, Storm
from tests.long.simulation.durable.ledger import Ledger

_SPACE = Subspace(("durable",))
_SCALE = 0.2
_LEASES = (1.0, 3.0, 20.0)
_STOP = 3
_HOUR = 3_600

_storms: list[Storm] = []
"""What all clients share, once the first of them has begun."""


class Durable:
    """Each client runs two processes at a time."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        skew = client.scenario["skew"]
        if not _storms:
            intervals = (60, 120) if skew >= _HOUR else (1, 2)
            shards = 1 + client.scenario["seed"] % 3
            _storms.append(Storm(_SPACE, _SCALE, _LEASES, intervals, shards))
        self._storm = _storms[0]
        self._spread = round(1000 * skew)
        chance = random.Random(f"durable {client.scenario['seed']}")  # the same for all clients
        self._pause = chance.choice([0.02, 0.1, 0.3])

    def setup(self, db: Any) -> None:
        """Create the queue."""
        if self._client.id == 0:
            self._storm.begin(db)

    def start(self, db: Any) -> None:
        """Keep processes running until the time is over."""
        end = time.monotonic() + self._client.scenario["seconds"]

        def work(name: str) -> None:
            keep_running(self._client, name, end, self._live, stop=_STOP)

        run_threads(self._client, work)

    def _new_client(self, db: Any, name: str, is_calm: bool = False) -> Client:
        chance = random.Random(f"{self._client.scenario['seed']} {name}")
        return Client(self._storm, db, name, chance, time.sleep, is_calm)

    def _live(self, name: str, life: float, db: Any) -> None:
        act_for(self._new_client(db, name), name, life, self._pause)

    def check(self, db: Any) -> None:
        """End everything, and replay the log."""
        if self._client.id != 0:
            return
        queue, storm = self._storm.queue(), self._storm
        stuck = self._new_client(db, "drain", is_calm=True).drain()
        entries = storm.log.read(db)
        self._client.keep_log(entries)
        ledger = Ledger(self._spread)
        ledger.replay(entries)
        done, dead = (queue.items(db, state=state) for state in ("done", "dead"))
        ledger.close(storm.pushed, storm.seen, done, dead)
        facts = {"lost": storm.lost, **ledger.events}
        conclude(self._client, db, queue, [*stuck, *ledger.problems], entries, **facts)
        look_for_leftovers(self._client, db, queue.subspace, expected={"a receipt", "a waiter"})
