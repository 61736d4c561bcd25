"""What a pop in a transaction conflicts with, on every engine: the range of keys that it read."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from fdbqueue import Item, PriorityQueue

# The queue has "first" and "second" of priority 5, and "last" of priority 9. An item "before" of
# priority 1 and an item "behind" of priority 9 were pushed and popped before.
ACTIONS: dict[str, tuple[Any, bool]] = {
    "a push of a lower priority": (lambda db, queue, _: queue.push(db, "new", 1), True),
    "another pop": (lambda db, queue, _: queue.pop(db), True),
    "a claim of the first": (lambda db, queue, _: queue.claim(db, within=1), True),
    "its removal": (lambda db, queue, items: queue.remove(db, items["first"]), True),
    "put_back before it": (lambda db, queue, items: queue.put_back(db, [items["before"]]), True),
    "its move": (lambda db, queue, items: queue.update(db, items["first"], priority=9), True),
    "a move before": (lambda db, queue, items: queue.update(db, items["last"], priority=1), True),
    "clear": (lambda db, queue, _: queue.clear(db), True),
    "a push of its priority": (lambda db, queue, _: queue.push(db, "new", 5), False),
    "a delayed push": (lambda db, queue, _: queue.push(db, "new", 1, delay=60), False),
    "a pop at the other end": (lambda db, queue, _: queue.pop_max(db), False),
    "another removal": (lambda db, queue, items: queue.remove(db, items["second"]), False),
    "put_back behind": (lambda db, queue, items: queue.put_back(db, [items["behind"]]), False),
}
AT_MAX: dict[str, tuple[Any, bool]] = {
    "a push of a priority below": (lambda db, queue, _: queue.push(db, "new", 8), False),
    "a push of the same": (lambda db, queue, _: queue.push(db, "new", 9), True),
    "a push of a priority above": (lambda db, queue, _: queue.push(db, "new", 10), True),
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


@pytest.mark.parametrize("action", [*ACTIONS, *AT_MAX])
def test_a_pop_conflicts_with_what_changes_keys_up_to_its_item(
    db: Any, queue: PriorityQueue, items: dict[str, Item], action: str, fdb_error: Any
) -> None:
    tr = db.create_transaction()
    if action in AT_MAX:
        assert queue.pop_max(tr) == items["last"]
    else:
        assert queue.pop(tr) == items["first"]
    act, conflicts = (ACTIONS | AT_MAX)[action]
    act(db, queue, items)
    with fdb_error(1020) if conflicts else nullcontext():
        tr.commit().wait()


def test_a_pop_of_an_empty_queue_conflicts_with_every_push(
    db: Any, queue: PriorityQueue, fdb_error: Any
) -> None:
    queue.push(db, "gone")
    queue.pop(db)
    tr = db.create_transaction()
    assert queue.pop(tr) is None
    tr[queue.subspace["any"].key()] = b""  # a transaction that writes nothing has no conflicts
    queue.push(db, "new", 10**9)
    with fdb_error(1020):
        tr.commit().wait()
