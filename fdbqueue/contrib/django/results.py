"""The result of a Django task, made of its item: its status, its errors and its times."""

from __future__ import annotations

import builtins
import re
from datetime import datetime
from typing import Any

from django import conf
from django.utils import timezone

from fdbqueue.contrib.django.api import Task, TaskError, TaskResult, TaskResultStatus
from fdbqueue.types import FailedAttempt, ItemInfo

_STATUS = {
    "ready": TaskResultStatus.READY,
    "delayed": TaskResultStatus.READY,
    "claimed": TaskResultStatus.RUNNING,
}
_HIGHEST = 100  # the bound of Django's priorities
_DISCARD = "fdbqueue.jobs.Discard"
_DIED = "the worker did not end the attempt"
_NO_HANDLER = "fdbqueue.errors.LeaseLost"


def result_of(task: Task[..., Any], alias: str, queue: str, info: ItemInfo) -> TaskResult[..., Any]:
    """Return the result of a task, given its item.

    Args:
        task: The task.
        alias: The name of the backend.
        queue: The name of the queue.
        info: The item.
    """
    failed = info.failed_attempts
    clients = [attempt.client for attempt in failed]
    started = [attempt.started_at for attempt in failed]
    errors = list(map(_error, failed))
    if info.claimed_by is not None:
        clients.append(info.claimed_by)
        started.append(info.claimed_at)
    if info.state == "done":
        status = TaskResultStatus.SUCCESSFUL if info.outcome == "done" else TaskResultStatus.FAILED
    else:
        status = _STATUS.get(info.state, TaskResultStatus.FAILED)
    if info.outcome == "discarded":
        errors.append(TaskError(exception_class_path=_DISCARD, traceback=info.error or ""))
    # Only the last failed attempts are kept, and Django counts the workers.
    clients = [""] * (info.attempts - len(clients)) + clients
    result = TaskResult(
        task=task.using(
            priority=max(-_HIGHEST, min(_HIGHEST, -info.item.priority)),
            queue_name=queue,
            run_after=None if info.attempts else django_time(info.due_at),
            backend=alias,
        ),
        id=info.id,
        status=status,
        enqueued_at=django_time(info.pushed_at),
        started_at=django_time(next(iter(started), None)),
        finished_at=django_time(info.finished_at or info.died_at),
        last_attempted_at=django_time(next(reversed(started), None)),
        args=info.item.value.get("args", []),
        kwargs=info.item.value.get("kwargs", {}),
        backend=alias,
        errors=errors,
        worker_ids=clients,
    )
    object.__setattr__(result, "_return_value", info.result)
    return result


def _error(attempt: FailedAttempt) -> TaskError:
    """Return the error of an attempt; the end of its traceback names the class."""
    text, traceback = attempt.error or "", attempt.traceback
    if traceback is None:  # no handler has raised it: its worker died, or another client failed it
        return TaskError(exception_class_path=_NO_HANDLER, traceback=text or _DIED)
    name = (re.match(r"\w+", text) or [""])[0]
    *_, path = ["", *re.findall(rf"^[ |]*((?:[\w<>]+\.)+{name})(?::|$)", traceback, re.M)]
    module = "builtins" if hasattr(builtins, name) else "__main__"
    return TaskError(exception_class_path=path or f"{module}.{name}", traceback=traceback)


def django_time(moment: datetime | None) -> datetime | None:
    """Return a time as Django's settings want it, with a time zone or without one."""
    return moment if moment is None or conf.settings.USE_TZ else timezone.make_naive(moment)
