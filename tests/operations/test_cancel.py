"""A cancelled item ends: at once if it waits, and with its claim if a client has it."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.errors import LeaseLost
from tests.support.kinds import KINDS, push
from tests.support.leases import lapse
from tests.support.scan import assert_views_agree


@pytest.mark.parametrize(
    ("kind", "end", "keep"),
    [
        *((kind, end, 100) for kind in KINDS for end in ("ack", "lease")),
        *((PriorityQueue, end, None) for end in ("nack", "release", "dead", "last lease")),
    ],
)
def test_a_claimed_item_ends_with_its_claim(
    db: Any, name: str, kind: Any, end: str, keep: int | None
) -> None:
    queue = kind.named(db, name, keep=keep, max_attempts=1 if end == "last lease" else None)
    item = push(db, queue, "job")
    claim = queue.claim(db, client="a worker")
    before = queue.get(db, item)
    assert queue.cancel(db, item)
    assert queue.get(db, item).cancelling
    assert queue.state(db, item) == "claimed"
    assert_views_agree(db, queue)
    if end == "dead":
        queue.nack(db, claim, dead=True)
    elif "lease" in end:
        queue.extend(db, claim)
        lapse(db, queue)
        assert queue.get(db.create_transaction(), item).cancelling  # until a client sweeps
    else:
        getattr(queue, end)(db, claim)
    stats = assert_views_agree(db, queue)
    assert (stats.total_completed, stats.total_failed) == (1, 0)
    assert (stats.is_empty, stats.dead) == (True, 0)
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)
    info = queue.get(db, item)
    if keep is None:
        assert info is None
        return
    assert (info.state, info.outcome, info.attempts) == ("done", "cancelled", 1)
    assert (info.claimed_by, info.claimed_at) == ("a worker", before.claimed_at)
    assert not queue.cancel(db, item)


def test_a_discarded_item_says_why(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, keep=100)
    item = queue.push(db, "job")
    queue.ack(db, queue.claim(db), discarded="the customer has left")
    info = queue.get(db, item)
    assert (info.state, info.outcome, info.error) == ("done", "discarded", "the customer has left")
    assert info.finished_at is not None


def test_only_the_cancelled_items_of_a_claim_end(db: Any, queue: Any) -> None:
    first, second = queue.push(db, "a"), queue.push(db, "b")
    claim = queue.claim(db, n=2)
    queue.cancel(db, first)
    queue.nack(db, claim, delay=0)
    assert queue.state(db, first) is None
    assert queue.state(db, second) == "ready"
    assert_views_agree(db, queue)
