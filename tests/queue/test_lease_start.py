"""A lease begins shortly before the call returns, however long the call was delayed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from weakref import ref

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Claim, PriorityQueue, TaskQueue
from fdbqueue.admin import check
from fdbqueue.errors import FDBError, LeaseLost
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock, FaultyDatabase, FaultyTransaction
from tests.support.leases import lapse, lease_ends, let_versions_pass, read_version, values
from tests.support.waiting import wait_until

LEASE = 2.0  # seconds
STOP = LEASE / 5

STOPS = ("before the commit", "after the commit", "before a lost answer")


class StoppingDatabase(FaultyDatabase):
    """A database whose first transaction stops, as in a stopped process."""

    def __init__(self, db: Any, where: str) -> None:
        super().__init__(db)
        self.is_stopped, self.may_resume = threading.Event(), threading.Event()
        self.transactions = 0
        self.is_gone = False
        self._where = where

    def create_transaction(self) -> FaultyTransaction:
        transaction = super().create_transaction()
        self.transactions += 1
        if self.transactions == 1 and self._where == "before the commit":
            transaction.wrapped.get_read_version().wait()
            self._stop()
        return transaction

    def before_call(self, name: str) -> None:
        if self.is_gone and name.startswith("get"):
            raise FDBError(1031)

    def commit(self, transaction: FaultyTransaction) -> None:
        super().commit(transaction)
        if self.is_stopped.is_set() or self._where not in STOPS[1:]:
            return
        self._stop()
        if self._where == "before a lost answer":
            raise FDBError(1021)

    def _stop(self) -> None:
        self.is_stopped.set()
        assert self.may_resume.wait(60)


class StallingCluster(FaultyDatabase):
    """A cluster whose first transaction reads at an old version."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self._version: int | None = read_version(db)
        let_versions_pass(db, STOP)

    def create_transaction(self) -> FaultyTransaction:
        transaction = super().create_transaction()
        if self._version is not None:
            transaction.wrapped.set_read_version(self._version)
            self._version = None
        return transaction


def in_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
    return ThreadPoolExecutor(1).submit(call, *arguments, **options)


def stopped(
    db: Any, where: str, clock: Clock, call: Callable[..., Any], *arguments: Any, **options: Any
) -> tuple[StoppingDatabase, Future[Any]]:
    """Begin a call whose process is stopped for a while."""
    stopping = StoppingDatabase(db, where)
    outcome = in_thread(call, stopping, *arguments, **options)
    assert stopping.is_stopped.wait(60)
    clock.advance(STOP)
    return stopping, outcome


CALLS: dict[str, Callable[[Any, Any, Claim], Any]] = {
    "claim": lambda queue, db, _: queue.claim(db, lease=LEASE),
    "claim of several": lambda queue, db, _: queue.claim(db, lease=LEASE, n=2),
    "claim of an agent": lambda queue, db, _: queue.claim(db, lease=LEASE, agent="ada"),
    "extend": lambda queue, db, claim: queue.extend(db, claim, LEASE),
    "extend_each": lambda queue, db, claim: store_of(queue).extend_each(
        db, [(each, None) for each in claim], LEASE
    ),
}


@pytest.mark.parametrize("where", STOPS)
@pytest.mark.parametrize("call", CALLS)
def test_a_lease_is_complete_when_the_process_was_stopped_during_the_call(
    db: Any, space: Subspace, call: str, where: str, clock: Clock
) -> None:
    tasks = TaskQueue(space["tasks"])
    tasks.push_many(db, [{"agent_name": "ada"}] * 3)
    held = tasks.claim(db, lease=LEASE) if call.startswith("extend") else None
    stopping, outcome = stopped(db, where, clock, partial(CALLS[call], tasks), held)
    let_versions_pass(db, 0)
    version = read_version(db)
    stopping.may_resume.set()
    outcome.result(60)
    ends = lease_ends(db, tasks)
    assert len(ends) == (2 if call == "claim of several" else 1)
    assert min(ends) >= version + LEASE * VERSIONS
    assert check(db, tasks).ok


@pytest.mark.parametrize("call", CALLS)
def test_a_lease_is_complete_when_the_cluster_returned_an_old_version(
    db: Any, space: Subspace, call: str
) -> None:
    """The embedded engine never returns an old version."""
    if getattr(db, "commits_are_certain", False):
        pytest.skip("the versions of this engine are its clock's")
    tasks = TaskQueue(space["tasks"])
    tasks.push_many(db, [{"agent_name": "ada"}] * 3)
    held = tasks.claim(db, lease=LEASE) if call.startswith("extend") else None
    stalling = StallingCluster(db)
    version = read_version(db)
    CALLS[call](tasks, stalling, held)
    assert min(lease_ends(db, tasks)) >= version + LEASE * VERSIONS
    assert check(db, tasks).ok


def test_a_claim_that_joins_an_old_transaction_gets_a_complete_lease(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    queue.push_many(db, "ab")
    stopping, leader = stopped(db, "before the commit", clock, queue.claim, lease=LEASE)
    let_versions_pass(db, 0)
    version = read_version(db)
    joiner = in_thread(queue.claim, stopping, lease=LEASE)
    wait_until(lambda: store_of(queue).claims._lines[ref(stopping)].waiting)
    stopping.may_resume.set()
    claims = [leader.result(60), joiner.result(60)]
    assert [claim.item.value for claim in claims] == ["a", "b"]
    assert min(lease_ends(db, queue)) >= version + LEASE * VERSIONS


def test_a_claim_skips_an_item_that_another_client_claimed_meanwhile(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    queue.push_many(db, "abc")
    stopping, stopped_call = stopped(db, "after the commit", clock, queue.claim, lease=LEASE)
    lapse(db, queue)
    other = PriorityQueue(queue.subspace).claim(db, lease=60)
    stopping.may_resume.set()
    claim = stopped_call.result(60)
    assert (other.item.value, claim.item.value) == ("a", "b")
    queue.ack(db, other)
    queue.ack(db, claim)
    assert values(queue.items(db)) == ["c"]
    assert check(db, queue).ok


def test_a_claim_returns_none_if_another_client_claimed_every_item_meanwhile(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    queue.push(db, "a")
    stopping, stopped_call = stopped(db, "after the commit", clock, queue.claim, lease=LEASE)
    lapse(db, queue)
    other = PriorityQueue(queue.subspace).claim(db, lease=60)
    stopping.may_resume.set()
    assert stopped_call.result(60) is None
    queue.ack(db, other)


def test_extending_a_claim_that_another_client_took_over_raises_lease_lost(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    queue.push(db, "a")
    claim = queue.claim(db, lease=LEASE)
    stopping, stopped_call = stopped(db, "after the commit", clock, queue.extend, claim, LEASE)
    lapse(db, queue)
    other = PriorityQueue(queue.subspace).claim(db, lease=60)
    stopping.may_resume.set()
    with pytest.raises(LeaseLost):
        stopped_call.result(60)
    queue.ack(db, other)


def test_a_claim_whose_lease_cannot_be_renewed_fails_and_its_item_returns(
    db: Any, queue: PriorityQueue, fdb_error: Callable[[int], Any], clock: Clock
) -> None:
    queue.push(db, "a")
    stopping, stopped_call = stopped(db, "after the commit", clock, queue.claim, lease=LEASE)
    stopping.is_gone = True
    stopping.may_resume.set()
    with fdb_error(1031):
        stopped_call.result(60)
    assert queue.claim(db, wait=60).attempt == 2


def test_a_fast_call_needs_one_transaction_and_a_tiny_lease_a_bounded_number(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push_many(db, "ab")
    counting = StoppingDatabase(db, "nowhere")
    queue.extend(counting, queue.claim(counting, lease=10_000), 10_000)
    assert counting.transactions == 2
    queue.claim(counting, lease=1e-6)
    assert counting.transactions <= 2 + 3 * (1 + 3) + 3
