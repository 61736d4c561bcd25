"""A sweep does what timers say; of very many that are due, each call moves a bounded number."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from fdbqueue.coordination import sweeper
from fdbqueue.testing import Clock
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of
from tests.support.kinds import KINDS, push
from tests.support.leases import lapse
from tests.support.scan import assert_views_agree

ITEMS = 1_000
BATCH = 256
"""The number of items of each kind that one transaction moves."""


def backlog(db: Any, space: Subspace) -> PriorityQueue:
    """Return a queue of due items whose last item has the lowest priority."""
    queue: PriorityQueue = PriorityQueue(space)
    now = datetime.now(UTC)
    for begin in range(0, ITEMS, 500):
        numbers = range(begin, begin + 500)
        queue.push_many(db, numbers, priorities=[-number for number in numbers], at=now)
    return PriorityQueue(space)


def rows(db: Any, prefix: bytes) -> int:
    return len(list(db.get_range_startswith(prefix)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_does_all_that_timers_say(db: Any, name: str, kind: Any, clock: Clock) -> None:
    queue = kind.named(db, name, max_attempts=2)
    dies = push(db, queue, "dies")
    queue.nack(db, queue.claim(db), delay=0)
    queue.claim(db, lease=60)
    returns, expires = push(db, queue, "returns"), push(db, queue, "expires", ttl=60)
    queue.claim(db, n=2, lease=60)
    push(db, queue, "expires", ttl=60)
    due = push(db, queue, "is due", delay=60)
    push(db, queue, "is due and expires", delay=60, ttl=61)
    lapse(db, queue)
    clock.advance(100)
    stats = assert_views_agree(db, queue)
    assert (stats.ready, stats.dead, stats.total_expired) == (2, 1, 3)
    states = [queue.state(db, item) for item in (dies, returns, due, expires)]
    assert states == ["dead", "ready", "ready", None]


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_a_call_moves_a_bounded_number_of_due_items(
    db: Any, space: Subspace, take: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_SWEEP", 600.0)  # the pause if nothing is left to move
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
    queue: Any = backlog(db, space)
    assert queue.peek(db.create_transaction()) is None
    queue.push(db, "waits", 1)
    assert queue.claim(db).item.value == "waits"
    assert rows(db, layout_of(queue).delayed) == ITEMS
    peeked = queue.peek(db)
    assert rows(db, layout_of(queue).delayed) == ITEMS - BATCH
    assert next(queue.items(db.create_transaction())) == peeked
    queue.push(db, "first of all", -(10**6))
    assert queue.pop(db).value == "first of all"


def test_a_pop_of_many_items_runs_as_many_sweeps_as_it_needs(db: Any, space: Subspace) -> None:
    queue, counting = backlog(db, space), CountingDatabase(db)
    assert queue.pop(counting) is not None
    assert counting.transactions < 10
    first = queue.pop_many(db, 600)
    last = queue.pop_many(db, ITEMS)
    assert [len(first), len(last)] == [600, ITEMS - 601]
    assert [item.priority for item in last] == sorted(item.priority for item in last)
    assert check(db, queue).ok


@pytest.mark.parametrize("take", ["pop", "claim"])
def test_a_call_keeps_sweeping_while_every_due_item_becomes_a_dead_letter(
    db: Any, space: Subspace, take: str
) -> None:
    queue: PriorityQueue = PriorityQueue(space, max_attempts=2)
    queue.push_many(db, range(2 * BATCH))
    queue.nack(db, queue.claim(db, n=2 * BATCH), delay=0)
    queue.claim(db, n=2 * BATCH)
    item = queue.push(db, "alive")
    queue.claim(db)
    lapse(db, queue)
    found: Any = getattr(PriorityQueue(space), take)(db)
    assert (found.item if take == "claim" else found) == item
    assert rows(db, layout_of(queue).dead) == 2 * BATCH
    assert check(db, queue).ok
