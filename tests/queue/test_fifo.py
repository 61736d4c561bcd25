"""The FIFO queue."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue
from fdbqueue.errors import InvalidValue, PayloadTooLarge
from tests.support.leases import come_due, lapse, values


@pytest.fixture
def fifo(space: Subspace) -> Queue:
    return Queue(space)


def test_first_in_first_out(db: Any, fifo: Queue) -> None:
    for number in range(300):
        fifo.enqueue(db, number)
    assert fifo.peek(db).value == 0
    assert [fifo.dequeue(db).value for _ in range(300)] == list(range(300))
    assert fifo.dequeue(db) is None
    assert fifo.peek(db) is None


def test_peek_sees_an_item_whose_lease_expired(db: Any, fifo: Queue) -> None:
    fifo.enqueue(db, "x")
    assert fifo.claim(db) is not None
    assert fifo.peek(db) is None
    lapse(db, fifo)
    come_due(db, fifo)
    assert fifo.peek(db).value == "x"


def test_items_keep_their_order_after_the_queue_was_empty(db: Any, fifo: Queue) -> None:
    for round_number in range(3):
        fifo.enqueue_many(db, [[round_number, n] for n in range(3)])
        assert values(fifo.dequeue_many(db, 9)) == [[round_number, n] for n in range(3)]


def test_size_items_remove_and_clear(db: Any, fifo: Queue) -> None:
    items = fifo.enqueue_many(db, "abcde")
    assert fifo.size(db) == 5
    assert items[0].priority is None
    assert fifo.remove(db, items[1])
    assert fifo.remove(db, items[3].id)
    assert not fifo.remove(db, items[3].id)
    assert values(fifo.items(db)) == ["a", "c", "e"]
    assert values(fifo.items(db, reverse=True, limit=2)) == ["e", "c"]
    assert values(fifo.items(db, after=items[0])) == ["c", "e"]
    assert fdbqueue.admin.check(db, fifo).ready == 3
    assert fdbqueue.admin.check(db, fifo).ok
    fifo.clear(db)
    assert fifo.is_empty(db)
    assert fifo.size(db) == 0


def test_only_dequeues_conflict(db: Any, fifo: Queue, fdb_error: Any) -> None:
    fifo.enqueue(db, "made by the first one")
    fifo.clear(db)
    one, two = db.create_transaction(), db.create_transaction()
    fifo.enqueue(one, 1), fifo.enqueue(two, 2)
    one.commit().wait(), two.commit().wait()
    one, two = db.create_transaction(), db.create_transaction()
    assert fifo.dequeue(one) == fifo.dequeue(two)
    one.commit().wait()
    with fdb_error(1020):
        two.commit().wait()


def test_null_is_a_value_and_not_an_empty_queue(db: Any, fifo: Queue) -> None:
    fifo.enqueue(db, None)
    item = fifo.dequeue(db)
    assert item.value is None
    assert fifo.dequeue(db) is None


def test_large_and_bad_values(db: Any, fifo: Queue) -> None:
    fifo.enqueue(db, "x" * 250_000)
    assert fifo.dequeue(db).value == "x" * 250_000
    with pytest.raises(InvalidValue):
        fifo.enqueue(db, object())
    with pytest.raises(PayloadTooLarge):
        fifo.enqueue(db, "x" * 9_000_000)
    assert fifo.enqueue_many(db, []) == []
    assert fifo.is_empty(db)
    assert fdbqueue.admin.check(db, fifo).ok
