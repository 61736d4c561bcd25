"""Pushes that replace a waiting item with their unique key: of many, the last one decides."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.testing import Clock
from tests.support.scan import assert_views_agree

CART: Any = {"unique": "cart 7", "replace": True, "delay": "30s", "at_most": "5m"}


def test_the_last_push_decides_until_a_time_after_the_first(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    first = queue.push(db, 0, 5, group="ada", **CART)
    for seconds in range(20, 280, 20):
        clock.advance(20)
        again = queue.push(db, seconds, 1, **CART)
        assert (again.id, again.value, again.is_new) == (first.id, seconds, False)
        assert queue.claim(db) is None
    info = queue.get(db, first)
    assert (info.item.priority, info.group) == (5, "ada")  # those of the first push
    clock.advance(25)  # 285 seconds: it is due at 300, not at 315
    queue.push(db, "last", **CART)
    clock.advance(16)
    assert queue.state(db, first) == "ready"
    assert not queue.push(db, "very last", **CART).is_new
    assert queue.state(db, first) == "ready"
    assert queue.claim(db).item.value == "very last"
    assert_views_agree(db, queue)


def test_without_a_limit_each_push_postpones_the_item(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    item = queue.push(db, 0, unique="k", replace=True, delay=30)
    for number in range(100):
        clock.advance(29)
        queue.push(db, number, unique="k", replace=True, delay=30)
    assert queue.state(db, item) == "delayed"
    queue.push(db, "now", unique="k", replace=True)
    assert queue.pop(db).value == "now"


def test_a_first_delay_is_within_the_limit(db: Any, queue: PriorityQueue, clock: Clock) -> None:
    queue.push(db, 1, unique="k", replace=True, delay="1h", at_most="5m")
    clock.advance(301)
    assert queue.pop(db).value == 1


def test_a_claimed_item_keeps_its_value_and_another_is_stored(
    db: Any, queue: PriorityQueue
) -> None:
    first = queue.push(db, "old", unique="k", replace=True)
    claim = queue.claim(db)
    second = queue.push(db, "new", unique="k", replace=True)
    assert (second.is_new, claim.item.value) == (True, "old")
    assert queue.push(db, "newer", unique="k", replace=True).id == second.id
    queue.nack(db, claim, delay=0)  # it returns without the key
    assert queue.push(db, "newest", unique="k", replace=True).id == second.id
    assert {queue.get(db, each).item.value for each in (first, second)} == {"old", "newest"}
    assert_views_agree(db, queue)
    queue.pop_many(db, 2)
    assert queue.push(db, "later", unique="k").is_new


def test_a_retry_gets_the_new_value_and_keeps_its_time(
    db: Any, queue: PriorityQueue, clock: Clock
) -> None:
    """Else each push would make a job that fails try again."""
    item = queue.push(db, "old", unique="k", replace=True)
    queue.nack(db, queue.claim(db), delay=600, error="busy")
    clock.advance(300)
    assert queue.push(db, "new", unique="k", replace=True, at_most=0).id == item.id
    info = queue.get(db, item)
    assert (info.state, info.item.value, info.error) == ("delayed", "new", "busy")
    clock.advance(301)
    assert queue.claim(db).attempt == 2


@pytest.mark.parametrize("scope", [{}, {"unique_for": "1h"}], ids=str)
def test_the_scope_of_the_first_push_holds(
    db: Any, queue: PriorityQueue, scope: dict[str, Any]
) -> None:
    """An item that another kind of push has stored is replaced only while it waits."""
    item = queue.push(db, 1, unique="k", **scope)
    again = queue.push(db, 2, unique="k", replace=True)
    assert (again.id, again.value) == (item.id, 2)
    claim = queue.claim(db)
    again = queue.push(db, 3, unique="k", replace=True)
    assert (again.id, again.value, again.is_new) == (item.id, 2, False)
    queue.ack(db, claim)
    assert queue.push(db, 4, unique="k", replace=True).is_new == (scope == {})


def test_keys_that_repeat_in_one_call_have_the_last_value(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, 0, unique="a", delay=60)
    values, keys = [1, 2, "x" * 50_000, 3, 4], ["a", "b", "a", "b", None]
    items = queue.push_many(db, values, unique=keys, replace=True)
    assert [item.is_new for item in items] == [False, True, False, False, True]
    assert sorted(map(str, (item.value for item in queue.items(db)))) == ["3", "4", "x" * 50_000]
    assert_views_agree(db, queue)


def test_a_task_is_replaced_in_its_place(db: Any, name: str) -> None:
    tasks = TaskQueue.named(db, name)
    first = tasks.push(db, payload=1, priority=4, agent_name="ada", unique="k")
    assert tasks.push(db, payload=2, agent_name="bob", unique="k", replace=True) == first
    task = tasks.pop(db)
    assert (task.payload, task.agent_name, task.priority) == (2, "bob", 4)
