"""What a pop in a transaction conflicts with, on every engine: the range of keys that it read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Item, PriorityQueue, error_classes

Action = Callable[[Any, PriorityQueue, dict[str, Item]], object]

# The queue has "first" and "second" of priority 5, and "last" of priority 9. An item "before" of
# priority 1 and an item "behind" of priority 9 were pushed and popped before.
CONFLICTS: dict[str, Action] = {
    "a push of a lower priority": lambda db, queue, _: queue.push(db, "new", 1),
    "another pop": lambda db, queue, _: queue.pop(db),
    "a claim of the first item": lambda db, queue, _: queue.claim(db, within=1),
    "the removal of the first item": lambda db, queue, items: queue.remove(db, items["first"]),
    "put_back before the first item": lambda db, queue, items: queue.put_back(
        db, [items["before"]]
    ),
    "a change of the first item's priority": lambda db, queue, items: queue.reprioritize(
        db, items["first"], 9
    ),
    "a change of another priority to a lower one": lambda db, queue, items: queue.reprioritize(
        db, items["last"], 1
    ),
    "clear": lambda db, queue, _: queue.clear(db),
}
NO_CONFLICTS: dict[str, Action] = {
    "a push of the same priority": lambda db, queue, _: queue.push(db, "new", 5),
    "a push of a higher priority": lambda db, queue, _: queue.push(db, "new", 6),
    "a delayed push of a lower priority": lambda db, queue, _: queue.push(db, "new", 1, delay=60),
    "a pop at the other end": lambda db, queue, _: queue.pop_max(db),
    "the removal of the second item": lambda db, queue, items: queue.remove(db, items["second"]),
    "put_back behind the first item": lambda db, queue, items: queue.put_back(
        db, [items["behind"]]
    ),
}


@pytest.fixture
def items(db: Any, queue: PriorityQueue) -> dict[str, Item]:
    pushed: dict[str, Item] = {}
    for value, priority in [("before", 1), ("first", 5), ("second", 5), ("last", 9)]:
        item = queue.push(db, value, priority)
        assert item is not None
        pushed[value] = item
    assert queue.pop(db) == pushed["before"]
    pushed["behind"] = queue.push(db, "behind", 9)
    assert queue.remove(db, pushed["behind"])
    return pushed


def commit_error(tr: Any) -> int | None:
    """Commit a transaction and return the code of its error."""
    try:
        tr.commit().wait()
    except error_classes() as error:
        code: int = error.code
        return code
    return None


@pytest.mark.parametrize("action", CONFLICTS.values(), ids=CONFLICTS)
def test_a_pop_conflicts_with_what_changes_keys_up_to_its_item(
    db: Any, queue: PriorityQueue, items: dict[str, Item], action: Action
) -> None:
    tr = db.create_transaction()
    assert queue.pop(tr) == items["first"]
    action(db, queue, items)
    assert commit_error(tr) == 1020


@pytest.mark.parametrize("action", NO_CONFLICTS.values(), ids=NO_CONFLICTS)
def test_a_pop_does_not_conflict_with_what_changes_keys_behind_its_item(
    db: Any, queue: PriorityQueue, items: dict[str, Item], action: Action
) -> None:
    tr = db.create_transaction()
    assert queue.pop(tr) == items["first"]
    action(db, queue, items)
    assert commit_error(tr) is None


@pytest.mark.parametrize(
    ("priority", "error"), [(8, None), (9, 1020), (10, 1020)], ids=["lower", "same", "higher"]
)
def test_a_pop_at_the_other_end_conflicts_with_a_push_of_its_priority_or_a_higher_one(
    db: Any, queue: PriorityQueue, items: dict[str, Item], priority: int, error: int | None
) -> None:
    tr = db.create_transaction()
    assert queue.pop_max(tr) == items["last"]
    queue.push(db, "new", priority)
    assert commit_error(tr) == error


def test_a_pop_of_an_empty_queue_conflicts_with_every_push(db: Any, queue: PriorityQueue) -> None:
    queue.push(db, "gone")
    queue.pop(db)
    tr = db.create_transaction()
    assert queue.pop(tr) is None
    tr[queue.subspace["any"].key()] = b""  # a transaction that writes nothing has no conflicts
    queue.push(db, "new", 10**9)
    assert commit_error(tr) == 1020


def test_two_pops_in_transactions_commit_one_after_the_other(
    db: Any, queue: PriorityQueue, items: dict[str, Item]
) -> None:
    first, second = db.create_transaction(), db.create_transaction()
    assert queue.pop(first) == queue.pop(second) == items["first"]
    assert (commit_error(first), commit_error(second)) == (None, 1020)
