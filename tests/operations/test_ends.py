"""The end of an item is noted once, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.layout.batches import End
from fdbqueue.operations.maintainers import batches
from fdbqueue.queue.base import store_of
from tests.support.leases import come_due, expire, lapse

UNIQUE: Any = {"unique": "k"}  # for a header


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[End]:
    """Return the ends that are noted from now on."""
    noted: list[End] = []

    def follow(*arguments: Any) -> None:
        noted.append(arguments[-1])

    monkeypatch.setattr(batches, "count_end", follow)
    return noted


@pytest.fixture(params=[None, 100], ids=["kept no items", "kept done items"])
def queue(request: Any, db: Any, name: str) -> PriorityQueue[Any]:
    return PriorityQueue.named(db, name, keep=request.param, max_attempts=2)


def claim(queue: PriorityQueue[Any], db: Any) -> Any:
    """Claim an item, which must be there."""
    claim = queue.claim(db)
    assert claim is not None
    return claim


def claimed(queue: PriorityQueue[Any], db: Any) -> Any:
    """Push an item, and claim it."""
    queue.push(db, 1, **UNIQUE)
    return claim(queue, db)


def ack(queue: PriorityQueue[Any], db: Any) -> None:
    queue.ack(db, claimed(queue, db))


def ack_with_others(queue: PriorityQueue[Any], db: Any) -> None:
    queue.push(db, 2)
    first, second = claimed(queue, db), claim(queue, db)
    fdbqueue.transactional(lambda tr: [queue.ack(tr, first), queue.ack(tr, second)])(db)


def discard(queue: PriorityQueue[Any], db: Any) -> None:
    queue.ack(db, claimed(queue, db), discarded="no")


def cancel_claimed(queue: PriorityQueue[Any], db: Any) -> None:
    running = claimed(queue, db)
    queue.cancel(db, running.item)
    queue.nack(db, running)


def cancel_waiting(queue: PriorityQueue[Any], db: Any) -> None:
    item: Any = queue.push(db, 1, **UNIQUE)
    queue.cancel(db, item)


def remove_delayed(queue: PriorityQueue[Any], db: Any) -> None:
    item: Any = queue.push(db, 1, **UNIQUE, delay=60)
    queue.remove(db, item)


def die(queue: PriorityQueue[Any], db: Any) -> None:
    queue.nack(db, claimed(queue, db), delay=0)
    last = claim(queue, db)
    queue.nack(db, last, error="broken")
    queue.remove(db, last.item)  # which is no second end


def die_with_the_lease(queue: PriorityQueue[Any], db: Any) -> None:
    queue.nack(db, claimed(queue, db), delay=0)
    queue.claim(db)
    lapse(db, queue)
    store_of(queue).sweeper.invalidate()
    assert queue.claim(db) is None


def expire_ready(queue: PriorityQueue[Any], db: Any) -> None:
    queue.push(db, 1, **UNIQUE, ttl=60)
    expire(db, queue)
    assert queue.claim(db) is None


def pop(queue: PriorityQueue[Any], db: Any) -> None:
    queue.push(db, 1, **UNIQUE)
    queue.pop(db)


def pop_in_a_transaction(queue: PriorityQueue[Any], db: Any) -> None:
    queue.push(db, 1, **UNIQUE)
    fdbqueue.transactional(lambda tr: queue.pop(tr))(db)


def go_on(queue: PriorityQueue[Any], db: Any) -> None:
    item: Any = queue.push(db, 1, **UNIQUE, delay=60)
    come_due(db, queue)
    queue.release(db, claim(queue, db))
    queue.reprioritize(db, item, 7)
    queue.nack(db, claim(queue, db))
    queue.clear(db)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (ack, [End("done")]),
        (ack_with_others, [End("done")]),
        (discard, [End("discarded", error="no")]),
        (cancel_claimed, [End("cancelled")]),
        (cancel_waiting, [End("removed")]),
        (remove_delayed, [End("removed")]),
        (die, [End("dead", error="broken")]),
        (die_with_the_lease, [End("dead", error="its lease ran out")]),
        (expire_ready, [End("expired")]),
        (pop, [End("popped")]),
        (pop_in_a_transaction, [End("popped")]),
        (go_on, []),
    ],
)
def test_an_end_is_noted_once(
    db: Any,
    queue: PriorityQueue[Any],
    noted: list[End],
    act: Callable[[PriorityQueue[Any], Any], None],
    expected: list[End],
) -> None:
    act(queue, db)
    assert noted == expected
