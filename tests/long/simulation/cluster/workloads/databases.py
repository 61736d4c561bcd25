"""Priority queues with the database: exactly once under unknown results, and waits.

The library owns the transactions, so there is no log. Each client records its calls in simulated
time, and the ledger of the storm accounts for each value: nothing is lost or doubled, and no claim
succeeds once another one has its item. Only the last call of a killed process has an unknown
outcome. Without kills, pushes wake clients that wait at the end. `groups` checks the order of such
calls.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.coordination.pops import REQUEST_TIMEOUT
from fdbqueue.errors import LeaseLost
from fdbqueue.queue.base import store_of
from tests.long.hostile.ledger import LEASE_LOST, Operation, account
from tests.long.simulation.cluster.inside.clients import Client
from tests.long.simulation.cluster.workloads.shared import (
    conclude,
    keep_running,
    look_a_day_later,
    look_for_leftovers,
    run_threads,
    seconds_of_commits,
    take_dead_waiters,
    wait_for_ends,
)

SPACE = Subspace(("queue",))
_QUEUE = "queue"  # its name in the ledger
_LEASES = (1, 5, 20)
_SIZES = (1, 1, 1, 1, 3)
_WAITS = (0, 0, 5)
_PROMPT = 10
"""Seconds in which a push wakes a client, once there are no faults; some commits come on top."""
_TRANSACTION = 5.0  # seconds that a transaction lives

_operations: list[Operation] = []
"""The calls of all clients, which share an interpreter."""


class Databases:
    """Calls of threads that share a queue object; in most seeds of processes that are killed.

    Those serve each other: one takes items for the requests of the others. Leaders and members are
    killed, and stop for longer than the others wait.
    """

    def __init__(self, client: Client) -> None:
        chance = random.Random(f"databases {client.scenario['seed']}")  # the same for all clients
        self._are_killed = chance.random() < 0.6
        self._threads = chance.choice([1, 2]) if self._are_killed else 2
        self._pause = chance.choice([0, 0.05] if self._are_killed else [0.05, 0.2, 0.5])
        self._client = client

    def setup(self, db: Any) -> None:
        """Do nothing: the first push creates the queue."""

    def start(self, db: Any) -> None:
        """Work until the time is over."""
        client = self._client
        if self._are_killed:
            keep_running(client, self._call, REQUEST_TIMEOUT, 3, _note_killed)
        else:
            self._call(f"{client.id}", client.scenario["seconds"], db)

    def _call(self, name: str, life: float, db: Any) -> None:
        """Make random calls; in processes that are killed, many of them pops."""
        end = time.monotonic() + life
        queue = fdbqueue.PriorityQueue(SPACE)

        def work(thread: str) -> None:
            full = f"{name}.{thread}"
            chance = random.Random(f"{self._client.scenario['seed']} {full}")
            caller = Caller(db, queue, full, chance, self._client.scenario["skew"] > 0)
            calls = [caller.push, caller.pop, caller.step] if self._are_killed else [caller.step]
            while time.monotonic() < end:
                chance.choice(calls)()
                time.sleep(2 * self._pause * chance.random())

        run_threads(self._client, work, self._threads)

    def check(self, db: Any) -> None:
        """Take all items, look for what is left, and account for all values."""
        if self._client.id != 0:
            return
        queue = fdbqueue.PriorityQueue(SPACE)
        if self._are_killed:
            # What a killed process has begun may still take effect, and its request ends later.
            time.sleep(2 * REQUEST_TIMEOUT)
            # A pop or a claim would return what is staged for dead processes; stats only count it.
            store_of(queue).sweeper.trim(db)
        wait_for_ends(self._client, db, queue)
        self._account(db, queue)
        if self._are_killed:
            take_dead_waiters(db, queue)
        else:
            self._check_waking(db)
        look_for_leftovers(self._client, db, SPACE, expected={"a receipt"})
        look_a_day_later(self._client, queue)

    def _account(self, db: Any, queue: fdbqueue.PriorityQueue) -> None:
        """Take all items of the queue, and account for all values."""
        client, left = self._client, list[str]()
        while items := queue.pop_many(db, 100):
            left += [item.value for item in items]
        if list(queue.items(db)) or not queue.stats(db).is_empty:
            client.problem(f"the queue is not empty: {queue.stats(db)}")
        client.keep_log(_operations)
        verdict = account(_operations, {_QUEUE: left})
        if verdict.unknown and not self._are_killed:
            client.problem(f"not every outcome is known: {verdict}")
        conclude(client, db, queue, verdict.problems, _operations)

    def _check_waking(self, db: Any) -> None:
        """Check that pushes wake clients that wait at an empty queue."""
        times: dict[str, float] = {}

        def work(name: str) -> None:
            queue = fdbqueue.PriorityQueue(SPACE)
            if name == f"{self._client.id}a":
                for _ in range(3):
                    time.sleep(3)
                    queue.push(db, "for one of them")
            elif queue.pop(db, wait=100) is None:
                self._client.problem(f"{name} got nothing")
            times[name] = time.monotonic()

        run_threads(self._client, work, 4)
        pushed = times.pop(f"{self._client.id}a")
        if max(times.values()) > pushed + _PROMPT + seconds_of_commits(db, 10):
            self._client.problem(f"woken late, by a push that ended at {pushed}: {times}")
        time.sleep(5)  # they leave later, in threads of their own


def _note_killed(process: str) -> None:
    """Note that the outcomes of the last calls of a killed process are unknown.

    What the client library has begun for it ends at last with the life of a transaction.
    """
    for operation in _operations:
        if operation.client.startswith(f"{process}.") and operation.ended == math.inf:
            operation.outcome, operation.why = "unknown", "killed"
            operation.ended = time.monotonic() + _TRANSACTION


class Caller:
    """The calls of one thread, each of which it records."""

    def __init__(
        self,
        db: Any,
        queue: fdbqueue.PriorityQueue,
        name: str,
        random: random.Random,
        is_skewed: bool,
    ) -> None:
        self.random = random
        self._is_skewed = is_skewed
        self._db = db
        self._queue = queue
        self._name = name
        self._numbers = itertools.count(1)
        self._items: list[fdbqueue.Item] = []
        """Items that it pushed last, perhaps gone."""
        self._claims: list[tuple[int, fdbqueue.Claim]] = []
        """Claims with their numbers."""

    @contextmanager
    def _record(self, kind: str, *values: str, **facts: Any) -> Iterator[Operation]:
        number, now = next(self._numbers), time.monotonic()
        operation = Operation(self._name, number, kind, _QUEUE, [*values], began=now, **facts)
        _operations.append(operation)
        try:
            yield operation
            operation.outcome = "done" if operation.values else "nothing"
        except LeaseLost:
            operation.why = LEASE_LOST
        operation.ended = time.monotonic()

    def step(self) -> None:
        """Make a random call."""
        calls = [self.push, self.pop, self.claim, self.end, self.remove]
        (call,) = self.random.choices(calls, [5.5, 2, 4, 5, 0.5])
        call()

    def push(self) -> None:
        """Push an item, or three of them."""
        values = [f"{self._name}-{next(self._numbers)}" for _ in range(self.random.choice(_SIZES))]
        delay, priority = self.random.choice([0, 0, 0, 0.5, 3]), self.random.randrange(4)
        with self._record("push", *values) as operation:
            items = self._queue.push_many(self._db, operation.values, priority, delay=delay)
        self._items = [*self._items[-9:], *items]

    def pop(self) -> None:
        """Pop some items at either end; wait for the first one."""
        n, at_max = self.random.choice([1, 1, 2]), self.random.random() < 0.3
        with self._record("pop", at_most=n) as operation:
            wait = self.random.choice(_WAITS)
            items = self._queue.pop_many(self._db, n, max=at_max, wait=wait)
            operation.values = [item.value for item in items]

    def claim(self) -> None:
        """Claim some items; wait for the first one."""
        n, lease = self.random.choice([1, 1, 3]), self.random.choice(_LEASES)
        # If clocks differ, a recovery ends a lease early, and no real time is certain.
        known = 0.0 if self._is_skewed else float(lease)
        with self._record("claim", lease=known) as operation:
            wait = self.random.choice(_WAITS)
            claim = self._queue.claim(self._db, lease=lease, n=n, wait=wait)
            operation.values = [item.value for item in claim.items] if claim else []
        if claim is not None:
            self._claims.append((operation.number, claim))

    def end(self) -> None:
        """End or extend a claim, which may be over."""
        if not self._claims:
            return
        number, claim = self._claims.pop(self.random.randrange(len(self._claims)))
        verb = self.random.choice(["ack", "ack", "nack", "release", "extend"])
        # No extension shortens a lease: the ledger expects that a lease lasts from its claim on.
        longest = max(_LEASES)
        facts: dict[str, Any] = {"nack": {"delay": 1}, "extend": {"lease": longest}}.get(verb, {})
        values = [item.value for item in claim.items]
        with self._record(verb, *values, claim=number) as operation:
            getattr(self._queue, verb)(self._db, claim, **facts)
        if verb == "extend" and operation.outcome == "done":
            self._claims.append((number, claim))

    def remove(self) -> None:
        """Remove an item that this thread has pushed."""
        if self._items:
            item = self.random.choice(self._items)
            with self._record("remove", item.value) as operation:
                if not self._queue.remove(self._db, item):
                    operation.values = []
