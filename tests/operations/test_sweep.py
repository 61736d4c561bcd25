"""A sweep does to each item what its timer says, and nothing else; a scan says the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.database.clock import milliseconds
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock
from tests.support.kinds import KINDS
from tests.support.leases import lapse
from tests.support.scan import STATES, scan


def ids_in(tr: Any, queue: Any) -> dict[str, set[str]]:
    """Return the ids of the items that the views list in each state."""
    return {state: {info.id for info in queue.items(tr, state=state)} for state in STATES}


def sweep_and_compare(db: Any, queue: Any) -> Counter[tuple[str, str | None]]:
    """Sweep until nothing is due, and compare it with a scan before.

    Return how many items went from each state to which, `None` for the end.
    """
    sweep = store_of(queue)._sweep

    @fdbqueue.transactional
    def body(tr: Any) -> Counter[tuple[str, str | None]]:
        now = milliseconds()
        before, stats = scan(tr, queue), queue.stats(tr.snapshot)
        expected = scan(tr, queue, swept_at=now)
        assert ids_in(tr.snapshot, queue) == before.ids
        while not sweep.sweep(tr, now).all:
            pass
        after = queue.stats(tr.snapshot)
        assert ids_in(tr.snapshot, queue) == scan(tr, queue).ids == expected.ids
        for state, ids in expected.ids.items():
            assert getattr(after, state) == len(ids), state
        if after.options.kind == "priority":
            assert after.by_priority == expected.priorities
        for total in ("total_pushed", "total_completed"):
            assert getattr(after, total) == getattr(stats, total), total
        assert after.total_expired == stats.total_expired + expected.expired
        state_of = {id: state for state, ids in expected.ids.items() for id in ids}
        moves = ((state, state_of.get(id)) for state, ids in before.ids.items() for id in ids)
        return Counter(move for move in moves if move[0] != move[1])

    moves: Counter[tuple[str, str | None]] = body(db)
    return moves


def compare_single_items(db: Any, queue: Any, rng: random.Random) -> None:
    """Compare what an operation on each of some items finds with a scan."""
    store = store_of(queue)
    tr = db.create_transaction()  # never committed
    now = milliseconds()
    before, expected = scan(tr, queue).ids, scan(tr, queue, swept_at=now).ids
    moved = sorted(id for state, ids in before.items() for id in ids - expected[state])
    for id in rng.sample(moved, min(5, len(moved))):
        found = store._sweep.find(tr, now, store.codec.reference(id))
        state = next((state for state, ids in expected.items() if id in ids), None)
        assert (found and found.state) == state


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_does_all_that_timers_say(db: Any, name: str, kind: Any, clock: Clock) -> None:
    queue = kind.named(db, name, max_attempts=2)

    def push(**options: Any) -> None:
        if isinstance(queue, TaskQueue):
            queue.push(db, payload=1, **options)
        else:
            queue.push(db, 1, **options)

    push()
    queue.nack(db, queue.claim(db), delay=0)
    queue.claim(db, lease=60)  # dies
    push()
    push(ttl=60)
    queue.claim(db, n=2, lease=60)  # one returns, the other ends
    push(ttl=60)  # expires
    push(delay=60)
    push(delay=60, ttl=61)
    lapse(db, queue)
    clock.advance(100)
    compare_single_items(db, queue, random.Random(1))
    moves = [("claimed", to) for to in ("dead", "ready", None)]
    moves += [("delayed", to) for to in ("ready", None)]
    assert sweep_and_compare(db, queue) == Counter([*moves, ("ready", None)])
    assert fdbqueue.admin.check(db, queue).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_of_many_items_moves_them_all(db: Any, name: str, kind: Any, clock: Clock) -> None:
    queue = kind.named(db, name)
    if isinstance(queue, TaskQueue):
        for number in range(300):
            queue.push(db, payload=number, delay=5, ttl=[6, 500][number % 2])
    else:
        for ttl in (6, 500):
            queue.push_many(db, range(150), delay=5, ttl=ttl)
    clock.advance(60)
    expected = {("delayed", None): 150, ("delayed", "ready"): 150}
    assert sweep_and_compare(db, queue) == Counter(expected)
    assert queue.stats(db).total_expired == 150
