"""Random operations on a queue and on a sorted list must agree."""

from __future__ import annotations

from typing import Any

import pytest
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
from fdbqueue import Item, PriorityQueue, Queue, Subspace

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

    engine = "memory:"

    def __init__(self) -> None:
        super().__init__()
        self.db: Any = None
        self.model: list[tuple[int, int, Any]] = []
        self.items: list[tuple[Item, tuple[int, int, Any]]] = []
        self.arrivals = 0

    @initialize()
    def start(self) -> None:
        self.db = fdbqueue.open(self.engine)
        self.db.clear_range(b"", b"\xff")
        self.queue = PriorityQueue(Subspace(("q",)))
        self.fifo, self.fifo_model = Queue(Subspace(("f",))), list[Any]()

    def teardown(self) -> None:
        if self.db is not None:
            self.db.close()

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
            self.items.append((item, self.arrive(priority, value)))

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
        item, entry = data.draw(st.sampled_from(self.items))
        assert self.queue.remove(self.db, item.id) is (entry in self.model)
        if entry in self.model:
            self.model.remove(entry)

    @precondition(lambda self: self.items)
    @rule(data=st.data(), priority=PRIORITIES)
    def reprioritize(self, data: st.DataObject, priority: int) -> None:
        item, entry = data.draw(st.sampled_from(self.items))
        moved = self.queue.reprioritize(self.db, item, priority)
        assert (moved is not None) is (entry in self.model)
        if moved is not None:
            self.model.remove(entry)
            self.items.append((moved, self.arrive(priority, entry[2])))

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
        if self.db is None:
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
        assert fdbqueue.check(self.db, self.queue).ok
        assert fdbqueue.check(self.db, self.fifo).ok


@pytest.mark.parametrize("engine", ["embedded", "memory"])
def test_a_queue_is_a_sorted_list(engine: str, tmp_path: Any) -> None:
    class Machine(QueueMachine):
        pass

    Machine.engine = "memory:" if engine == "memory" else f"embedded:{tmp_path / 'db'}"
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
