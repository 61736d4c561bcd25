"""An item that is moved to another priority keeps its id, in every state that follows."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.errors import LeaseLost, WrongState
from tests.support.keys import rows_in
from tests.support.leases import come_due, lapse
from tests.support.scan import assert_views_agree


def moves(db: Any, queue: Any) -> int:
    """Return the number of rows that lead from ids to moved items."""
    return len(rows_in(db, queue, "moved"))


@pytest.fixture
def moved(db: Any, name: str) -> tuple[PriorityQueue, str]:
    """Return a queue, and the id of an item that was moved twice."""
    queue = PriorityQueue.named(db, name, max_attempts=2, keep=10)
    item = queue.push(db, "job", 5, unique="key")
    queue.push(db, "other", 3)
    first = queue.reprioritize(db, item, 4)
    second = queue.reprioritize(db, first, 1)
    assert item.id == first.id == second.id
    assert len({item.key, first.key, second.key}) == 3
    assert (second.value, second.priority, moves(db, queue)) == ("job", 1, 1)
    return queue, item.id


def test_a_moved_item_is_found_by_its_id_in_every_state(
    db: Any, moved: tuple[PriorityQueue, str]
) -> None:
    queue, item_id = moved

    def is_in(state: str | None) -> None:
        assert_views_agree(db, queue)
        info = queue.get(db, item_id)
        assert queue.state(db, item_id) == state == (info and info.state)
        assert info is None or (info.id, info.item.id, info.item.value) == (item_id, item_id, "job")

    is_in("ready")
    assert queue.position(db, item_id) == 0
    assert queue.peek(db).id == item_id
    claim = queue.claim(db)
    assert claim.item.id == item_id
    is_in("claimed")
    queue.release(db, claim)
    is_in("ready")
    with pytest.raises(LeaseLost, match=item_id):
        queue.ack(db, claim)
    queue.nack(db, queue.claim(db), delay=600, error="busy")
    is_in("delayed")
    come_due(db, queue)
    is_in("ready")
    queue.claim(db)
    lapse(db, queue)
    is_in("dead")
    assert [letter.id for letter in queue.items(db, state="dead")] == [item_id]
    assert queue.retry(db, item_id)
    is_in("ready")
    assert queue.push(db, "again", unique="key").id == item_id
    queue.ack(db, queue.claim(db), result=7)
    is_in("done")
    assert queue.result(db, item_id) == 7
    assert queue.remove(db, item_id)
    is_in(None)
    assert moves(db, queue) == 0


@pytest.mark.parametrize("state", ["claimed", "done"])
def test_an_item_in_another_state_is_not_moved_and_the_error_says_why(
    db: Any, name: str, state: str
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1, keep=10)
    item = queue.push(db, "job", 5)
    claim = queue.claim(db)
    assert claim is not None
    if state == "done":
        queue.ack(db, claim)
    with pytest.raises(WrongState, match=f"is {state}, and only") as caught:
        queue.reprioritize(db, item, 1)
    assert (caught.value.id, caught.value.state) == (item.id, state)
    assert queue.state(db, item) == state
    assert queue.reprioritize(db, queue.push(db, "gone", 9).id, 1) is not None
    queue.clear(db)
    assert queue.reprioritize(db, item, 1) is None


def test_items_behind_a_moved_one_are_listed(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)
    items = queue.push_many(db, range(6), priorities=range(6))
    queue.reprioritize(db, items[5], 2)
    assert [item.value for item in queue.items(db, after=items[5].id)] == [3, 4]
    assert [item.value for item in queue.items(db, after=items[5], reverse=True)] == [2, 1, 0]
    page = [*queue.items(db, limit=4)]
    assert [item.value for item in page] == [0, 1, 2, 5]
    queue.remove(db, page[-1])  # a page may begin behind an item that is gone
    assert [item.value for item in queue.items(db, after=page[-1])] == [3, 4]


def test_an_item_that_comes_back_to_its_first_position_is_found(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name)

    @fdbqueue.transactional
    def body(tr: Any) -> Any:
        item = queue.push(tr, "job", 1)
        queue.reprioritize(tr, item, 5)
        back = queue.reprioritize(tr, item, 1)
        assert (back.id, back.key) == (item.id, item.key)
        return item

    item = body(db)
    assert queue.state(db, item) == "ready"
    assert_views_agree(db, queue)
    assert queue.pop(db).id == item.id
    assert queue.state(db, item) is None
    assert moves(db, queue) == 0
