"""A lease ends only when it is over by the versions of the database and by the clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from fdbqueue.database import clock as machine
from fdbqueue.errors import LeaseLost
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.keys import layout_of
from tests.support.leases import lease_ends, read_version, shift_leases, values

RECOVERY = 100 * VERSIONS  # what a recovery adds to the versions of a cluster
OTHER_CLUSTER = 10**7 * VERSIONS  # how far the versions of two clusters may differ


def other(queue: PriorityQueue) -> PriorityQueue:
    """Return the queue as another process opens it."""
    return PriorityQueue(queue.subspace)


def test_a_recovery_ends_no_lease(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, range(120))
    claims = [queue.claim(db, n=40, lease=30) for _ in range(3)]
    for _ in range(3):
        shift_leases(db, queue, -RECOVERY)
        assert max(lease_ends(db, queue)) < read_version(db)
        while other(queue).claim(db) is None and min(lease_ends(db, queue)) < read_version(db):
            pass  # each claim sweeps some of the leases
        assert max(lease_ends(db, queue)) <= read_version(db) + 31 * VERSIONS
    assert check(db, queue).ok
    queue.nack(db, claims[0], delay=0)
    for claim in claims[1:]:
        queue.extend(db, claim, 30)
        queue.ack(db, claim)
    assert {claim.attempt for claim in queue.claim(db, n=120)} == {2}  # only those of the nack
    assert list(queue.items(db, state="dead")) == []


def test_the_items_of_a_dead_client_return_after_a_recovery(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "job")
    dead = queue.claim(db, lease=1.0)
    shift_leases(db, queue, -RECOVERY)
    assert other(queue).claim(db) is None
    claim = other(queue).claim(db, wait=60)
    assert (values(claim.items), claim.attempt) == (["job"], 2)
    with pytest.raises(LeaseLost):
        queue.ack(db, dead)


def is_ahead(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clock of this machine, but not the versions, be ahead of the true time."""
    monkeypatch.setattr(machine, "nanoseconds", lambda: time.time_ns() + int(seconds * 10**9))


@pytest.mark.parametrize("ahead", [60, -60])
def test_a_wrong_clock_ends_no_lease(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    queue.push(db, "job")
    claim = queue.claim(db, lease=30)
    is_ahead(monkeypatch, ahead)
    assert other(queue).claim(db) is None
    queue.extend(db, claim, 30)
    is_ahead(monkeypatch, 0)
    assert other(queue).claim(db) is None
    queue.ack(db, claim)


@pytest.mark.parametrize("is_alive", [True, False])
def test_leases_of_another_cluster_go_by_the_clock(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    """A restored queue may hold leases that end at versions which are years away."""
    queue.push(db, "job")
    claim = queue.claim(db, lease=30)
    shift_leases(db, queue, OTHER_CLUSTER)
    if is_alive:
        assert other(queue).claim(db) is None
        assert lease_ends(db, queue)[0] <= read_version(db) + 31 * VERSIONS
        queue.ack(db, claim)
    else:
        is_ahead(monkeypatch, 31)
        assert other(queue).claim(db).attempt == 2


@pytest.mark.parametrize("call", ["claim", "extend"])
def test_the_time_of_a_call_counts_as_time_of_its_lease(
    db: Any, queue: PriorityQueue, call: str, clock: Clock
) -> None:
    queue.push(db, "a")
    held = (queue.claim(db, lease=2),) if call == "extend" else ()
    versions: list[int] = []

    class Stopping(FaultyDatabase):
        """A database whose client is stopped for a second after each commit."""

        def commit(self, transaction: Any) -> None:
            super().commit(transaction)
            versions.append(read_version(db))
            clock.advance(1)

    getattr(queue, call)(Stopping(db), *held, lease=2)
    (end,) = lease_ends(db, queue)
    assert end <= versions[0] + 2 * VERSIONS


@pytest.mark.parametrize("over", [True, False])
def test_a_timer_that_a_repair_wrote_goes_by_its_version(
    db: Any, queue: PriorityQueue, over: bool
) -> None:
    """It has no end by the clock."""
    queue.push(db, "job")
    queue.claim(db, lease=30)
    layout = layout_of(queue)
    (timer,) = [row.key for row in db[slice(*layout.range_of(layout.leases))]]
    del db[timer]
    assert not check(db, queue, repair=True).ok
    assert db[timer] == b""
    assert check(db, queue).ok
    if over:
        shift_leases(db, queue, -RECOVERY)
    claim = other(queue).claim(db)
    assert (claim is not None) == over
