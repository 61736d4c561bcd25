"""Groups: the clients and the ledger of `tests.long.simulation.groups`.

What each transaction writes is recorded. At the end the ledger looks at the rows of the queue after
each commit, in order. Many processes are killed, and some stop for longer than a lease.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import fdb
from fdb.subspace_impl import Subspace

from tests.long.simulation.cluster.inside.clients import Client as SimulatedClient
from tests.long.simulation.cluster.inside.environment import EPOCH
from tests.long.simulation.cluster.workloads.shared import (
    act_for,
    conclude,
    keep_running,
    look_for_leftovers,
    run_threads,
    take_dead_waiters,
)
from tests.long.simulation.groups.clients import RATES, SETTINGS, Client, Storm
from tests.long.simulation.groups.ledger import Ledger
from tests.long.simulation.groups.recording import Recording
from tests.long.simulation.log import Log

_SPACE = Subspace(("groups",))
_STOP = 3

_storms: list[Storm] = []
"""What all clients share, once the first of them has begun."""
_numbers = itertools.count()


class Groups:
    """Each client runs two processes at a time. In some seeds, only one runs, and is not killed.

    Then the ledger compares what groups get with their shares.
    """

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        chance = random.Random(f"groups {client.scenario['seed']}")  # the same for all clients
        self._is_alone = chance.random() < 0.15
        self._pause = chance.choice([0.1, 0.3, 0.6])
        self._rate = chance.choice(RATES)
        if not _storms:
            is_exact = self._is_alone or chance.random() < 0.3
            recording = Recording(
                Log(_SPACE["log"]), lambda: int(1000 * (EPOCH + time.monotonic()))
            )
            storm = Storm(_SPACE, chance.choice(SETTINGS), is_exact, recording)
            storm.shards = chance.choice([1, 1, 3])
            _storms.append(storm)
        self._storm = _storms[0]

    def setup(self, db: Any) -> None:
        """Create the queue."""
        if self._client.id == 0:
            self._new_client(db, "setup").configure(self._rate)

    def start(self, db: Any) -> None:
        """Keep processes running until the time is over."""
        end = time.monotonic() + self._client.scenario["seconds"]

        def work(name: str) -> None:
            keep_running(self._client, name, end, self._live, stop=_STOP)

        if not self._is_alone:
            run_threads(self._client, work)
        elif self._client.id == 0:
            self._live("alone", end - time.monotonic(), db)

    def _new_client(self, db: Any, name: str) -> Client:
        chance = random.Random(f"{self._client.scenario['seed']} {name}")
        return Client(self._storm, db, chance, next(_numbers))

    def _live(self, name: str, life: float, db: Any) -> None:
        act_for(self._new_client(db, name), name, life, self._pause)

    def check(self, db: Any) -> None:
        """Let every group go on, end all items, and replay the log.

        Nothing else looks at the queue before: a look at a database sweeps, and would not be
        recorded.
        """
        if self._client.id != 0:
            return
        queue, storm = self._storm.queue(), self._storm
        self._new_client(db, "drain").drain(lambda seconds: _pause(db, seconds))
        ledger = Ledger(self._is_alone, storm.shards)
        self._client.keep_log(storm.replay(db, ledger))
        facts = {"alone": self._is_alone, **ledger.events, **storm.events}
        conclude(self._client, db, queue, ledger.problems, storm.acts, **facts)
        take_dead_waiters(db, queue)
        look_for_leftovers(self._client, db, queue.subspace, expected={"a receipt"})


def _pause(db: Any, seconds: float) -> None:
    """Let time pass by the versions as well: in some seeds they are slower than the clocks."""
    end = _read_version(db) + 1e6 * seconds
    while True:
        time.sleep(seconds)
        if _read_version(db) >= end:
            return


@fdb.transactional
def _read_version(tr: Any) -> int:
    return int(tr.get_read_version().wait())
