"""Processes that work on one queue at once, and that are killed.

They serve each other: one takes items for the requests of the others. Leaders and members are
killed, and stop for longer than the others wait. The calls and their ledger are those of
`databases`; only the last call of a killed process has an unknown outcome.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import fdbqueue
from fdbqueue.coordination.pops import REQUEST_TIMEOUT, _Pops
from fdbqueue.queue.base import store_of
from tests.long.simulation.cluster.inside.clients import Client
from tests.long.simulation.cluster.workloads.databases import (
    SPACE,
    Caller,
    account_for_calls,
    note_killed,
)
from tests.long.simulation.cluster.workloads.shared import (
    keep_running,
    look_a_day_later,
    look_for_leftovers,
    run_threads,
    take_dead_waiters,
    wait_for_ends,
)

_counts: Counter[str] = Counter()
"""How often processes have worked for each other."""


class Processes:
    """Each client runs three processes at a time, with one or two threads."""

    def __init__(self, client: Client) -> None:
        chance = random.Random(f"processes {client.scenario['seed']}")  # the same for all clients
        self._threads = chance.choice([1, 2])
        self._pause = chance.choice([0, 0.05])
        self._client = client
        if not client.id:
            _count(_Pops, "_take_staged", "staged")

    def setup(self, db: Any) -> None:
        """Do nothing: the first push creates the queue."""

    def start(self, db: Any) -> None:
        """Keep processes running until the time is over."""
        client, end = self._client, time.monotonic() + self._client.scenario["seconds"]

        def work(name: str) -> None:
            keep_running(client, name, end, self._call, REQUEST_TIMEOUT, note_killed)

        run_threads(client, work, n=3)

    def _call(self, name: str, life: float, db: Any) -> None:
        """Make random calls, many of them pops, with threads that share a queue object."""
        end = time.monotonic() + life
        queue = fdbqueue.PriorityQueue(SPACE)

        def work(thread: str) -> None:
            full = f"{name}.{thread}"
            chance = random.Random(f"{self._client.scenario['seed']} {full}")
            caller = Caller(db, queue, full, chance, self._client.scenario["skew"] > 0)
            while time.monotonic() < end:
                chance.choice([caller.push, caller.pop, caller.step])()
                time.sleep(2 * self._pause * chance.random())

        run_threads(self._client, work, self._threads)

    def check(self, db: Any) -> None:
        """Take all items, account for them, and look for what killed processes have left."""
        if self._client.id != 0:
            return
        queue = fdbqueue.PriorityQueue(SPACE)
        # What a killed process has begun may still take effect, and its request ends after this.
        time.sleep(2 * REQUEST_TIMEOUT)
        # A pop or a claim would return what is staged for dead processes; stats only count it.
        store_of(queue).sweeper.trim(db)
        wait_for_ends(self._client, db, queue)
        account_for_calls(self._client, db, queue, may_be_killed=True)
        take_dead_waiters(db, queue)
        look_for_leftovers(self._client, db, SPACE, expected={"a receipt"})
        look_a_day_later(self._client, queue)
        self._client.report(**_counts)


def _count(owner: Any, name: str, what: str) -> None:
    """Count the calls of a method that return something."""
    method: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any) -> Any:
        result = method(*args)
        _counts[what] += result is not None
        return result

    setattr(owner, name, counted)
