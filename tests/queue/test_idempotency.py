"""A push with an idempotency key is stored once; the key expires after a day."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.errors import IdempotencyKeyReused
from fdbqueue.operations.timers import drop_ended
from fdbqueue.queue import repeatable
from fdbqueue.testing import FaultyDatabase
from tests.support.idempotency import push_once
from tests.support.keys import layout_of

HOUR = 3600.0


class Clock:
    """A clock set by the test that replaces the one of the client."""

    def __init__(self, now: float) -> None:
        self.now = now

    def milliseconds(self) -> int:
        return round(1000 * self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(time.time())
    monkeypatch.setattr(repeatable, "milliseconds", clock.milliseconds)
    return clock


def push(db: Any, queue: PriorityQueue, key: str, value: Any = 1) -> str:
    (item_id,) = push_once(db, queue, key, [value], [0])
    return item_id


def key_rows(db: Any, queue: PriorityQueue) -> int:
    """Count the stored rows of idempotency keys."""
    prefixes = (layout_of(queue).idempotency_keys, layout_of(queue).idempotency_ends)
    return sum(len(list(db.get_range_startswith(prefix))) for prefix in prefixes)


def test_an_expired_key_is_new_even_if_no_other_key_was_used(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    ids = [push(db, queue, "daily-report")]
    for days in (2, 30, 365):
        queue.pop(db)
        clock.now += days * 24 * HOUR
        ids.append(push(db, queue, "daily-report"))
        assert (queue.size(db), key_rows(db, queue)) == (1, 2)
    assert len(set(ids)) == 4
    assert push(db, queue, "daily-report") == ids[-1]
    assert fdbqueue.admin.check(db, queue).ok


def test_a_key_is_remembered_for_24_hours(db: Any, queue: PriorityQueue, clock: Clock) -> None:
    first = push(db, queue, "key")
    begun = clock.now
    clock.now = begun + 24 * HOUR - 1
    assert push(db, queue, "key") == first
    clock.now = begun + 24 * HOUR
    assert push(db, queue, "key") != first


def test_an_expired_key_accepts_other_values(db: Any, queue: PriorityQueue, clock: Clock) -> None:
    push(db, queue, "key", "a")
    with pytest.raises(IdempotencyKeyReused):
        push(db, queue, "key", "b")
    clock.now += 25 * HOUR
    push(db, queue, "key", "b")
    assert [item.value for item in queue.items(db)] == ["a", "b"]


def test_a_slow_clock_forgets_no_keys(db: Any, queue: PriorityQueue, clock: Clock) -> None:
    first = push(db, queue, "key")
    clock.now -= 48 * HOUR
    assert push(db, queue, "key") == first


def test_each_push_sweeps_a_bounded_number_of_old_keys(
    db: Any, queue: PriorityQueue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeatable, "_MAX_DROPPED", 3)
    for number in range(10):
        push(db, queue, f"{number}")
    clock.now += 25 * HOUR
    left = []
    for _ in range(6):  # the first push is new, the others repeat it
        push(db, queue, "9")
        left.append(key_rows(db, queue) // 2)
    assert left == [7, 4, 1, 1, 1, 1]
    assert queue.size(db) == 11


@pytest.mark.parametrize("lose", ["before", "after"])
def test_a_push_with_an_old_key_and_a_lost_reply_is_stored_once(
    db: Any, space: Subspace, clock: Clock, lose: str
) -> None:
    queue = PriorityQueue(space)
    faults: dict[str, Any] = {lose: 0.6}
    faulty = FaultyDatabase(db, seed=1, **faults)
    for day in range(5):
        clock.now += 30 * HOUR
        push(faulty, queue, "key", day)
    assert [item.value for item in queue.items(db)] == [0, 1, 2, 3, 4]
    assert key_rows(db, queue) == 2


def test_a_sweep_does_not_forget_a_key_reused_during_it(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    """Concurrent pushes that sweep do not conflict either."""
    push(db, queue, "key")
    push(db, queue, "other")
    clock.now += 48 * HOUR
    sweeps = [db.create_transaction() for _ in range(2)]
    for tr in sweeps:
        layout = layout_of(queue)
        index, keys = layout.idempotency_ends, layout.idempotency_keys
        drop_ended(tr, layout, clock.milliseconds(), index, keys, 100)
    second = push(db, queue, "key")
    for tr in sweeps:
        tr.commit().wait()
    assert push(db, queue, "key") == second
    assert key_rows(db, queue) == 2
