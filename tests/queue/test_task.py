"""The task queue: its order, fields, statistics and validation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from fdbqueue import Task, TaskPriority, TaskQueue, create_deadline
from fdbqueue.errors import WrongState

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
CRITICAL, HIGH, MEDIUM, LOW, DEFERRED = TaskPriority


@pytest.fixture
def tasks(db: Any, name: str) -> TaskQueue:
    """Return an empty task queue."""
    return TaskQueue.named(db, name)


def payloads(found: Any) -> list[Any]:
    return [task.payload for task in found]


# Order


def test_tasks_are_ordered_by_priority_then_deadline_then_cost_then_creation(
    db: Any, tasks: TaskQueue
) -> None:
    late = NOON + timedelta(hours=5)
    in_order: list[dict[str, Any]] = [
        {"priority": CRITICAL, "cost": 99},
        {"priority": HIGH, "deadline": NOON, "cost": 5},
        {"priority": HIGH, "deadline": late, "cost": 1},
        {"priority": HIGH, "deadline": late, "cost": 1.5},
        {"priority": HIGH},
        {"priority": HIGH},
        {"priority": HIGH, "cost": 2},
        {"priority": DEFERRED, "deadline": NOON - timedelta(days=99)},
    ]
    numbered = [{**task, "payload": number} for number, task in enumerate(in_order)]
    for task in [numbered[n] for n in (7, 4, 6, 3, 0, 5, 2, 1)]:
        tasks.push(db, **task)
    assert payloads(tasks.get_all_tasks(db)) == list(range(8))
    assert [tasks.pop(db).payload for _ in range(4)] == [0, 1, 2, 3]
    assert payloads(tasks.pop_many(db, 10)) == [4, 5, 6, 7]
    assert tasks.pop(db) is None


def test_a_task_is_returned_as_it_was_pushed(db: Any, tasks: TaskQueue) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    deadline = datetime(2026, 5, 4, 14, 30, 0, 123456, timezone(timedelta(hours=2)))
    payload = {"invoice": "ü", "lines": [1, None, 2.5], "large": "x" * 200_000}
    fields: Any = {"deadline": deadline, "agent_name": "ada\x00", "client_id": "7"}
    task_id = tasks.push(db, priority=1, cost=Decimal("12.50"), payload=payload, **fields)
    last = tasks.push(db, payload=1)
    task = tasks.peek(db)
    assert before <= task.created_at <= datetime.now(UTC)
    assert task == Task(task_id, CRITICAL, deadline, 12.5, "ada\x00", "7", payload, task.created_at)
    assert task == tasks.get_task(db, task_id)
    assert tasks.pushed_at(task) == tasks.pushed_at(task_id) == task.created_at
    assert [tasks.position(db, each) for each in (task_id, last)] == [0, 1]

    popped = tasks.pop_many(db, 1)
    assert popped == [task]
    assert tasks.get_task(db, task_id) is tasks.state(db, task) is None
    tasks.put_back(db, popped)
    assert tasks.update(db, task_id, priority=LOW)
    tasks.put_back(db, popped)  # where it has moved, it is there
    assert [each.id for each in tasks.get_all_tasks(db)] == [last, task_id]
    assert tasks.remove(db, task)
    assert not tasks.remove(db, task)


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_deadlines_are_ordered_by_time_in_any_zone_and_century(
    db: Any, tasks: TaskQueue, year: int
) -> None:
    zones = [timezone(timedelta(hours=hours)) for hours in (5, 0, -5)]  # east to west
    times = [datetime(year, 1, 1, tzinfo=zone) for zone in zones]
    if year in (1, 9999):
        bad = times.pop(0 if year == 1 else 2)
        if year == 9999:
            bad = bad.replace(month=12, day=31, hour=23)
        with pytest.raises(ValueError, match="deadline"):  # outside of the calendar in UTC
            tasks.push(db, deadline=bad)
    tasks.push_many(db, [{"deadline": time} for time in (None, *reversed(times))])
    assert [task.deadline for task in tasks.pop_many(db, 4)] == [*times, None]


def test_create_deadline_adds_an_offset_to_the_current_time() -> None:
    now = datetime.now(UTC)
    ahead = create_deadline(days_ahead=1, hours_ahead=2, minutes_ahead=3) - now
    assert timedelta(0) <= ahead - timedelta(days=1, hours=2, minutes=3) < timedelta(minutes=1)


# Agents and clients


def test_tasks_are_found_by_agent_and_client(db: Any, tasks: TaskQueue) -> None:
    agents = ("ada", "ada", "bob", "adam", None)
    fields = ("agent_name", "client_id", "priority")
    found_by = [(agents[n % 5], str(n % 3), 5 - n % 7 % 5) for n in range(700)]  # more than a page
    tasks.push_many(db, [dict(zip(fields, each)) for each in found_by])
    everything = list(tasks.get_all_tasks(db))
    for agent in ("ada", "bob", "adam", "nobody"):
        expected = [task for task in everything if task.agent_name == agent]
        assert list(tasks.get_tasks_for_agent(db, agent)) == expected
    for client in ("0", "3"):
        expected = [task for task in everything if task.client_id == client]
        assert list(tasks.get_tasks_for_client(db, client)) == expected


def test_an_update_changes_a_task_and_keeps_its_id(db: Any, tasks: TaskQueue) -> None:
    first, second = tasks.push_many(
        db, [{"payload": n, "deadline": NOON, "agent_name": "ada", "cost": 3} for n in range(2)]
    )
    before = tasks.get_task(db, second)
    changed = tasks.update(db, second, priority=CRITICAL)
    assert before is not None
    assert tasks.get_task(db, second) == changed == replace(before, priority=CRITICAL)
    assert [tasks.position(db, each) for each in (first, second)] == [1, 0]
    assert tasks.update(db, first, priority=CRITICAL)
    assert tasks.update(db, second, priority=CRITICAL)  # keeps its place
    assert [task.id for task in tasks.get_tasks_for_agent(db, "ada")] == [second, first]
    later = tasks.update(db, second, payload="new", agent_name="bob", cost=4, deadline=None)
    assert later == replace(
        before, priority=CRITICAL, payload="new", agent_name="bob", cost=4, deadline=None
    )
    assert tasks.get_task(db, second) == later
    assert [tasks.position(db, each) for each in (first, second)] == [0, 1]
    tasks.pop_many(db, 2)
    with pytest.raises(WrongState):
        tasks.update(db, first, priority=HIGH)


# Statistics


def test_statistics_count_tasks_by_outcome(db: Any, tasks: TaskQueue) -> None:
    empty = tasks.get_stats(db)
    assert (empty.success_rate, empty.rejection_rate, empty.oldest) == (0, 0, None)
    tasks.configure(db, max_size=6)
    ids = [tasks.push(db, priority=1 + n % 2, agent_name="ab"[n % 2]) for n in range(8)]
    assert ids[6:] == [None, None]
    oldest = tasks.get_task(db, ids[0]).created_at
    tasks.update(db, ids[0], priority=5)
    tasks.remove(db, ids[1])
    tasks.pop_many(db, 3)
    stats = tasks.get_stats(db)
    assert (stats.total_pushed, stats.total_popped, stats.total_removed) == (6, 3, 1)
    assert (stats.total_rejected, stats.current_size) == (2, 2)
    assert (stats.success_rate, stats.rejection_rate) == (0.5, 0.25)
    assert stats.by_priority == tasks.counts(db) == {HIGH: 1, DEFERRED: 1}
    assert stats.by_agent == {"a": 1, "b": 1}
    assert stats.oldest == oldest
    assert (tasks.size(db), tasks.is_empty(db)) == (2, False)
    tasks.clear(db)
    assert tasks.get_stats(db) == empty
