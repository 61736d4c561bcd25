"""Claims under a lease: ownership, expiry by versions and by the clock, retries, dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from fdbqueue.database import clock as machine
from fdbqueue.errors import ForeignClaim, LeaseLost
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.keys import layout_of
from tests.support.leases import come_due, lapse, lease_ends, read_version, shift_leases, values

# Claim and acknowledge


def test_a_claimed_item_is_hidden_from_other_clients(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, ["a", "b"])
    claim = queue.claim(db, lease=60)
    assert (claim.item.value, claim.attempt, len(claim)) == ("a", 1, 1)
    assert (queue.size(db), queue.peek(db).value) == (1, "b")
    assert queue.pop(db).value == "b"
    assert queue.claim(db) is None
    assert check(db, queue).ok
    queue.ack(db, claim)
    assert check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 0, 0, (), False)
    for method in (queue.ack, queue.nack, queue.extend, queue.release):
        for at in (db, db.create_transaction()):
            with pytest.raises(LeaseLost) as error:
                method(at, claim)
            assert error.value.item_id == claim.item.id


def test_only_a_claim_of_the_queue_can_be_ended(
    db: Any, queue: PriorityQueue, space: Subspace
) -> None:
    other = PriorityQueue(space["other"])
    queue.push(db, "a")
    claim = queue.claim(db)
    for method in (other.ack, other.nack, other.extend, other.release):
        with pytest.raises(ForeignClaim, match="pass a claim to the queue that returned it"):
            method(db, claim)
    methods: tuple[Any, ...] = (queue.ack, queue.nack, queue.extend, queue.release)
    for method in methods:
        with pytest.raises(TypeError, match="`claim` returns None for no item"):
            method(db, queue.claim(db))
    queue.ack(db, claim)


def test_a_length_of_time_may_be_a_timedelta_or_a_text(db: Any, queue: PriorityQueue) -> None:
    for hour in (timedelta(hours=1), "1h", "60m", 3600, "0h3600s"):
        before = datetime.now(UTC)
        info = queue.get(db, queue.push(db, "delayed", delay=hour))
        assert info.due_at is not None
        assert timedelta(minutes=59) < info.due_at - before < timedelta(minutes=61)
    queue.push(db, "a")
    claim = queue.claim(db, lease=timedelta(hours=1), wait="1s")
    queue.extend(db, claim, lease="2h")
    assert not queue.wait(db, timedelta(milliseconds=1))


def test_a_claim_of_several_items_ends_as_a_whole_or_item_by_item(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push_many(db, "abcde", priorities=[5, 4, 3, 2, 1])
    claim = queue.claim(db, n=4)
    assert values(claim.items) == ["e", "d", "c", "b"]
    first, second, *others = list(claim)
    queue.ack(db, first)
    queue.nack(db, second, delay=0)
    for each in others:
        queue.release(db, each)
    assert values(queue.items(db)) == ["d", "c", "b", "a"]
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    assert queue.claim(db, n=10).attempts == (2, 1, 1, 1)


# Expiry of leases


def test_an_item_with_an_expired_lease_returns_to_its_position(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    queue.push_many(db, "abcd", priorities=[1, 1, 2, 2])
    claims = [queue.claim(db, lease=60) for _ in range(3)]
    queue.push(db, "e", 1)
    lapse(db, queue)
    clock.advance(1)
    assert values(queue.pop_many(db, 9)) == ["a", "b", "e", "c", "d"]
    for claim in claims:
        with pytest.raises(LeaseLost):
            queue.ack(db, claim)


# Failures


def test_the_retry_delay_of_an_item_grows_with_each_failure(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "a")
    for attempt in range(1, 16):
        claim = queue.claim(db)
        assert claim.attempt == attempt
        began = datetime.now(UTC)
        queue.nack(db, claim, error="busy")
        ended = datetime.now(UTC)
        info: Any = next(queue.items(db.create_transaction(), state="delayed"))
        longest = timedelta(seconds=min(3_600, 2 ** (attempt - 1)))
        rounding = timedelta(milliseconds=2)
        assert began + longest / 2 - rounding <= info.due_at <= ended + longest + rounding
        assert check(db, queue).ok
        come_due(db, queue)


# Delays


def test_an_item_that_fails_too_often_becomes_a_dead_letter(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space["dead"], max_attempts=3)
    item = queue.push(db, "a", 7)
    ends: dict[str, Callable[[Any], object]] = {
        "busy": lambda claim: queue.nack(db, claim, delay=0, error="busy"),
        "its lease ran out": lambda claim: lapse(db, queue),
    }
    for error, end in ends.items():
        for attempt in range(1, 4):
            claim = queue.claim(db)
            assert claim.attempt == attempt
            end(claim)
        assert queue.claim(db) is None
        (letter,) = queue.items(db, state="dead")
        assert (letter.item, letter.id, letter.attempts, letter.error) == (item, item.id, 3, error)
        assert letter.died_at is not None
        assert abs(datetime.now(UTC) - letter.died_at) < timedelta(minutes=1)
        assert check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 1, 0, (), False)
        assert queue.retry(db, item)
        assert not queue.retry(db, item)


# Concurrency


# The end of a lease, by the versions of the database and by the clock


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
