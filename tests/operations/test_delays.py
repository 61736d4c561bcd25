"""Many items due at once: each call moves a bounded number and takes an available item."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination import sweeper
from fdbqueue.testing import Clock
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of
from tests.support.leases import lapse
from tests.support.threads import in_threads

ITEMS = 1_000
BATCH = 256
"""The number of items of each kind that one transaction moves."""


def backlog(db: Any, space: Subspace, n: int = ITEMS, **options: Any) -> PriorityQueue:
    """Return a queue of due items whose last item has the lowest priority."""
    queue = PriorityQueue(space, **options)
    now = datetime.now(timezone.utc)
    for begin in range(0, n, 500):
        numbers = range(begin, min(n, begin + 500))
        queue.push_many(db, numbers, priorities=[-number for number in numbers], at=now)
    return PriorityQueue(space)


def rows(db: Any, prefix: bytes) -> int:
    return len(list(db.get_range_startswith(prefix)))


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_a_call_moves_a_bounded_number_of_due_items(
    db: Any, space: Subspace, take: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sweeper, "_SWEEP", 600.0
    )  # the pause between sweeps if nothing is left to move
    queue = backlog(db, space)
    assert getattr(queue, take)(db) is not None
    left = rows(db, layout_of(queue).delayed)
    assert ITEMS - 2 * BATCH <= left < ITEMS
    clock.advance(60)
    assert getattr(queue, take)(db) is not None
    assert left - 2 * BATCH <= rows(db, layout_of(queue).delayed) < left


def test_a_claim_takes_a_waiting_item_and_leaves_many_due_ones_to_later_sweeps(
    db: Any, space: Subspace
) -> None:
    """If each claim moved the same items, all claims of that moment would conflict."""
    queue = backlog(db, space)
    assert queue.peek(db.create_transaction()) is None
    queue.push(db, "waits", 1)
    assert queue.claim(db).item.value == "waits"
    assert rows(db, layout_of(queue).delayed) == ITEMS
    peeked = queue.peek(db)
    assert rows(db, layout_of(queue).delayed) == ITEMS - BATCH
    assert next(queue.items(db.create_transaction())) == peeked
    queue.push(db, "first of all", -(10**6))
    assert queue.pop(db).value == "first of all"


@pytest.mark.parametrize("kind", ["delays", "leases"])
def test_clients_that_work_off_a_backlog_together_take_each_item_once(
    db: Any, space: Subspace, kind: str
) -> None:
    if kind == "delays":
        queue = backlog(db, space)
    else:
        queue = PriorityQueue(space)
        queue.push_many(db, range(ITEMS))
        for _ in range(ITEMS // 250):
            queue.claim(db, n=250, lease=600)
        lapse(db, queue)
    taken: list[Any] = []

    def consume() -> None:
        client = PriorityQueue(space)  # as a process of its own opens it
        while claim := client.claim(db, n=10, lease=600):
            taken.extend(item.value for item in claim.items)
            client.ack(db, claim)

    in_threads([consume] * 4)
    assert sorted(taken) == list(range(ITEMS))
    assert fdbqueue.admin.check(db, queue) == fdbqueue.admin.CheckReport(0, 0, 0, 0, 0, (), False)


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_due_items_are_taken_once_and_in_order_after_all_are_moved(
    db: Any, space: Subspace, take: str
) -> None:
    queue = backlog(db, space, 2 * BATCH)
    taken = []
    while item := queue.pop(db) if take == "pop" else queue.claim(db, lease=600, within=1):
        taken.append(item.value if take == "pop" else item.item.value)
    assert sorted(taken) == list(range(2 * BATCH))
    # Each call moves a batch before it takes an item. After the last batch all are in order.
    ordered = taken[2 + 2 :]
    assert ordered == sorted(ordered, reverse=True)
    assert rows(db, layout_of(queue).delayed) == 0
    assert fdbqueue.admin.check(db, queue).ok


def test_a_pop_of_many_items_runs_as_many_sweeps_as_it_needs(db: Any, space: Subspace) -> None:
    queue = backlog(db, space)
    counting = CountingDatabase(db)
    assert queue.pop(counting) is not None
    assert counting.transactions < 10
    assert len(queue.pop_many(db, 600)) == 600
    assert len(queue.pop_many(db, ITEMS)) == ITEMS - 601


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_a_call_keeps_sweeping_while_every_due_item_becomes_a_dead_letter(
    db: Any, space: Subspace, take: str
) -> None:
    queue = PriorityQueue(space, max_attempts=2)
    queue.push_many(db, range(600))
    queue.nack(db, queue.claim(db, n=600), delay=0)
    assert len(queue.claim(db, n=600)) == 600
    queue.push(db, "alive")
    queue.claim(db)
    lapse(db, queue)
    again = PriorityQueue(space)
    found = getattr(again, take)(db)
    assert (found.item if take == "claim" else found).value == "alive"
    assert rows(db, layout_of(queue).dead) == 600
    assert fdbqueue.admin.check(db, again).ok
