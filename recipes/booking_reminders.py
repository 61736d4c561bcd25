"""Reminders of bookings: the fewer days are left, the more urgent; each has to go out in time.

    python -m recipes.booking_reminders

A reminder's deadline is the event minus the notice that the guest is owed. Its priority follows
from the days that are left when it is scheduled.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fdbqueue import TaskPriority, TaskQueue, open

DAYS = [
    (1, TaskPriority.CRITICAL),
    (3, TaskPriority.HIGH),
    (7, TaskPriority.MEDIUM),
    (30, TaskPriority.LOW),
]
"""Up to how many days before the event a reminder has which priority."""


def priority_of(left: timedelta) -> TaskPriority:
    """How urgent a reminder is if so much time is left until the event."""
    for days, priority in DAYS:
        if left <= timedelta(days=days):
            return priority
    return TaskPriority.DEFERRED


def remind(
    tr: Any, reminders: TaskQueue, guest: str, event: datetime, notice: timedelta, now: datetime
) -> str | None:
    """Have a guest reminded of an event, `notice` before it; `now` is made outside of `tr`."""
    return reminders.push(
        tr,
        priority=priority_of(event - now),
        deadline=event - notice,
        client_id=guest,
        payload={"guest": guest, "event": event.isoformat()},
    )


if __name__ == "__main__":
    db = open("memory:")
    reminders = TaskQueue.named(db, "reminders")
    now = datetime(2030, 1, 1, 9, tzinfo=UTC)
    for guest, days, hours in [("ada", 20, 24), ("bob", 2, 24), ("eve", 0.5, 3), ("dan", 2, 36)]:
        event = now + timedelta(days=days)
        remind(db, reminders, guest, event, timedelta(hours=hours), now)
    while (task := reminders.pop(db)) is not None:
        print(task.payload["guest"], task.priority.name, "until", task.deadline)
