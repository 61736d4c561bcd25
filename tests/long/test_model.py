"""Random operations on a queue and on a sorted list must agree."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import fdbqueue
from fdbqueue import PriorityQueue, Queue, Subspace

EXAMPLES = int(os.environ.get("FDBQ_MODEL_EXAMPLES", "20"))
PRIORITIES = st.integers(-2, 2) | st.sampled_from([-(2**63), 2**63 - 1, 255, 256])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)


class QueueMachine(RuleBasedStateMachine):
    """The model is a list of (priority, order of arrival, value)."""

    db: Any
    space: Subspace
    started = False

    def __init__(self) -> None:
        super().__init__()
        self.model: list[tuple[int, int, Any]] = []
        # Maps ids to entries: an item that moves away and back has its old id again.
        self.items: dict[str, tuple[int, int, Any]] = {}
        self.arrivals = 0

    @initialize()
    def start(self) -> None:
        self.db.clear_range_startswith(self.space.key())
        self.queue = PriorityQueue(self.space["q"])
        self.fifo, self.fifo_model = Queue(self.space["f"]), list[Any]()
        self.started = True

    def order(self, reverse: bool = False) -> list[tuple[int, int, Any]]:
        sign = -1 if reverse else 1
        return sorted(self.model, key=lambda entry: (sign * entry[0], entry[1]))

    def arrive(self, priority: int, value: Any) -> tuple[int, int, Any]:
        self.arrivals += 1
        self.model.append((priority, self.arrivals, value))
        return self.model[-1]

    @rule(entries=st.lists(st.tuples(VALUES, PRIORITIES), max_size=5))
    def push(self, entries: list[tuple[Any, int]]) -> None:
        if len(entries) == 1:
            items = [self.queue.push(self.db, *entries[0])]
        else:
            items = self.queue.push_many(
                self.db, [v for v, _ in entries], priorities=[p for _, p in entries]
            )
        for item, (value, priority) in zip(items, entries):
            assert (item.value, item.priority) == (value, priority)
            self.items[item.id] = self.arrive(priority, value)

    @rule(n=st.integers(0, 3), max=st.booleans())
    def pop(self, n: int, max: bool) -> None:
        expected = self.order(max)[:n]
        popped = self.queue.pop_many(self.db, n, max=max)
        assert [(item.priority, item.value) for item in popped] == [(p, v) for p, _, v in expected]
        for entry in expected:
            self.model.remove(entry)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item_id, entry = data.draw(st.sampled_from(list(self.items.items())))
        assert self.queue.remove(self.db, item_id) is (entry in self.model)
        if entry in self.model:
            self.model.remove(entry)

    @precondition(lambda self: self.items)
    @rule(data=st.data(), priority=PRIORITIES)
    def reprioritize(self, data: st.DataObject, priority: int) -> None:
        item_id, entry = data.draw(st.sampled_from(list(self.items.items())))
        moved = self.queue.reprioritize(self.db, item_id, priority)
        assert (moved is not None) is (entry in self.model)
        if moved is not None:
            self.model.remove(entry)
            self.items[moved.id] = self.arrive(priority, entry[2])

    @rule(values=st.lists(VALUES, max_size=3), n=st.integers(0, 3))
    def fifo_moves(self, values: list[Any], n: int) -> None:
        self.fifo.enqueue_many(self.db, values)
        self.fifo_model += values
        taken = [item.value for item in self.fifo.dequeue_many(self.db, n)]
        assert taken == self.fifo_model[:n]
        del self.fifo_model[:n]

    @rule()
    def clear(self) -> None:
        self.queue.clear(self.db)
        self.model.clear()

    @invariant()
    def agrees(self) -> None:
        if not self.started:
            return
        in_order = self.order()
        assert [(i.priority, i.value) for i in self.queue.items(self.db)] == [
            (p, v) for p, _, v in in_order
        ]
        assert self.queue.size(self.db) == len(in_order)
        levels = sorted({p for p, _, _ in in_order})
        assert self.queue.counts(self.db) == {
            level: sum(p == level for p, _, _ in in_order) for level in levels
        }
        for item, entry in [
            (self.queue.peek_min(self.db), in_order[:1]),
            (self.queue.peek_max(self.db), self.order(True)[:1]),
        ]:
            assert ([] if item is None else [item.value]) == [v for _, _, v in entry]
        assert fdbqueue.admin.check(self.db, self.queue).ok
        assert fdbqueue.admin.check(self.db, self.fifo).ok


def test_a_queue_agrees_with_a_sorted_list(db: Any, space: Subspace) -> None:
    machine = type("Machine", (QueueMachine,), {"db": db, "space": space})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
