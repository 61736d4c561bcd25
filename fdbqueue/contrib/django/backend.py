"""The backend, which pushes tasks as jobs and reads their results."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ParamSpec, TypeVar, cast

from django import conf
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from fdbqueue import admin
from fdbqueue.contrib.django.api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from fdbqueue.contrib.django.declared import declared_task, options_of
from fdbqueue.errors import InvalidItemId
from fdbqueue.jobs.app import App
from fdbqueue.jobs.retry import Retry
from fdbqueue.types import FailedAttempt, ItemInfo

_P = ParamSpec("_P")
_R = TypeVar("_R")

_OPTIONS = ("database", "keep", "keep_unknown", "retry")
_NO_DATABASE = 'the OPTIONS of the task backend %r have no "database"'
_HINT = 'Name one, such as "embedded:/var/lib/shop", or a cluster file.'

_STATUS = {
    "ready": TaskResultStatus.READY,
    "delayed": TaskResultStatus.READY,
    "claimed": TaskResultStatus.RUNNING,
}
_HIGHEST = 100  # the bound of Django's priorities
_DISCARD = "fdbqueue.jobs.Discard"
_DIED = "the worker did not end the attempt"
_NO_HANDLER = "fdbqueue.errors.LeaseLost"

_apps: dict[tuple[str, Any], App] = {}
_relays: dict[str, list[Any]] = {}  # by the names of backends; they outlive overridden settings


class FdbqueueBackend(BaseTaskBackend):
    """A backend of Django's tasks, which are jobs in the queues of their `queue_name`.

    The `OPTIONS` of the settings are:

    - `database`: The database, or its name as for `fdbqueue.open`.
    - `keep`: Which results are kept, as for `PriorityQueue`; by default for a day.
    - `keep_unknown`: As for `App`; by default a week.
    - `retry`: When to try a task again after an error; by default never.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @cached_property
    def app(self) -> App:
        """The app with the database and the queues, shared by all threads."""
        database = self.options.get("database")
        if database is None:
            raise ImproperlyConfigured(f"{_NO_DATABASE % self.alias}. {_HINT}")
        keep = self.options.get("keep", timedelta(days=1))
        app = App(database, keep=keep)
        app.relays = _relays.setdefault(self.alias, app.relays)
        if not isinstance(database, str):
            return app
        return _apps.setdefault((database, keep), app)

    @property
    def retry(self) -> Any:
        """The default policy of tasks."""
        return self.options.get("retry", Retry(attempts=1))

    def enqueue(
        self, task: Task[_P, _R], args: list[Any], kwargs: dict[str, Any]
    ) -> TaskResult[_P, _R]:
        """Push a task as a job.

        Raises:
            InvalidTask: The backend cannot run the task, or no worker could find it.
        """
        pushed = self.arguments_of(task, args, kwargs)
        queue = self.app.queue(task.queue_name)
        item = queue.push(self.app.db, **pushed)
        if not item.is_new:
            return cast("TaskResult[_P, _R]", self.get_result(item.id))
        result: TaskResult[_P, _R] = TaskResult(
            task=task,
            id=item.id,
            status=TaskResultStatus.READY,
            enqueued_at=django_time(queue.pushed_at(item)),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=pushed["value"]["args"],
            kwargs=pushed["value"]["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def arguments_of(
        self, task: Task[_P, _R], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of `PriorityQueue.push` for a task; raise `InvalidTask`."""
        self.validate_task(task)
        found = declared_task(task.module_path)
        if found is None or found.func is not task.func:
            raise InvalidTask(
                f"no worker can find the task {task.module_path!r}: give it the name of its "
                "function, at the top level of a module"
            )
        unique, at = options_of(task.func).unique, task.run_after
        value: Any = {"job": task.module_path, "args": [*args], "kwargs": {**kwargs}}
        return {
            "value": normalize_json(value),
            "priority": -int(task.priority),
            "at": timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at,
            "unique": unique(*args, **kwargs) if callable(unique) else unique,
        }

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """Return the result of a task.

        Raises:
            TaskResultDoesNotExist: It is not kept, or no module of this process declares the task.
        """
        found = self.find(result_id)
        stored = None if found is None else found[1].job
        if found is None or stored is None:
            raise TaskResultDoesNotExist(result_id)
        task = declared_task(stored.name)
        if task is None:
            autodiscover_modules("tasks")
            task = declared_task(stored.name)
        if task is None:
            raise TaskResultDoesNotExist(f"{result_id}: no imported module has {stored.name!r}")
        return result_of(task, self.alias, *found)

    def find(self, result_id: str) -> tuple[str, ItemInfo] | None:
        """Return the name of a task's queue and its item, or `None`."""
        for name in sorted(self.queues) or admin.queue_names(self.app.db):
            try:
                info = self.app.queue(name).get(self.app.db, result_id)
            except InvalidItemId:
                return None
            if info is not None:
                return name, info
        return None

    def check(self, **kwargs: Any) -> list[Any]:
        """Return what is wrong with the settings."""
        return list(self._check())

    def _check(self) -> Iterator[checks.CheckMessage]:
        if "database" not in self.options:
            yield checks.Error(_NO_DATABASE % self.alias, _HINT, id="fdbqueue.E001")
        for name in self.options.keys() - {*_OPTIONS}:
            yield checks.Error(
                f"the task backend {self.alias!r} has no option {name!r}",
                f"Its options are {', '.join(_OPTIONS)}.",
                id="fdbqueue.E002",
            )
        if not apps.is_installed("fdbqueue.contrib.django"):
            yield checks.Warning(
                "manage.py has no command fdbqueue_work, which runs the tasks of the backend "
                f"{self.alias!r}",
                "Add 'fdbqueue.contrib.django' to INSTALLED_APPS.",
                id="fdbqueue.W001",
            )


def result_of(task: Task[..., Any], alias: str, queue: str, info: ItemInfo) -> TaskResult[..., Any]:
    """Return the result of a task, given its backend's name, its queue and its item."""
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
    """Return a time with or without a time zone, as Django's settings want it."""
    return moment if moment is None or conf.settings.USE_TZ else timezone.make_naive(moment)
