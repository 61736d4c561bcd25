"""Clients that run one at a time, in an order that a seed decides, and fail as the seed says."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from fdbqueue.errors import FDBError
from fdbqueue.testing import FaultyDatabase, FaultyTransaction

__all__ = ["Killed", "Scheduler", "SimulatedDatabase"]


class Killed(BaseException):
    """The client's process is gone: nothing of it runs any more."""


class _Client:
    """A thread that runs only while it has the turn."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.turn = threading.Semaphore(0)
        self.is_killed = False


class Scheduler:
    """Gives the turn to one client after the other; each call of the database may pass it on."""

    def __init__(self, seed: int, kills: int) -> None:
        self.random = random.Random(seed)
        self.time = 0
        self.trace: list[str] = []
        self._kills = kills
        self._clients: list[_Client] = []
        self._threads: list[threading.Thread] = []
        self._current: _Client | None = None
        self._failure: BaseException | None = None
        self._all_over = threading.Event()

    def monotonic(self) -> float:
        """The time in seconds, in the place of `time.monotonic`."""
        return self.time / 1000

    def time_ns(self) -> int:
        """The time in nanoseconds, in the place of `time.time_ns`."""
        return self.time * 1_000_000

    def note(self, text: str) -> None:
        """Add a line to the trace, which is the same whenever the seed is."""
        number = "-" if self._current is None else self._current.number
        self.trace.append(f"{self.time:5} client {number}: {text}")

    def run(self, bodies: list[Callable[[], None]]) -> None:
        """Run the clients until all have ended or were killed."""
        for number, body in enumerate(bodies):
            client = _Client(number)
            self._clients.append(client)
            self._threads.append(
                threading.Thread(target=self._live, args=[client, body], daemon=True)
            )
        for thread in self._threads:
            thread.start()
        self._pass_on()
        self._all_over.wait()
        for thread in self._threads:
            thread.join()
        self._current = None
        if self._failure is not None:
            raise self._failure

    def _live(self, client: _Client, body: Callable[[], None]) -> None:
        client.turn.acquire()
        try:
            if not client.is_killed:
                body()
        except Killed:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        self._clients.remove(client)
        self._pass_on()

    def _pass_on(self) -> None:
        if not self._clients:
            self._all_over.set()
            return
        self._current = self.random.choice(self._clients)
        self._current.turn.release()

    def step(self, name: str) -> None:
        """A call of the database: somebody else may be next, and this client may be killed."""
        self.time += 1
        client = self._current
        if client is None:
            return  # the simulation is over; what is called now only looks at its end
        self.note(name)
        if self.random.random() < 0.5:
            self._pass_on()
            client.turn.acquire()
        self.may_kill(0.01)

    def may_kill(self, share: float) -> None:
        """End the life of the current client, with this probability."""
        if self._current is not None and self._kills and self.random.random() < share:
            self._kills -= 1
            self.note("killed")
            raise Killed


class SimulatedDatabase(FaultyDatabase):
    """A database whose calls go through a scheduler, and whose commits fail by its seed."""

    def __init__(self, db: Any, scheduler: Scheduler, faults: float) -> None:
        super().__init__(db)
        self._scheduler = scheduler
        self._faults = faults
        self._late: list[Any] = []

    def before_call(self, name: str) -> None:
        self._scheduler.step(name)
        self.deliver_late(0.1)
        is_read = name.startswith("get") and name != "get_committed_version"
        if is_read and self._scheduler.random.random() < self._faults / 10:
            self._scheduler.note("1007")
            raise FDBError(1007)

    def deliver_late(self, share: float) -> None:
        """Have commits arrive of which their clients know nothing more, each with a chance."""
        for transaction in self._late.copy():
            if self._scheduler.random.random() < share:
                self._late.remove(transaction)
                try:
                    transaction.commit().wait()
                    self._scheduler.note("(a late commit takes place)")
                except FDBError as error:
                    self._scheduler.note(f"(a late commit fails: {error.code})")

    def commit(self, transaction: FaultyTransaction) -> None:
        draw = self._scheduler.random
        if draw.random() >= self._faults:
            self._scheduler.may_kill(0.02)
            transaction.wrapped.commit().wait()
            self._scheduler.may_kill(0.02)
            return
        kind = draw.choice(["before", "after", "late", "conflict"])
        code = 1020 if kind == "conflict" else draw.choice([1021, 1021, 1031, 1039])
        self._scheduler.note(f"commit: {kind}, {code}")
        if kind == "after":
            transaction.wrapped.commit().wait()
        elif kind == "late":
            transaction.wrapped.get_read_version().wait()  # as a commit on its way has one
            self._late.append(transaction.wrapped)
            transaction.wrapped = self.db.create_transaction()
        self._scheduler.may_kill(0.05)
        raise FDBError(code)
