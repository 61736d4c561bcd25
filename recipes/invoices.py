"""Invoices to be approved: large amounts are critical, and of equal ones the first due comes first.

    python -m recipes.invoices

An invoice is a task. Its amount decides how urgent it is, its day of payment is the deadline, and
so nothing has to be sorted when somebody asks for the next one. Its agent approves it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fdbqueue import TaskPriority, TaskQueue, open

LIMITS = [
    (100_000, TaskPriority.CRITICAL),
    (10_000, TaskPriority.HIGH),
    (1_000, TaskPriority.MEDIUM),
    (0, TaskPriority.LOW),
]
"""From which amount on an invoice has which priority."""


def priority_of(amount: float) -> TaskPriority:
    """How urgent it is to approve an invoice of this amount."""
    return next(priority for limit, priority in LIMITS if amount >= limit)


def submit(tr: Any, invoices: TaskQueue, number: str, amount: float, due: datetime) -> str | None:
    """Have an invoice approved; in the transaction that books it, if `tr` is that."""
    return invoices.push(
        tr,
        priority=priority_of(amount),
        deadline=due,
        agent_name="controller" if amount >= 10_000 else "clerk",
        client_id=number.split("-")[0],
        payload={"number": number, "amount": amount},
    )


if __name__ == "__main__":
    db = open("memory:")
    invoices = TaskQueue.named(db, "invoices")
    for number, amount, day in [
        ("acme-1", 900, 3),
        ("acme-2", 250_000, 20),
        ("init-1", 12_000, 9),
        ("init-2", 12_000, 5),
        ("acme-3", 120_000, 7),
    ]:
        submit(db, invoices, number, amount, datetime(2030, 1, day, tzinfo=UTC))
    print(
        "of acme:", [task.payload["number"] for task in invoices.get_tasks_for_client(db, "acme")]
    )
    print("for the clerk:", next(invoices.get_tasks_for_agent(db, "clerk")))
    while (task := invoices.pop(db)) is not None:
        print(task.priority.name, task.deadline, task.payload)
