"""The worker, which runs the tasks of this process."""

from __future__ import annotations

from collections.abc import Callable
from traceback import format_exception
from typing import Any

from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from fdbqueue.contrib.django.api import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from fdbqueue.contrib.django.backend import FdbqueueBackend, result_of
from fdbqueue.contrib.django.declared import declared_tasks, options_of
from fdbqueue.errors import LeaseLost
from fdbqueue.jobs import App, Context, Dead, Discard
from fdbqueue.jobs.retry import decided
from fdbqueue.queue.arguments import validate_result


def worker_app(backend: FdbqueueBackend) -> App:
    """Return an app whose jobs are the tasks of this process.

    It imports the module `tasks` of each installed app. Other modules with tasks must already be
    imported.
    """
    autodiscover_modules("tasks")
    given = {name: backend.options[name] for name in {"keep_unknown"} & backend.options.keys()}
    app = App(backend.app.db, **given)
    app.relays += backend.app.relays
    for path, task in declared_tasks().items():
        options = options_of(task.func)
        policy = backend.retry if options.retry is None else options.retry
        job = app.job(name=path, queue=task.queue_name, retry=policy, timeout=options.timeout)
        job(_function(backend, task, policy))
    return app


def _function(backend: FdbqueueBackend, task: Task[..., Any], policy: Any) -> Callable[..., Any]:
    def run(context: Context, /, *args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return call(context, args, kwargs)
        finally:
            close_old_connections()

    def call(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = backend.find(context.item.id)
        if found is None:
            raise LeaseLost(context.item.id)
        result = result_of(task, backend.alias, *found)
        task_started.send(sender=type(backend), task_result=result)
        first = (TaskContext(task_result=result),) if task.takes_context else ()
        try:
            returned = normalize_json(task.call(*first, *args, **kwargs))
            validate_result(returned)
        except BaseException as error:
            # An exit of the task is a failure that no policy tries again.
            outcome = (
                decided(policy, error, context)
                if isinstance(error, Exception)
                else Dead(str(error))
            )
            if isinstance(outcome, (Dead, Discard)):
                finish(result, TaskResultStatus.FAILED, error)
            if outcome is error:
                raise
            raise outcome from error
        if context.cancelled.is_set():
            context.extend()  # raises an error if the worker has given up on the task
        finish(result, TaskResultStatus.SUCCESSFUL, returned)
        return returned

    def finish(result: TaskResult[..., Any], status: TaskResultStatus, end: Any) -> None:
        if status == TaskResultStatus.FAILED:
            result.errors.append(
                TaskError(
                    exception_class_path=f"{type(end).__module__}.{type(end).__qualname__}",
                    traceback="".join(format_exception(end)),
                )
            )
        else:
            object.__setattr__(result, "_return_value", end)
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        task_finished.send(sender=type(backend), task_result=result)

    return run
