"""A cancelled job ends: at once if it waits, and with its claim if a client has it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.errors import LeaseLost
from fdbqueue.testing import Clock
from tests.support.kinds import KINDS, push
from tests.support.leases import lapse
from tests.support.scan import assert_views_agree


@pytest.mark.parametrize("keep", [None, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_item_ends_at_once(db: Any, name: str, kind: Any, keep: int | None) -> None:
    queue = kind.named(db, name, keep=keep)
    item = push(db, queue, "job")
    queue.nack(db, queue.claim(db), error="busy", delay=0)
    assert queue.cancel(db, item)
    assert not queue.cancel(db, item)
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.done, stats.total_removed) == (0, 1 if keep else 0, 1)
    info = queue.get(db, item)
    if keep is None:
        assert info is None
        return
    assert (info.state, info.outcome, info.attempts) == ("done", "cancelled", 1)
    assert (info.claimed_by, info.claimed_at, info.run_time) == ("", None, None)
    assert [attempt.error for attempt in info.failed_attempts] == ["busy"]
    assert queue.remove(db, item)
    assert assert_views_agree(db, queue).done == 0


@pytest.mark.parametrize("state", ["ready", "delayed"])
def test_a_cancelled_item_frees_what_it_held(db: Any, name: str, state: str) -> None:
    queue = PriorityQueue.named(db, name, keep=100, max_size=1)
    delay = 60 if state == "delayed" else None
    payload = "x" * 100_000  # in pieces
    item = queue.push(db, payload, unique="k", group="g", delay=delay, ttl=3600)
    assert queue.cancel(db, item)
    assert queue.get(db, item).item.value == payload
    other = queue.push(db, payload, unique="k", group="g")
    assert other.is_new
    assert queue.claim(db).item.id == other.id
    assert_views_agree(db, queue)


def test_cancelled_items_are_trimmed_with_other_done_items(
    db: Any, name: str, clock: Clock
) -> None:
    queue = PriorityQueue.named(db, name, keep=2)
    items = queue.push_many(db, range(5))
    assert sum(queue.change_all(db, "cancel", state="ready").values()) == 5
    clock.advance(60)
    assert queue.claim(db) is None
    kept = [info.id for info in queue.items(db, state="done")]
    assert len(kept) == 2
    assert {*kept} < {item.id for item in items}
    assert_views_agree(db, queue)


@pytest.mark.parametrize("keep", [None, 100])
@pytest.mark.parametrize("end", ["ack", "nack", "release", "dead"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_claimed_item_ends_with_its_claim(
    db: Any, name: str, kind: Any, end: str, keep: int | None
) -> None:
    queue = kind.named(db, name, keep=keep)
    item = push(db, queue, "job")
    claim = queue.claim(db, client="a worker")
    before = queue.get(db, item)
    assert queue.cancel(db, item)
    assert queue.get(db, item).cancelling
    assert queue.state(db, item) == "claimed"
    assert_views_agree(db, queue)
    if end == "dead":
        queue.nack(db, claim, dead=True)
    else:
        getattr(queue, end)(db, claim)
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.delayed, stats.claimed, stats.dead) == (0, 0, 0, 0)
    assert stats.total_completed == 1
    info = queue.get(db, item)
    if keep is None:
        assert info is None
        return
    assert (info.state, info.outcome, info.attempts) == ("done", "cancelled", 1)
    assert (info.claimed_by, info.claimed_at) == ("a worker", before.claimed_at)
    assert not queue.cancel(db, item)


@pytest.mark.parametrize("max_attempts", [None, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_it_does_not_return_if_its_worker_dies(
    db: Any, name: str, kind: Any, max_attempts: int | None
) -> None:
    queue = kind.named(db, name, keep=100, max_attempts=max_attempts)
    item = push(db, queue, "job")
    claim = queue.claim(db, client="a worker")
    queue.cancel(db, item)
    queue.extend(db, claim)
    lapse(db, queue)
    assert queue.get(db.create_transaction(), item).cancelling  # until a client sweeps
    stats = assert_views_agree(db, queue)
    assert (stats.total_completed, stats.total_failed, stats.is_empty) == (1, 0, True)
    info = queue.get(db, item)
    assert (info.outcome, info.attempts, info.claimed_by) == ("cancelled", 1, "a worker")
    with pytest.raises(LeaseLost):
        queue.ack(db, claim)


def test_only_the_cancelled_items_of_a_claim_end(db: Any, queue: Any) -> None:
    first, second = queue.push(db, "a"), queue.push(db, "b")
    claim = queue.claim(db, n=2)
    queue.cancel(db, first)
    queue.nack(db, claim, delay=0)
    assert queue.state(db, first) is None
    assert queue.state(db, second) == "ready"
    assert_views_agree(db, queue)


@pytest.mark.parametrize("kind", KINDS)
def test_a_discarded_item_says_why(db: Any, name: str, kind: Any) -> None:
    queue = kind.named(db, name, keep=100)
    item = push(db, queue, "job")
    before = time.time()
    queue.ack(db, queue.claim(db), discarded="the customer has left")
    info = queue.get(db, item)
    assert (info.state, info.outcome, info.error) == ("done", "discarded", "the customer has left")
    assert before - 1 < info.claimed_at.timestamp() <= info.finished_at.timestamp() + 0.001


def test_failed_attempts_know_when_they_started(db: Any, queue: Any) -> None:
    item = queue.push(db, "job")
    claim = queue.claim(db)
    started = queue.get(db, item).claimed_at
    queue.nack(db, claim, error="busy", delay=0)
    (attempt,) = queue.get(db, item).failed_attempts
    assert attempt.started_at == started <= attempt.ended_at
