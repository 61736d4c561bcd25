"""A push with an idempotency key is stored once; the key expires after a day."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.errors import IdempotencyKeyReused
from fdbqueue.operations.timers import drop_ended
from fdbqueue.queue import repeatable
from tests.support.idempotency import push_once
from tests.support.keys import layout_of, number_in


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock of the client by a number of hours."""
    present = [time.time()]
    monkeypatch.setattr(repeatable, "milliseconds", lambda: round(1000 * present[0]))

    def move(hours: float) -> None:
        present[0] += 3600 * hours

    return move


def push(db: Any, queue: PriorityQueue, key: str, value: Any = 1) -> str:
    (item_id,) = push_once(db, queue, key, [value], [0])
    return item_id


def test_a_key_is_remembered_for_24_hours(
    db: Any, queue: PriorityQueue, now: Callable[[float], None]
) -> None:
    first = push(db, queue, "key", "a")
    for hours in (24 - 1 / 3600, -48):  # a slow clock forgets no keys
        now(hours)
        assert push(db, queue, "key", "a") == first
        with pytest.raises(IdempotencyKeyReused):
            push(db, queue, "key", "b")
        now(-hours)
    now(24)
    second = push(db, queue, "key", "b")
    assert push(db, queue, "key", "b") == second != first
    assert [item.value for item in queue.items(db)] == ["a", "b"]
    assert number_in(db, queue, "idempotency_keys", "idempotency_ends") == 2


def test_a_sweep_does_not_forget_a_key_reused_during_it(
    db: Any, queue: PriorityQueue, now: Callable[[float], None]
) -> None:
    """Concurrent pushes that sweep do not conflict either."""
    push(db, queue, "key")
    push(db, queue, "other")
    now(48)
    sweeps = [db.create_transaction() for _ in range(2)]
    for tr in sweeps:
        layout = layout_of(queue)
        index, keys = layout.idempotency_ends, layout.idempotency_keys
        drop_ended(tr, layout, repeatable.milliseconds(), index, keys, 100)
    second = push(db, queue, "key")
    for tr in sweeps:
        tr.commit().wait()
    assert push(db, queue, "key") == second
    assert number_in(db, queue, "idempotency_keys", "idempotency_ends") == 2
