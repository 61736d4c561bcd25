"""16 threads in 4 processes pop each item of one queue exactly once, despite faults."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.pops import REQUEST_TIMEOUT
from fdbqueue.operations.timers import VERSIONS
from tests.support.cluster import Cluster, Server, find_programs
from tests.support.leases import let_versions_pass, read_version
from tests.support.many_processes import (
    PROCESSES,
    Outcome,
    TroubledDatabase,
    Work,
    buggified,
    injected,
)

ITEMS = int(os.environ.get("FDBQ_ITEMS", "4000"))  # run more by hand

INJECTED = (1007, 1020, 1021, 1031, 1039)
BUGGIFIED = (1007, 1009, 1020, 1021, 1031, 1042, 1078)

Open = Callable[[str, int], TroubledDatabase]


def run(
    opened: Open, db: Any, url: str, queue: PriorityQueue, rng: random.Random, trouble: Any = bool
) -> Outcome:
    """Move each item through the queue exactly once; its counts match a scan throughout."""
    counted: list[int] = []

    def check() -> None:
        report = fdbqueue.admin.check(db, queue)
        assert report.ok, report.problems
        counted.append(report.ready)

    def meanwhile() -> None:
        trouble()
        check()

    outcome = Work(opened, url, queue.subspace.key(), ITEMS).run(rng, meanwhile)
    assert max(counted) > 0
    if outcome.lost:
        # A pop failed and then also failed to return the items served to it.
        let_versions_pass(db, REQUEST_TIMEOUT + 1)
        outcome.popped.update(item.value for item in PriorityQueue(queue.subspace).pop_many(db, 50))
    check()
    assert counted[-1] == 0
    assert outcome.processes == PROCESSES
    assert outcome.pushed.total() == ITEMS
    assert (outcome.lost, outcome.doubled) == (Counter(), Counter())
    return outcome


def test_each_item_is_popped_exactly_once_under_injected_faults(
    db: Any, shared_url: str, queue: PriorityQueue, rng: random.Random
) -> None:
    outcome = run(injected, db, shared_url, queue, rng)
    assert min(outcome.errors[code] for code in INJECTED) > ITEMS / 400


def test_each_item_is_popped_exactly_once_under_client_buggification(
    cluster: Cluster, db: Any, shared_url: str, queue: PriorityQueue, rng: random.Random
) -> None:
    outcome = run(buggified, db, shared_url, queue, rng)
    assert min(outcome.errors[code] for code in BUGGIFIED) > ITEMS / 2_000


def untroubled(url: str, _: int) -> TroubledDatabase:
    """Open a database that fails by itself alone."""
    return TroubledDatabase(fdbqueue.open(url))


class TestKilledServer:
    """What an `fdbserver` on disk acknowledged survives its kill."""

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

    def test_each_item_is_popped_exactly_once(
        self, db: Any, url: str, queue: PriorityQueue, server: Server, rng: random.Random
    ) -> None:
        kills = 0

        def kill() -> None:
            nonlocal kills
            if kills < 4:
                kills += 1
                server.kill()
                time.sleep(rng.uniform(0, 0.5))
                server.start()

        run(untroubled, db, url, queue, rng, kill)
        assert kills > 1

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
