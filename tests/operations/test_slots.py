"""Limits on claims: paused queues, concurrency limits, times to live."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue, TaskQueue
from fdbqueue.database import clock
from fdbqueue.errors import ClockOutOfRange
from fdbqueue.testing import Clock


def in_transaction(method: Any) -> Any:
    """Return a method as a transactional function."""
    return fdbqueue.transactional(lambda tr: method(tr))


# Time to live


# Pause and resume


def test_a_paused_queue_accepts_pushes_and_returns_no_items(db: Any, space: Subspace) -> None:
    queue, tasks = PriorityQueue(space["jobs"]), TaskQueue(space["tasks"])
    queue.push(db, 1)
    tasks.push(db, agent_name="ada", payload=1)
    claimed = queue.push(db, 0, -1) and queue.claim(db)
    for each in (queue, tasks):
        each.configure(db, paused=True)
        assert each.options(db).paused
    queue.push(db, 2)
    assert queue.pop(db) is queue.pop_max(db) is queue.claim(db) is None
    assert queue.claim(db, wait=0.02) is queue.pop(db, wait=0.02) is None
    assert in_transaction(queue.pop)(db) is None
    assert tasks.pop(db) is tasks.claim(db) is None
    assert not queue.wait(db, 0.02)
    assert [item.value for item in queue.items(db)] == [1, 2]
    queue.ack(db, claimed)
    queue.clear(db)
    queue.push_many(db, [1, 2])
    assert (queue.options(db).paused, queue.pop(db)) == (True, None)
    for each in (queue, tasks):
        each.configure(db, paused=False)
    assert queue.wait(db, 0.02)
    assert [item.value for item in queue.pop_many(db, 9)] == [1, 2]
    assert tasks.pop(db).payload == 1


def test_another_handle_notices_a_pause_within_a_second(db: Any, name: str, clock: Clock) -> None:
    ours, other = PriorityQueue.named(db, name), PriorityQueue.named(db, name)
    ours.push_many(db, range(3))
    assert other.pop(db).value == 0
    ours.configure(db, paused=True)
    assert other.claim(db) is None  # at once
    clock.advance(1)
    assert other.pop(db) is None
    ours.configure(db, paused=False)
    assert other.claim(db).item.value == 1


# Errors


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("cannot read a\udcff", "cannot read a\\udcff"),
        (ValueError("no such address"), "ValueError: no such address"),
        ("x" * 5_000, "x" * 1_000),
        (None, None),
    ],
)
def test_a_dead_letter_keeps_its_error(db: Any, space: Subspace, error: Any, kept: Any) -> None:
    queue = PriorityQueue(space["jobs"], max_attempts=1)
    queue.push(db, 1)
    queue.nack(db, queue.claim(db), error=error)
    assert [letter.error for letter in queue.items(db, state="dead")] == [kept]


def test_a_clock_before_1970_raises_and_changes_nothing(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(clock, "time_ns", lambda: -1)
        for push in (lambda: queue.push(db, "x"), lambda: queue.push(db, "x", delay=5)):
            with pytest.raises(ClockOutOfRange, match="clock is before 1970 or after 2262"):
                push()
    assert queue.size(db) == 0
