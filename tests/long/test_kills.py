"""Clients are killed with -9 while others work; a server is killed and restarted under them.

Values go through a pipeline: some clients push them to the queue `jobs`; some work, which moves a
value to `done` in one transaction; some pop from `done`. Each prints the acknowledged values.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.operations.timers import VERSIONS
from tests.long.skewed_clocks import INTERVAL, Simulation
from tests.support.cluster import Server, find_programs
from tests.support.leases import read_version
from tests.support.waiting import wait_until

KINDS = ("push", "work", "pop")
TICKS = 1_000
BATCH = 3  # maximum number of items per pop
PROGRAM = """
import itertools, os, sys, fdbqueue
from fdbqueue.layout.keys import Layout
url, name, kind, client_id, stop, batch = sys.argv[1:]
db = fdbqueue.open(url)
# Two clients that pop from one queue conflict, and a cluster's client backs off for up to a second
# each time. A client that is only unlucky must not look locked.
db.options.set_transaction_max_retry_delay(50)
jobs, done = (fdbqueue.PriorityQueue.named(db, name + part) for part in ("jobs", "done"))

@fdbqueue.transactional(receipts=Layout(done.subspace).receipts)
def move(tr):
    return [done.push(tr, item.value, item.priority) for item in jobs.pop_many(tr, 1)]

act = {
    "push": lambda number: [jobs.push(db, f"{client_id}-{number}", number % 3)],
    "work": lambda number: move(db),
    "pop": lambda number: done.pop_many(db, 1 + number % int(batch), wait=0.5),
}[kind]
for number in itertools.count():
    if os.path.exists(stop):
        break
    for item in act(number):
        print(item.value)
    sys.stdout.flush()
"""


class Client:
    """A client process and its output."""

    def __init__(self, url: str, name: str, kind: str, client_id: str, directory: Path) -> None:
        self.kind, self.client_id = kind, client_id
        self._output = directory / client_id
        with self._output.open("wb") as output:
            arguments = [url, name, kind, client_id, str(directory / "stop"), str(BATCH)]
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments], stdout=output
            )

    def acknowledged(self) -> list[str]:
        """Return the values of the operations that the client knew to be committed."""
        return self._output.read_text().split("\n")[:-1]

    def assert_progress(self) -> None:
        before = len(self.acknowledged())
        wait_until(lambda: len(self.acknowledged()) > before)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def was_killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL


class Crowd:
    """Two clients of each kind; a new client replaces each killed one."""

    def __init__(self, url: str, name: str, rng: random.Random, directory: Path) -> None:
        self._location, self._directory, self._rng = (url, name), directory, rng
        self.clients: list[Client] = []
        for kind in KINDS * 2:
            self._start(kind)

    def _start(self, kind: str) -> None:
        client_id = f"{kind}{len(self.clients)}"
        self.clients.append(Client(*self._location, kind, client_id, self._directory))

    def _running(self) -> list[Client]:
        running = [client for client in self.clients if client.process.poll() is None]
        assert len(running) == 2 * len(KINDS), "a client ended by itself"
        return running

    def kill_one(self, kinds: tuple[str, ...]) -> None:
        victim = self._rng.choice([client for client in self._running() if client.kind in kinds])
        victim.kill()
        self._start(victim.kind)

    def assert_progress(self) -> None:
        """Assert that every client makes progress, also the newest one."""
        for client in self._running():
            client.assert_progress()

    def stop(self) -> None:
        """Stop all clients after their current operation."""
        running = self._running()
        (self._directory / "stop").touch()
        assert [client.process.wait(60) for client in running] == [0] * len(running)

    def acknowledged(self, kind: str) -> list[str]:
        """Return the values of all clients of a kind, also of killed ones."""
        return [
            value
            for client in self.clients
            if client.kind == kind
            for value in client.acknowledged()
        ]


@pytest.fixture
def crowd(
    db: Any, shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> Iterator[Crowd]:
    """Start clients, and end them before the database is emptied."""
    directory = tmp_path / "crowd"
    directory.mkdir()
    crowd = Crowd(shared_url, name, rng, directory)
    yield crowd
    for client in crowd.clients:
        client.kill()


def assert_values_exist_once(db: Any, name: str, crowd: Crowd) -> None:
    """Assert that every acknowledged value exists once, except values in flight during a kill.

    A killed pusher may have committed one value without printing it; a killed popper, one batch.
    """
    jobs, done = (PriorityQueue.named(db, name + part) for part in ("jobs", "done"))
    assert fdbqueue.admin.check(db, jobs).ok
    assert fdbqueue.admin.check(db, done).ok
    to_do = [item.value for item in jobs.items(db)]
    found = Counter(to_do + [item.value for item in done.items(db)] + crowd.acknowledged("pop"))
    assert [value for value, times in found.items() if times > 1] == []

    pushed = set(crowd.acknowledged("push"))
    killed = [client for client in crowd.clients if client.was_killed]
    in_flight = {
        f"{each.client_id}-{len(each.acknowledged())}" for each in killed if each.kind == "push"
    }
    assert found.keys() - pushed <= in_flight
    lost = pushed - found.keys()
    assert len(lost) <= BATCH * sum(each.kind == "pop" for each in killed), sorted(lost)
    assert not set(to_do).intersection(crowd.acknowledged("work"))


@pytest.mark.parametrize("victims", [("push", "work"), ("pop",)], ids="-".join)
def test_killed_clients_lose_no_values_and_leave_no_locks(
    db: Any, name: str, crowd: Crowd, rng: random.Random, victims: tuple[str, ...]
) -> None:
    crowd.assert_progress()
    for _ in range(10):
        time.sleep(rng.uniform(0, 0.8))
        crowd.kill_one(victims)
    crowd.assert_progress()
    crowd.stop()
    assert_values_exist_once(db, name, crowd)


class TestKilledServer:
    """Commits that an `fdbserver` on disk acknowledged survive its kill."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Server]:
        programs = find_programs()
        if programs is None:
            reason = "no fdbserver and fdbcli on PATH or under FDB_HOME, to kill and start again"
            if os.environ.get("FDBQ_REQUIRE_CLUSTER") == "1":
                pytest.fail(f"FDBQ_REQUIRE_CLUSTER=1, and {reason}")
            pytest.skip(reason)
        with Server(tmp_path, *programs, storage="ssd") as server:
            yield server

    @pytest.fixture
    def url(self, server: Server) -> str:
        return str(server.cluster_file)

    def test_clients_survive_kills_of_the_server_and_of_each_other(
        self, db: Any, name: str, crowd: Crowd, server: Server, rng: random.Random
    ) -> None:
        crowd.assert_progress()
        for _ in range(4):
            time.sleep(rng.uniform(0, 1))
            server.kill()
            try:
                crowd.kill_one(("push", "work"))
                time.sleep(rng.uniform(0, 0.5))
            finally:
                server.start()  # also after a failure, because the fixtures clean up on it
            crowd.assert_progress()
            crowd.kill_one(("push", "work"))
        crowd.assert_progress()
        crowd.stop()
        assert_values_exist_once(db, name, crowd)

    def test_recoveries_end_no_lease(self, db: Any, name: str, server: Server) -> None:
        """Each restart of a server advances the versions by a hundred seconds' worth."""
        jobs = PriorityQueue.named(db, name, max_attempts=1)
        jobs.push_many(db, range(1_000))
        claims = [jobs.claim(db, n=100, lease=30) for _ in range(10)]
        for _ in range(5):
            before = read_version(db)
            server.kill()
            server.start()
            assert read_version(db) > before + 60 * VERSIONS
            assert PriorityQueue.named(db, name).claim(db) is None  # and sweeps
            for claim in claims:
                jobs.extend(db, claim, 30)
        assert list(jobs.items(db, state="dead")) == []
        for claim in claims:
            assert claim.attempts == (1,) * 100
            jobs.ack(db, claim)
        assert fdbqueue.admin.check(db, jobs).ok
        stats = jobs.stats(db)
        assert (stats.total_pushed, stats.total_completed, stats.total_failed) == (1_000, 1_000, 0)

    def test_restarts_neither_lose_nor_double_a_tick(
        self, db: Any, name: str, server: Server, rng: random.Random
    ) -> None:
        """Five restarts each leave a commit of a sweep without an answer."""
        queue = PriorityQueue.named(db, name)
        queue.schedules.add(db, "each minute", "tick", every=INTERVAL, missed="all")
        simulation = Simulation(db, queue, rng)
        simulation.deadly = frozenset({1007, 1009, 1021, 1037, 1039, 1213})

        def restart() -> None:
            simulation.while_committing = bool
            server.kill()
            server.start()

        for number in range(5):
            simulation.run(number * TICKS // 5, 10 * INTERVAL)
            while simulation.deaths <= number:
                simulation.while_committing = restart
                simulation.step(10 * INTERVAL)
        simulation.run(TICKS, 10 * INTERVAL)
        simulation.finish()
        simulation.assert_each_tick_once(TICKS)
