"""Clients that run one at a time; a seed decides their order and their faults."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import fdbqueue
from fdbqueue.errors import FDBError
from fdbqueue.testing.faults import FaultyDatabase, FaultyReads, FaultyTransaction

MAX_VERSIONS_IN_FLIGHT = 100_000_000  # by which a recovery advances the version

MAX_STEPS = 500_000


class Killed(BaseException):
    """The client's process was killed and must not run any further."""


class Endless(Exception):
    """The simulation does not end."""


class _Client:
    """A thread that runs only while the scheduler has selected it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.may_run = threading.Semaphore(0)


class Scheduler:
    """Runs one client at a time; each database call may switch to another one."""

    def __init__(self, seed: int, kills: int) -> None:
        self.random = random.Random(seed)
        self.time = 0
        self.skews: list[int] = []
        """How far the clock of each client is ahead, in milliseconds; 0 for missing ones."""
        self.trace: list[str] = []
        self._stopped: dict[int | None, int] = {}
        self._steps = 0
        self._kills = kills
        self._clients: list[_Client] = []
        self._threads: list[threading.Thread] = []
        self._current: _Client | None = None
        self._failure: BaseException | None = None
        self._finished = threading.Event()

    def monotonic(self) -> float:
        """Return the time in seconds; a replacement of `time.monotonic`."""
        return self.time / 1000

    def time_ns(self) -> int:
        """Return the time by the client's clock; a replacement of `time.time_ns`."""
        now = self._stopped.get(self.client, self.time)
        return (now + self.skew) * 1_000_000

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Stop the clock of the running client."""
        self._stopped[self.client] = self.time
        try:
            yield
        finally:
            del self._stopped[self.client]

    @property
    def skew(self) -> int:
        """How far the clock of the running client is ahead, in milliseconds."""
        client = self.client
        return self.skews[client] if client is not None and client < len(self.skews) else 0

    @property
    def client(self) -> int | None:
        """The number of the running client; `None` when the simulation is over."""
        return None if self._current is None else self._current.number

    def note(self, text: str) -> None:
        """Add a line to the trace, which is determined by the seed."""
        number = "-" if self.client is None else self.client
        self.trace.append(f"{self.time:5} client {number}: {text}")

    def run(self, bodies: list[Callable[[], None]]) -> None:
        """Run the clients until all have ended or were killed."""
        for number, body in enumerate(bodies):
            client = _Client(number)
            self._clients.append(client)
            self._threads.append(
                threading.Thread(target=self._run_client, args=[client, body], daemon=True)
            )
        for thread in self._threads:
            thread.start()
        self._switch()
        self._finished.wait()
        for thread in self._threads:
            thread.join()
        self._current = None
        if self._failure is not None:
            raise self._failure

    def _run_client(self, client: _Client, body: Callable[[], None]) -> None:
        client.may_run.acquire()
        try:
            body()
        except Killed:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        self._clients.remove(client)
        self._switch()

    def _switch(self) -> None:
        if not self._clients:
            self._finished.set()
            return
        self._current = self.random.choice(self._clients)
        self._current.may_run.release()

    def step(self, name: str) -> None:
        """Count a database call; switch to another client or kill this one at random."""
        self.time += 1
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Endless
        client = self._current
        if client is None:
            return  # the simulation is over; such calls only inspect its final state
        self.note(name)
        if self.random.random() < 0.5:
            self._switch()
            client.may_run.acquire()
        self.may_kill(0.01)

    def may_kill(self, probability: float) -> None:
        """Kill the current client with this probability."""
        if self._current is not None and self._kills and self.random.random() < probability:
            self._kills -= 1
            self.note("killed")
            raise Killed


class Commit(NamedTuple):
    """A successful commit: its read version and its commit version."""

    read: int
    version: int


class SimulatedDatabase(FaultyDatabase):
    """A database whose calls go through a scheduler, and whose commits fail by its seed.

    Its versions are the scheduler's time, in microseconds: each read version and each commit has
    its own version on every engine, determined by the seed. A recovery adds 100 seconds to all
    later versions.

    Args:
        db: The database.
        scheduler: The scheduler.
        faults: The probability that a commit fails.
        recoveries: The probability of a recovery in each call.
    """

    def __init__(self, db: Any, scheduler: Scheduler, faults: float, recoveries: float) -> None:
        super().__init__(db)
        self._scheduler = scheduler
        self.faults = faults
        self.read_faults = faults / 10
        """The probability that a read fails. Long transactions need a lower one."""
        self._recoveries = recoveries
        self._jumped = 0
        """By how much recoveries have advanced the version."""
        self._late: list[Callable[[], None]] = []
        self._version = 0
        self.version_of: dict[int, int] = {}
        """The version of each commit, by the one that the engine gave it."""

    def create_transaction(self) -> SimulatedTransaction:
        return SimulatedTransaction(self, self.db.create_transaction())

    def new_version(self) -> int:
        """Return a new version, later than all others."""
        self._version = max(self._version + 1, self._scheduler.time * 1_000 + self._jumped)
        return self._version

    def before_call(self, name: str) -> None:
        self._scheduler.step(name)
        self.deliver_late(0.1)
        if self._recoveries and self._scheduler.random.random() < self._recoveries:
            self._scheduler.note("(a recovery)")
            self._jumped += MAX_VERSIONS_IN_FLIGHT
        is_read = name.startswith("get") and name != "get_committed_version"
        if is_read and self._scheduler.random.random() < self.read_faults:
            self._scheduler.note("1007")
            raise FDBError(1007)

    def deliver_late(self, probability: float) -> None:
        """Apply each commit in flight with this probability; its client does not notice."""
        for take_place in self._late.copy():
            if self._scheduler.random.random() < probability:
                self._late.remove(take_place)
                try:
                    take_place()
                    self._scheduler.note("(a late commit takes place)")
                except fdbqueue.error_classes() as error:
                    self._scheduler.note(f"(a late commit fails: {error.code})")

    def on_its_way(self, transaction: SimulatedTransaction) -> Callable[[], None]:
        """Return a function that applies a commit which was sent."""
        wrapped = transaction.wrapped
        transaction.pin()

        def take_place() -> None:
            wrapped.commit().wait()
            if wrapped.get_committed_version() > 0:
                self.version_of[wrapped.get_committed_version()] = self.new_version()

        return take_place

    def commit(self, transaction: FaultyTransaction) -> None:
        assert isinstance(transaction, SimulatedTransaction)
        draw = self._scheduler.random
        take_place = self.on_its_way(transaction)
        if draw.random() >= self.faults:
            self._scheduler.may_kill(0.02)
            take_place()
            self._scheduler.may_kill(0.02)
            return
        kind = draw.choice(["before", "after", "late", "conflict"])
        code = 1020 if kind == "conflict" else draw.choice([1021, 1021, 1031, 1039])
        self._scheduler.note(f"commit: {kind}, {code}")
        if kind == "after":
            take_place()
        elif kind == "late":
            self._late.append(take_place)
            transaction.wrapped = self.db.create_transaction()
        self._scheduler.may_kill(0.05)
        raise FDBError(code)


class SimulatedTransaction(FaultyTransaction):
    """A transaction of a simulated database; its first read determines its version."""

    def __init__(self, db: SimulatedDatabase, wrapped: Any) -> None:
        super().__init__(db, wrapped)
        self._simulated = db
        self.version: int | None = None

    def pin(self) -> int:
        """Set the read version to the current version, unless it is set."""
        if self.version is None:
            self.wrapped.get_read_version().wait()
            self.version = self._simulated.new_version()
        return self.version

    @property
    def snapshot(self) -> FaultyReads:
        self.pin()
        return super().snapshot

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        is_read = name == "get" or name.startswith("get_")
        if is_read and name != "get_committed_version":
            self.pin()
        return call

    def __getitem__(self, key: Any) -> Any:
        self._db.before_call("get")
        self.pin()
        return self.wrapped[key]

    def get_read_version(self) -> ReadVersion:
        """Return the simulated read version."""
        self._db.before_call("get_read_version")
        return ReadVersion(self.pin())

    def on_error(self, error: Any) -> Any:
        self.version = None
        return super().on_error(error)


class ReadVersion:
    """The future of a read version."""

    def __init__(self, version: int) -> None:
        self._version = version

    def wait(self) -> int:
        return self._version
