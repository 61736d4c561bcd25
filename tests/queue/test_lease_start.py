"""When a lease begins: not long before the call that begins it returns, whatever held that up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Claim, PriorityQueue, TaskQueue, check
from fdbqueue.database.retrying import run
from fdbqueue.errors import FDBError, LeaseLost
from fdbqueue.operations.schedule import VERSIONS
from fdbqueue.queue.base import store_of
from fdbqueue.testing import FaultyDatabase, FaultyTransaction
from tests.support.leases import lapse, values

LEASE = 2.0  # seconds
STOP = LEASE / 5

STOPS = ("before the commit", "after the commit", "before a lost answer")


class StoppingDatabase(FaultyDatabase):
    """A database whose first transaction stands still, as that of a process that is stopped."""

    def __init__(self, db: Any, where: str) -> None:
        super().__init__(db)
        self.stands, self.goes_on = threading.Event(), threading.Event()
        self.transactions = 0
        self.is_gone = False
        self._where = where

    def create_transaction(self) -> FaultyTransaction:
        transaction = super().create_transaction()
        self.transactions += 1
        if self.transactions == 1 and self._where == "before the commit":
            transaction.wrapped.get_read_version().wait()
            self._stand()
        return transaction

    def before_call(self, name: str) -> None:
        if self.is_gone and name.startswith("get"):
            raise FDBError(1031)

    def commit(self, transaction: FaultyTransaction) -> None:
        super().commit(transaction)
        if self.stands.is_set() or self._where not in STOPS[1:]:
            return
        self._stand()
        if self._where == "before a lost answer":
            raise FDBError(1021)

    def _stand(self) -> None:
        self.stands.set()
        assert self.goes_on.wait(60)


class StallingCluster(FaultyDatabase):
    """A cluster whose first transaction reads at the version of a moment ago."""

    def __init__(self, db: Any, space: Subspace) -> None:
        super().__init__(db)
        self._version: int | None = read_version(db)
        time.sleep(STOP)
        db[space["commit"].key()] = b""  # what a cluster reads goes on with its commits

    def create_transaction(self) -> FaultyTransaction:
        transaction = super().create_transaction()
        if self._version is not None:
            transaction.wrapped.set_read_version(self._version)
            self._version = None
        return transaction


def in_a_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
    return ThreadPoolExecutor(1).submit(call, *arguments, **options)


def read_version(db: Any) -> int:
    return run(db, lambda tr: int(tr.get_read_version().wait()))


def lease_ends(db: Any, queue: Any) -> list[int]:
    """When the leases end, in versions."""
    layout = store_of(queue).layout
    rows = db[slice(*layout.range_of(layout.leases))]
    return [layout.decode_timer(layout.leases, row.key)[0] for row in rows]


CALLS: dict[str, Callable[[Any, Any, Claim], Any]] = {
    "claim": lambda queue, db, _: queue.claim(db, lease=LEASE),
    "claim of several": lambda queue, db, _: queue.claim(db, lease=LEASE, n=2),
    "claim of an agent": lambda queue, db, _: queue.claim(db, lease=LEASE, agent="ada"),
    "extend": lambda queue, db, claim: queue.extend(db, claim, LEASE),
    "extend_each": lambda queue, db, claim: store_of(queue).extend_each(db, list(claim), LEASE),
}


@pytest.mark.parametrize("where", STOPS)
@pytest.mark.parametrize("call", CALLS)
def test_a_lease_lasts_though_the_process_was_stopped_in_the_call(
    db: Any, space: Subspace, call: str, where: str
) -> None:
    tasks = TaskQueue(space["tasks"])
    tasks.push_many(db, [{"agent_name": "ada"}] * 3)
    held = tasks.claim(db, lease=LEASE) if call.startswith("extend") else None
    stopping = StoppingDatabase(db, where)
    outcome = in_a_thread(CALLS[call], tasks, stopping, held)
    assert stopping.stands.wait(60)
    time.sleep(STOP)
    version = read_version(db)
    stopping.goes_on.set()
    outcome.result(60)
    ends = lease_ends(db, tasks)
    assert len(ends) == (2 if call == "claim of several" else 1)
    assert min(ends) >= version + LEASE * VERSIONS
    assert check(db, tasks).ok


@pytest.mark.parametrize("call", CALLS)
def test_a_lease_lasts_though_a_cluster_gave_an_old_version(
    db: Any, space: Subspace, call: str
) -> None:
    """The embedded engine gives none."""
    if getattr(db, "commits_are_certain", False):
        pytest.skip("the versions of this engine are its clock's")
    tasks = TaskQueue(space["tasks"])
    tasks.push_many(db, [{"agent_name": "ada"}] * 3)
    held = tasks.claim(db, lease=LEASE) if call.startswith("extend") else None
    stalling = StallingCluster(db, space)
    version = read_version(db)
    CALLS[call](tasks, stalling, held)
    assert min(lease_ends(db, tasks)) >= version + LEASE * VERSIONS
    assert check(db, tasks).ok


def test_who_joins_a_transaction_that_is_old_has_a_whole_lease(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push_many(db, "ab")
    stopping = StoppingDatabase(db, "before the commit")
    leader = in_a_thread(queue.claim, stopping, lease=LEASE)
    assert stopping.stands.wait(60)
    time.sleep(STOP)
    version = read_version(db)
    joiner = in_a_thread(queue.claim, stopping, lease=LEASE)
    while not store_of(queue).claims._lines[stopping].waiting:
        time.sleep(0.001)
    stopping.goes_on.set()
    claims = [leader.result(60), joiner.result(60)]
    assert [claim.item.value for claim in claims] == ["a", "b"]
    assert min(lease_ends(db, queue)) >= version + LEASE * VERSIONS


def test_what_others_took_meanwhile_is_not_handed_out(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, "abc")
    stopping = StoppingDatabase(db, "after the commit")
    stopped = in_a_thread(queue.claim, stopping, lease=LEASE)
    assert stopping.stands.wait(60)
    time.sleep(STOP)
    lapse(db, queue)
    other = PriorityQueue(queue.subspace).claim(db, lease=60)
    stopping.goes_on.set()
    claim = stopped.result(60)
    assert (other.item.value, claim.item.value) == ("a", "b")
    queue.ack(db, other)
    queue.ack(db, claim)
    assert values(queue.items(db)) == ["c"]
    assert check(db, queue).ok


def test_a_claim_is_none_if_others_took_all(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "a")
    stopping = StoppingDatabase(db, "after the commit")
    stopped = in_a_thread(queue.claim, stopping, lease=LEASE)
    assert stopping.stands.wait(60)
    time.sleep(STOP)
    lapse(db, queue)
    other = PriorityQueue(queue.subspace).claim(db, lease=60)
    stopping.goes_on.set()
    assert stopped.result(60) is None
    queue.ack(db, other)


def test_an_extension_of_what_others_took_meanwhile_says_so(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "a")
    claim = queue.claim(db, lease=LEASE)
    stopping = StoppingDatabase(db, "after the commit")
    stopped = in_a_thread(queue.extend, stopping, claim, LEASE)
    assert stopping.stands.wait(60)
    time.sleep(STOP)
    lapse(db, queue)
    other = PriorityQueue(queue.subspace).claim(db, lease=60)
    stopping.goes_on.set()
    with pytest.raises(LeaseLost):
        stopped.result(60)
    queue.ack(db, other)


def test_a_claim_whose_lease_cannot_begin_again_is_not_handed_out_and_comes_back(
    db: Any, queue: PriorityQueue, fdb_error: Callable[[int], Any]
) -> None:
    queue.push(db, "a")
    stopping = StoppingDatabase(db, "after the commit")
    stopped = in_a_thread(queue.claim, stopping, lease=LEASE)
    assert stopping.stands.wait(60)
    time.sleep(STOP)
    stopping.is_gone = True
    stopping.goes_on.set()
    with fdb_error(1031):
        stopped.result(60)
    assert queue.claim(db, wait=60).attempt == 2


def test_a_quick_call_is_one_transaction_and_a_lease_that_no_call_is_quick_for_takes_a_few(
    db: Any, queue: PriorityQueue
) -> None:
    queue.push_many(db, "ab")
    counting = StoppingDatabase(db, "nowhere")
    queue.extend(counting, queue.claim(counting, lease=10_000), 10_000)
    assert counting.transactions == 2
    queue.claim(counting, lease=1e-6)
    assert counting.transactions <= 2 + 3 * (1 + 3) + 3
