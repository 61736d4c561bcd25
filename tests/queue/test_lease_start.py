"""A lease counts from before the call that starts it, however long the call was delayed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fdbqueue import Claim, PriorityQueue
from fdbqueue.admin import check
from fdbqueue.errors import LeaseLost
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock, FaultyDatabase, FaultyTransaction
from tests.support.counting import CountingDatabase
from tests.support.leases import lapse, lease_ends, read_version, values

LEASE = 2.0  # seconds

CALLS: dict[str, Callable[[PriorityQueue, Any, Claim | None], Any]] = {
    "claim": lambda queue, db, _: queue.claim(db, lease=LEASE),
    "extend": lambda queue, db, claim: queue.extend(db, claim, LEASE),
    "extend_each": lambda queue, db, claim: store_of(queue).extend_each(db, [(claim, None)], LEASE),
}


class StoppingDatabase(FaultyDatabase):
    """A database whose first transaction stops after its commit, as in a stopped process."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.is_stopped, self.may_resume = threading.Event(), threading.Event()

    def commit(self, transaction: FaultyTransaction) -> None:
        super().commit(transaction)
        if not self.is_stopped.is_set():
            self.is_stopped.set()
            assert self.may_resume.wait(60)


def stopped(db: Any, call: Callable[[Any], Any]) -> tuple[StoppingDatabase, Future[Any]]:
    """Begin a call whose process is stopped after its commit."""
    stopping = StoppingDatabase(db)
    outcome = ThreadPoolExecutor(1).submit(call, stopping)
    assert stopping.is_stopped.wait(60)
    return stopping, outcome


@pytest.mark.parametrize("call", CALLS)
def test_the_time_of_a_call_counts_as_time_of_its_lease(
    db: Any, queue: PriorityQueue, call: str, clock: Clock
) -> None:
    queue.push(db, "a")
    held = queue.claim(db, lease=LEASE) if call.startswith("extend") else None
    stopping, outcome = stopped(db, lambda db: CALLS[call](queue, db, held))
    version = read_version(db)
    clock.advance(LEASE / 2)
    stopping.may_resume.set()
    outcome.result(60)
    (end,) = lease_ends(db, queue)
    assert end <= version + LEASE * VERSIONS
    assert check(db, queue).ok


@pytest.mark.parametrize("call", ["claim", "extend"])
def test_a_claim_that_was_over_before_its_call_returned_has_no_effect(
    db: Any, queue: PriorityQueue, call: str, clock: Clock
) -> None:
    queue.push_many(db, "ab")
    held = queue.claim(db, lease=LEASE) if call == "extend" else None
    stopping, outcome = stopped(db, lambda db: CALLS[call](queue, db, held))
    lapse(db, queue)
    other = PriorityQueue(queue.subspace).claim(db, lease=60)
    stopping.may_resume.set()
    claim = outcome.result(60) or held
    assert claim.item.value == other.item.value == "a"
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    queue.ack(db, other)
    assert values(queue.items(db)) == ["b"]
    assert check(db, queue).ok


def test_a_claim_and_an_extension_need_one_transaction_each(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "a")
    counting = CountingDatabase(db)
    queue.extend(counting, queue.claim(counting, lease=1e-6), LEASE)
    assert counting.transactions == 2
