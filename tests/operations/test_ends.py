"""Whatever ends an item, nothing that belonged to it stays behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.queue.base import store_of
from tests.support.keys import rows_in
from tests.support.leases import expire
from tests.support.scan import assert_views_agree

BELONGS = ("pieces", "attempts", "moved", "unique_keys")
ROWS = ("items", "delayed", "claims", "dead", "done", "done_times", "returned")
TIMERS = ("leases", "dues", "expiries")


def trim(db: Any, queue: PriorityQueue, item: Any) -> None:
    queue.ack(db, queue.claim(db), result=1)
    queue.configure(db, keep=None)
    store_of(queue).sweeper.trim(db)


ENDS: dict[str, Callable[[Any, PriorityQueue, Any], object]] = {
    "pop": lambda db, queue, item: queue.pop(db),
    "pop at the other end": lambda db, queue, item: queue.pop_many(db, 9, max=True),
    "pop in a transaction": lambda db, queue, item: fdbqueue.transactional(
        lambda tr: queue.pop(tr)
    )(db),
    "ack": lambda db, queue, item: queue.ack(db, queue.claim(db)),
    "remove": lambda db, queue, item: queue.remove(db, item),
    "remove a delayed one": lambda db, queue, item: (
        queue.release(db, queue.claim(db), delay=60),
        queue.remove(db, item),
    ),
    "remove a dead letter": lambda db, queue, item: (
        queue.nack(db, queue.claim(db), dead=True, error="broken"),
        queue.remove(db, item),
    ),
    "remove a done one": lambda db, queue, item: (
        queue.ack(db, queue.claim(db), result=1),
        queue.remove(db, item),
    ),
    "trim a done one": trim,
    "cancel": lambda db, queue, item: queue.cancel(db, item),
    "cancel a claimed one": lambda db, queue, item: (
        claim := queue.claim(db),
        queue.cancel(db, item),
        queue.nack(db, claim),
    ),
    "clear": lambda db, queue, item: queue.clear(db),
    "clear a claimed one": lambda db, queue, item: (queue.claim(db), queue.clear(db)),
    "clear a dead letter": lambda db, queue, item: (
        queue.nack(db, queue.claim(db), dead=True),
        queue.clear(db),
    ),
    "expire": lambda db, queue, item: (expire(db, queue), queue.wait(db, 0)),
}


@pytest.mark.parametrize("scope", [{}, {"unique_until": "claimed"}], ids=["ended", "claimed"])
@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_an_item_stays_behind(db: Any, name: str, end: str, scope: Any) -> None:
    """It is large and was moved; it has a group, a unique key and a failed attempt."""
    queue = PriorityQueue.named(db, name, keep=9 if "done" in end else None)
    pushed = queue.push(db, "x" * 200_000, 5, unique="k", ttl=3600, group="g", **scope)
    queue.nack(db, queue.claim(db), delay=0, error="busy")
    item = queue.reprioritize(db, pushed, 1)
    assert [bool(rows_in(db, queue, space)) for space in BELONGS] == [True] * 4
    ENDS[end](db, queue, item)
    assert queue.state(db, item) is None
    assert rows_in(db, queue, *BELONGS, *ROWS, *TIMERS) == []
    assert_views_agree(db, queue)
    assert queue.push(db, "again", unique="k").is_new


def test_items_that_are_popped_together_leave_no_timers(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, range(20), ttl=3600)
    queue.push_many(db, range(20))
    assert len(queue.pop_many(db, 30)) == 30
    assert rows_in(db, queue, *TIMERS) == []
    assert_views_agree(db, queue)
