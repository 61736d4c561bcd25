"""A lease counts from before the call that starts it, however long the call was delayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Claim, PriorityQueue
from fdbqueue.admin import check
from fdbqueue.errors import LeaseLost
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock, FaultyDatabase, FaultyTransaction
from tests.support.leases import lapse, lease_ends, read_version, values

LEASE = 2.0  # seconds

CALLS: dict[str, Callable[[PriorityQueue, Any, Claim | None], Any]] = {
    "claim": lambda queue, db, _: queue.claim(db, lease=LEASE),
    "extend": lambda queue, db, claim: queue.extend(db, claim, LEASE),
    "extend_each": lambda queue, db, claim: store_of(queue).extend_each(db, [(claim, None)], LEASE),
}


class StoppingDatabase(FaultyDatabase):
    """A database whose client is stopped after its first commit, while something happens."""

    def __init__(self, db: Any, meanwhile: Callable[[], object]) -> None:
        super().__init__(db)
        self._meanwhile = iter([meanwhile])

    def commit(self, transaction: FaultyTransaction) -> None:
        super().commit(transaction)
        for happens in self._meanwhile:
            happens()


@pytest.mark.parametrize("call", CALLS)
def test_the_time_of_a_call_counts_as_time_of_its_lease(
    db: Any, queue: PriorityQueue, call: str, clock: Clock
) -> None:
    queue.push(db, "a")
    held = queue.claim(db, lease=LEASE) if call.startswith("extend") else None
    versions: list[int] = []

    def wait() -> None:
        versions.append(read_version(db))
        clock.advance(LEASE / 2)

    CALLS[call](queue, StoppingDatabase(db, wait), held)
    (end,) = lease_ends(db, queue)
    assert end <= versions[0] + LEASE * VERSIONS
    assert check(db, queue).ok


@pytest.mark.parametrize("call", ["claim", "extend"])
def test_a_claim_that_was_over_before_its_call_returned_has_no_effect(
    db: Any, queue: PriorityQueue, call: str
) -> None:
    queue.push_many(db, "ab")
    held = queue.claim(db, lease=LEASE) if call == "extend" else None
    others: list[Any] = []

    def be_late() -> None:
        lapse(db, queue)
        others.append(PriorityQueue(queue.subspace).claim(db, lease=60))

    claim = CALLS[call](queue, StoppingDatabase(db, be_late), held) or held
    assert claim.item.value == others[0].item.value == "a"
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    queue.ack(db, others[0])
    assert values(queue.items(db)) == ["b"]
    assert check(db, queue).ok
