"""Clients killed with -9 while others work, and a server killed and started again under them.

Values go through a pipeline: some clients push them to the queue `jobs`; some work, which moves a
value to `done` in one transaction; some pop from `done`. Each tells what was acknowledged.
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
from tests.support.cluster import Server, find_programs

KINDS = ("push", "work", "pop")
BATCH = 3  # the most that a client pops at once
PROGRAM = """
import itertools, os, sys, fdbqueue
from fdbqueue.queue.base import store_of
url, name, kind, own, stop, batch = sys.argv[1:]
db = fdbqueue.open(url)
# Two that take from one queue conflict, and a cluster's client backs off for up to a second each
# time: nobody is to look locked who is only unlucky.
db.options.set_transaction_max_retry_delay(50)
jobs, done = (fdbqueue.PriorityQueue.named(db, name + part) for part in ("jobs", "done"))

@fdbqueue.transactional(receipts=store_of(done).layout.receipts)
def move(tr):
    return [done.push(tr, item.value, item.priority) for item in jobs.pop_many(tr, 1)]

act = {
    "push": lambda number: [jobs.push(db, f"{own}-{number}", number % 3)],
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
    """A process, and what it told."""

    def __init__(self, url: str, name: str, kind: str, own: str, directory: Path) -> None:
        self.kind, self.own = kind, own
        self._output = directory / own
        with self._output.open("wb") as output:
            arguments = [url, name, kind, own, str(directory / "stop"), str(BATCH)]
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments], stdout=output
            )

    def told(self) -> list[str]:
        """The values whose operation it knew to be committed."""
        return self._output.read_text().split("\n")[:-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def was_killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL


class Crowd:
    """Two clients of each kind; for each that is killed another one starts."""

    def __init__(self, url: str, name: str, rng: random.Random, directory: Path) -> None:
        self._where, self._directory, self._rng = (url, name), directory, rng
        self.clients: list[Client] = []
        for kind in KINDS * 2:
            self._start(kind)

    def _start(self, kind: str) -> None:
        own = f"{kind}{len(self.clients)}"
        self.clients.append(Client(*self._where, kind, own, self._directory))

    def _living(self) -> list[Client]:
        living = [client for client in self.clients if client.process.poll() is None]
        assert len(living) == 2 * len(KINDS), "a client ended by itself"
        return living

    def kill_one(self, kinds: tuple[str, ...]) -> None:
        victim = self._rng.choice([client for client in self._living() if client.kind in kinds])
        victim.kill()
        self._start(victim.kind)

    def goes_on(self) -> None:
        """Everybody gets something done, the newest client too."""
        deadline = time.monotonic() + 60
        for client in self._living():
            before = len(client.told())
            while len(client.told()) == before:
                assert time.monotonic() < deadline, f"{client.own} does nothing any more"
                time.sleep(0.02)

    def stop(self) -> None:
        """Let everybody who lives come to the end of what is under way."""
        living = self._living()
        (self._directory / "stop").touch()
        assert [client.process.wait(60) for client in living] == [0] * len(living)

    def told(self, kind: str) -> list[str]:
        """The values that all clients of a kind told, also those that were killed."""
        return [value for client in self.clients if client.kind == kind for value in client.told()]


@pytest.fixture
def crowd(
    db: Any, shared_url: str, name: str, rng: random.Random, tmp_path: Path
) -> Iterator[Crowd]:
    """Clients at work; they end before the database is emptied."""
    directory = tmp_path / "crowd"
    directory.mkdir()
    crowd = Crowd(shared_url, name, rng, directory)
    yield crowd
    for client in crowd.clients:
        client.kill()


def assert_all_is_there_once(db: Any, name: str, crowd: Crowd) -> None:
    """What was acknowledged is where it belongs, and a client that was killed leaves one doubt.

    One that pushed may have committed a value that it did not tell; one that popped, a batch.
    """
    jobs, done = (PriorityQueue.named(db, name + part) for part in ("jobs", "done"))
    assert fdbqueue.check(db, jobs).ok
    assert fdbqueue.check(db, done).ok
    to_do = [item.value for item in jobs.items(db)]
    found = Counter(to_do + [item.value for item in done.items(db)] + crowd.told("pop"))
    assert [value for value, times in found.items() if times > 1] == []

    pushed = set(crowd.told("push"))
    killed = [client for client in crowd.clients if client.was_killed]
    under_way = {f"{each.own}-{len(each.told())}" for each in killed if each.kind == "push"}
    assert found.keys() - pushed <= under_way
    lost = pushed - found.keys()
    assert len(lost) <= BATCH * sum(each.kind == "pop" for each in killed), sorted(lost)
    assert not set(to_do).intersection(crowd.told("work"))


@pytest.mark.parametrize("victims", [("push", "work"), ("pop",)], ids="-".join)
def test_killed_clients_lose_nothing_and_lock_nothing(
    db: Any, name: str, crowd: Crowd, rng: random.Random, victims: tuple[str, ...]
) -> None:
    crowd.goes_on()
    for _ in range(10):
        time.sleep(rng.uniform(0, 0.8))
        crowd.kill_one(victims)
    crowd.goes_on()
    crowd.stop()
    assert_all_is_there_once(db, name, crowd)


class TestOnAServerOfItsOwn:
    """An `fdbserver` on disk: what it acknowledged outlives it."""

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

    def test_clients_outlive_a_killed_server_and_each_other(
        self, db: Any, name: str, crowd: Crowd, server: Server, rng: random.Random
    ) -> None:
        crowd.goes_on()
        for _ in range(4):
            time.sleep(rng.uniform(0, 1))
            server.kill()
            try:
                crowd.kill_one(("push", "work"))
                time.sleep(rng.uniform(0, 0.5))
            finally:
                server.start()  # also after a failure: the fixtures tidy up on it
            crowd.goes_on()
            crowd.kill_one(("push", "work"))
        crowd.goes_on()
        crowd.stop()
        assert_all_is_there_once(db, name, crowd)
