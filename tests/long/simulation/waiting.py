"""Clients that wait while others push: no wake-up is lost."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination import sans_io, waiting
from tests.long.simulation.scheduler import SimulatedDatabase, SimulatedTransaction
from tests.long.simulation.simulated import Simulated

SPACE = Subspace(("waiting simulation",))


class Watch:
    """A watch whose state depends on the database alone; or one that never fires."""

    def __init__(self, db: Any, key: bytes, value: Any, is_broken: bool) -> None:
        self._db = db
        self._key = key
        self._value = value
        self._is_broken = is_broken

    def is_ready(self) -> bool:
        return not self._is_broken and self._db[self._key] != self._value

    def wait(self) -> None:
        """Return; this watch has no error."""

    def cancel(self) -> None:
        """Do nothing; nothing runs for this watch."""


class WatchingTransaction(SimulatedTransaction):
    def watch(self, key: bytes) -> Watch:
        self._db.before_call("watch")
        self.pin()
        value = self.wrapped.get(key).value
        assert isinstance(self._db, WatchingDatabase)
        return Watch(self._db.db, key, value, self._db.breaks())


class WatchingDatabase(SimulatedDatabase):
    """A simulated database with watches."""

    breaks: Callable[[], bool]

    def create_transaction(self) -> WatchingTransaction:
        return WatchingTransaction(self, self.db.create_transaction())


class Sleeper:
    """A client that sleeps."""

    def __init__(self, watches: Sequence[Any], alarms: Sequence[Any]) -> None:
        self.watches = watches
        self.alarms = alarms

    def is_idle(self) -> bool:
        return not any(watch.is_ready() for watch in (*self.watches, *self.alarms))


class WaitingSimulation(Simulated):
    """Clients that push, and clients that wait until all items are taken.

    Once all clients sleep and no watch has fired, no item may be left, unless watches were broken
    or clients killed. Then the time of a sleep is over instead.
    """

    def __init__(self, db: Any, seed: int) -> None:
        self.is_reliable = seed % 2 == 0
        super().__init__(db, SPACE, seed, is_quiet=self.is_reliable)
        self.db = WatchingDatabase(db, self.scheduler, self.db.faults, 0.0)
        broken = 0.0 if self.is_reliable else self.random.choice([0.0, 0.3])
        self.db.breaks = lambda: self.random.random() < broken
        self._sleepers: dict[int, Sleeper] = {}

    def run(self) -> list[str]:
        """Run the clients until all items are taken, or all clients that take items are dead."""
        pushers = [self._pusher(number) for number in range(self.random.randint(1, 3))]
        consumers = [self._consumer() for _ in range(self.random.randint(1, 4))]
        with self.patched():
            self.scheduler.run([*consumers, *pushers])
        is_over = self.kills or PriorityQueue(SPACE).is_empty(self._raw)
        return [] if is_over else ["items are left"]

    @contextmanager
    def patched(self) -> Iterator[None]:
        with super().patched(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sans_io, "sleep_on", self._sleep)
            replacement = SimpleNamespace(
                Thread=self._thread, Lock=threading.Lock, RLock=threading.RLock
            )
            patch.setattr(waiting, "threading", replacement)
            patch.setattr(waiting, "_have_waited", set())
            yield

    def _thread(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:
        """Return a thread of a client, which runs at once, if its client was not killed."""
        return SimpleNamespace(start=lambda: self.scheduler.is_killed or target(*args))

    def _pusher(self, number: int) -> Callable[[], None]:
        queue = PriorityQueue(SPACE)
        counts = [self.random.choice([1, 1, 1, 2, 3]) for _ in range(self.random.randint(1, 6))]

        def body() -> None:
            for push, count in enumerate(counts):
                values = [f"{number}.{push}.{item}" for item in range(count)]
                try:
                    queue.push_many(self.db, values)
                except fdbqueue.FDBError as error:
                    self.scheduler.note(f"push failed: {error.code}")
                self._pause()

        return body

    def _pause(self) -> None:
        """Push nothing for a while, or until all clients sleep."""
        client = self.scheduler.client
        assert client is not None
        steps = self.random.choice([0, 10, 30, 10_000])
        self._sleepers[client] = Sleeper([], [])
        try:
            while steps and not self._is_quiet():
                self.scheduler.step("pause")
                steps -= 1
        finally:
            del self._sleepers[client]

    def _consumer(self) -> Callable[[], None]:
        queue = PriorityQueue(SPACE)  # each process has its own
        take = self.random.choice([self._pop, self._claim])
        waits = self.random.choice([[math.inf], [math.inf, 0.05, 1.0]])

        def body() -> None:
            while True:
                try:
                    take(queue, self.random.choice(waits))
                except fdbqueue.FDBError as error:
                    self.scheduler.note(f"take failed: {error.code}")
                for _ in range(self.random.choice([0, 0, 10])):
                    self.scheduler.step("work")

        return body

    def _pop(self, queue: PriorityQueue, seconds: float) -> None:
        if (item := queue.pop(self.db, wait=seconds)) is not None:
            self.scheduler.note(f"took {item.value}")

    def _claim(self, queue: PriorityQueue, seconds: float) -> None:
        if (claim := queue.claim(self.db, wait=seconds, lease=10_000)) is not None:
            self.scheduler.note(f"took {claim.item.value}")
            queue.ack(self.db, claim)

    def _sleep(
        self,
        watches: Sequence[Any],
        seconds: float,
        stop: Any = None,
        alarms: Sequence[Any] = (),
        moment: float = 0.0,
    ) -> Any:
        client = self.scheduler.client
        assert client is not None
        self._sleepers[client] = Sleeper(watches, alarms)
        deadline = self.scheduler.monotonic() + seconds
        alarm = None
        try:
            while self.scheduler.monotonic() < deadline:
                self.scheduler.step("sleep")
                if self.random.random() < 0.5:
                    continue  # watches fire late
                for watch in watches:
                    if watch.is_ready() or self.random.random() < 0.001:
                        return watch
                if alarm is None and (rung := [each for each in alarms if each.is_ready()]):
                    alarm = rung[0]
                    self.scheduler.note("alarmed")
                    deadline = min(deadline, self.scheduler.monotonic() + moment)
                if self._is_quiet() and not self._pausing():
                    if not self._has_items():
                        self.scheduler.kill()  # the simulation is over
                    return None
            return alarm
        finally:
            del self._sleepers[client]

    def _is_quiet(self) -> bool:
        """Return whether all clients sleep, or pause, and nothing will wake them."""
        alive = {client.number for client in self.scheduler._clients}
        if alive != set(self._sleepers):
            return False
        if not all(sleeper.is_idle() for sleeper in self._sleepers.values()):
            return False
        if self.db._late:
            self.db.deliver_late(1.0)
            return False
        assert not (self.is_reliable and self._has_items()), "all clients sleep, and items are left"
        return True

    def _pausing(self) -> bool:
        return any(not sleeper.watches for sleeper in self._sleepers.values())

    def _has_items(self) -> bool:
        return not PriorityQueue(SPACE).is_empty(self.db.db)
