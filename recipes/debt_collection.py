"""Collections: the longer a debt is overdue, the more urgent, and of equal ones the cheapest first.

    python -m recipes.debt_collection

The days overdue are the priority. What it costs to collect a debt, a share of its amount, is the
task's cost: of the debts that are equally urgent, the small ones are settled first.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from fdbqueue import TaskPriority, TaskQueue, open

OVERDUE = [
    (90, TaskPriority.CRITICAL),
    (60, TaskPriority.HIGH),
    (30, TaskPriority.MEDIUM),
    (1, TaskPriority.LOW),
]
"""The priority of a debt from each number of days overdue on."""

FEE = 0.05
"""The cost of collecting a debt, as a share of its amount."""


def priority_of(days_overdue: int) -> TaskPriority:
    """Return the priority of a debt that is this many days overdue."""
    for days, priority in OVERDUE:
        if days_overdue >= days:
            return priority
    return TaskPriority.DEFERRED


def collect(
    tr: Any, debts: TaskQueue, debtor: str, amount: float, due: date, today: date
) -> str | None:
    """Have a debt collected; `today` is made outside of `tr`."""
    return debts.push(
        tr,
        priority=priority_of((today - due).days),
        cost=round(amount * FEE, 2),
        client_id=debtor,
        payload={"debtor": debtor, "amount": amount, "due": due.isoformat()},
    )


if __name__ == "__main__":
    db = open("memory:")
    debts = TaskQueue.named(db, "debts")
    today = date(2030, 6, 1)
    for debtor, amount, due in [
        ("ada", 500, date(2030, 5, 20)),
        ("bob", 90_000, date(2030, 2, 1)),
        ("eve", 120, date(2030, 2, 20)),
        ("dan", 70, date(2030, 3, 25)),
    ]:
        collect(db, debts, debtor, amount, due, today)
    while (task := debts.pop(db)) is not None:
        print(task.priority.name, f"costs {task.cost:g}", task.payload)
