"""Uses of the task queue: invoices, booking reminders and debt collection."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import TaskPriority, TaskQueue
from recipes import booking_reminders, debt_collection, invoices

CRITICAL, HIGH, MEDIUM, LOW, DEFERRED = TaskPriority
NOW = datetime(2030, 1, 1, 9, tzinfo=UTC)


@pytest.fixture
def tasks(space: Subspace) -> TaskQueue:
    return TaskQueue(space["tasks"])


def popped(db: Any, tasks: TaskQueue, field: str) -> list[Any]:
    return [(task.payload[field], task.priority) for task in tasks.pop_many(db, 99)]


def test_large_invoices_come_first_then_the_earliest_due(db: Any, tasks: TaskQueue) -> None:
    for number, amount, days in [
        ("a-1", 999.99, 1),
        ("a-2", 100_000, 9),
        ("b-1", 99_999, 5),
        ("b-2", 10_000, 2),
        ("a-3", 10**6, 3),
        ("b-3", 1_000, 1),
    ]:
        invoices.submit(db, tasks, number, amount, NOW + timedelta(days=days))
    mine = [task.payload["number"] for task in tasks.get_tasks_for_client(db, "b")]
    assert mine == ["b-2", "b-1", "b-3"]
    clerks = [task.payload["number"] for task in tasks.get_tasks_for_agent(db, "clerk")]
    assert clerks == ["b-3", "a-1"]
    assert popped(db, tasks, "number") == [
        ("a-3", CRITICAL),
        ("a-2", CRITICAL),
        ("b-2", HIGH),
        ("b-1", HIGH),
        ("b-3", MEDIUM),
        ("a-1", LOW),
    ]


def test_reminders_are_ordered_by_days_left_then_by_deadline(db: Any, tasks: TaskQueue) -> None:
    for guest, days, hours in [
        ("in a year", 365, 24),
        ("in a month", 30, 24),
        ("in a week", 7, 24),
        ("long notice", 2, 47),
        ("short notice", 2, 1),
        ("tonight", 0.5, 3),
    ]:
        event, notice = NOW + timedelta(days=days), timedelta(hours=hours)
        booking_reminders.remind(db, tasks, guest, event, notice, NOW)
    first = tasks.peek(db)
    assert first.deadline == NOW + timedelta(hours=9)
    assert popped(db, tasks, "guest") == [
        ("tonight", CRITICAL),
        ("long notice", HIGH),
        ("short notice", HIGH),
        ("in a week", MEDIUM),
        ("in a month", LOW),
        ("in a year", DEFERRED),
    ]


def test_debts_are_ordered_by_days_overdue_then_by_cost(db: Any, tasks: TaskQueue) -> None:
    today = date(2030, 6, 1)
    for debtor, amount, days in [
        ("not yet", 10, 0),
        ("a day", 10, 1),
        ("a month", 10, 30),
        ("two months", 10, 60),
        ("large", 50_000, 95),
        ("small", 50, 90),
    ]:
        debt_collection.collect(db, tasks, debtor, amount, today - timedelta(days=days), today)
    assert tasks.peek(db).cost == 2.5
    assert popped(db, tasks, "debtor") == [
        ("small", CRITICAL),
        ("large", CRITICAL),
        ("two months", HIGH),
        ("a month", MEDIUM),
        ("a day", LOW),
        ("not yet", DEFERRED),
    ]
