"""Much that is due at once: each call does a bounded part of it, and takes what is there."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination import sweeper
from fdbqueue.queue.base import store_of

ITEMS = 2_000
BATCH = 256
"""Items of each kind that one transaction moves."""


def backlog(db: Any, space: Subspace, n: int = ITEMS, **options: Any) -> PriorityQueue:
    """Make a queue of items that are due, the last of them of the lowest priority."""
    queue = PriorityQueue(space, **options)
    now = datetime.now(timezone.utc)
    for begin in range(0, n, 500):
        numbers = range(begin, min(n, begin + 500))
        queue.push_many(db, numbers, priorities=[-number for number in numbers], at=now)
    return PriorityQueue(space)


def rows(db: Any, prefix: bytes) -> int:
    return len(list(db.get_range_startswith(prefix)))


def commits(db: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note each transaction of a database from now on."""
    created: list[int] = []
    create = type(db).create_transaction

    def created_one(self: Any) -> Any:
        created.append(1)
        return create(self)

    monkeypatch.setattr(type(db), "create_transaction", created_one)
    return created


@pytest.mark.parametrize("take", ["pop", "claim", "peek"])
def test_a_call_moves_a_bounded_part_of_what_is_due(
    db: Any, space: Subspace, take: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_SWEEP", 60.0)  # without more to do it would wait for so long
    queue = backlog(db, space)
    assert getattr(queue, take)(db) is not None
    left = rows(db, store_of(queue).layout.delayed)
    assert ITEMS - 2 * BATCH <= left < ITEMS
    assert getattr(queue, take)(db) is not None
    assert left - 2 * BATCH <= rows(db, store_of(queue).layout.delayed) < left


def test_a_call_takes_a_bounded_number_of_transactions(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = backlog(db, space)
    created = commits(db, monkeypatch)
    for _ in range(3):
        created.clear()
        assert queue.pop(db) is not None
        assert len(created) < 10


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_all_that_is_due_is_taken_once_and_in_order_when_it_has_come(
    db: Any, space: Subspace, take: str
) -> None:
    queue = backlog(db, space, 4 * BATCH)
    taken = []
    while item := queue.pop(db) if take == "pop" else queue.claim(db, lease=600, within=1):
        taken.append(item.value if take == "pop" else item.item.value)
    assert sorted(taken) == list(range(4 * BATCH))
    # Each call moves a batch before it takes one: then all have come, and stand in order.
    settled = taken[4 + 2 :]
    assert settled == sorted(settled, reverse=True)
    assert rows(db, store_of(queue).layout.delayed) == 0
    assert fdbqueue.check(db, queue).ok


def test_several_are_taken_though_more_than_one_sweep_has_to_bring_them(
    db: Any, space: Subspace
) -> None:
    queue = backlog(db, space)
    assert len(queue.pop_many(db, 1_000)) == 1_000
    assert len(queue.peek_many(db, 900)) == 900
    assert len(queue.pop_many(db, ITEMS)) == ITEMS - 1_000


def test_what_waits_and_is_due_first_is_not_passed_over(db: Any, space: Subspace) -> None:
    queue = backlog(db, space)
    queue.push(db, "first of all", -(10**6))
    assert queue.pop(db).value == "first of all"


def test_nothing_that_expired_is_taken_however_much_did(db: Any, space: Subspace) -> None:
    queue = PriorityQueue(space)
    for priority in range(0, 1_000, 250):
        queue.push_many(db, range(250), priority, ttl=0.2)
    queue.push(db, "alive", 500)
    time.sleep(0.25)
    again = PriorityQueue(space)
    assert again.pop(db).value == "alive"
    assert again.pop(db) is None
    assert fdbqueue.check(db, again).ok


@pytest.mark.parametrize("take", ["pop", "claim", "peek"])
def test_a_call_goes_on_while_all_that_it_moves_is_a_dead_letter(
    db: Any, space: Subspace, take: str
) -> None:
    queue = PriorityQueue(space, max_attempts=2)
    queue.push_many(db, range(800))
    queue.nack(db, queue.claim(db, n=800), delay=0)
    assert len(queue.claim(db, n=800, lease=0.001)) == 800
    queue.push(db, "alive")
    queue.claim(db, lease=0.002)
    time.sleep(0.02)
    again = PriorityQueue(space)
    found = getattr(again, take)(db)
    assert (found.item if take == "claim" else found).value == "alive"
    assert rows(db, store_of(queue).layout.dead) == 800
    assert fdbqueue.check(db, again).ok


def test_a_paused_queue_hands_out_nothing_of_much_that_is_due(db: Any, space: Subspace) -> None:
    queue = backlog(db, space, 600)
    queue.pause(db)
    assert (queue.pop(db), queue.claim(db)) == (None, None)
    queue.resume(db)
    assert queue.pop(db) is not None
