"""The command `fdbqueue_work`, which runs tasks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from traceback import format_exception
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
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
    task_backends,
    task_finished,
    task_started,
)
from fdbqueue.contrib.django.backend import FdbqueueBackend
from fdbqueue.contrib.django.declared import declared_tasks
from fdbqueue.contrib.django.options import options_of
from fdbqueue.contrib.django.results import result_of
from fdbqueue.errors import FdbqueueError, LeaseLost
from fdbqueue.jobs import App, Context, Dead, Discard
from fdbqueue.jobs.retry import decided
from fdbqueue.queue.arguments import validate_result

_LEVELS = {0: logging.ERROR, 1: logging.INFO}


class Command(BaseCommand):
    """Run the tasks of a backend."""

    help = "Run the tasks of a backend on fdbqueue, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command."""
        add = parser.add_argument
        add("queues", nargs="*", metavar="QUEUE", help="Only these queues of the backend.")
        add("--backend", default="default", help="The name in TASKS (default: %(default)s).")
        add(
            "--concurrency",
            type=int,
            default=10,
            help="Number of tasks of each queue to run at a time, each in a thread "
            "(default: %(default)s).",
        )
        add(
            "--lease",
            default="30s",
            help="Time until others take over from a worker that died (default: %(default)s).",
        )
        add("--name", help="Name of the worker (default: the host and the process id).")
        add("--drain", action="store_true", help="Exit when no task is ready.")

    def handle(
        self,
        *,
        queues: list[str],
        backend: str,
        concurrency: int,
        lease: str,
        name: str | None,
        drain: bool,
        verbosity: int,
        **_options: Any,
    ) -> None:
        """Run the worker."""
        chosen = task_backends[backend] if backend in task_backends.settings else None
        if not isinstance(chosen, FdbqueueBackend):
            raise CommandError(f"the task backend {backend!r} is not an FdbqueueBackend")
        unknown = {*queues} - chosen.queues
        if chosen.queues and unknown:
            known = ", ".join(sorted(chosen.queues))
            raise CommandError(f"the backend has no queue {min(unknown)!r}; its QUEUES: {known}")
        names = queues or sorted(chosen.queues)
        if not names:
            raise CommandError("the QUEUES of the backend are empty; name the queues to work on")
        logger = logging.getLogger("fdbqueue")
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler(self.stderr))
            logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))
        try:
            app = worker_app(chosen)
            report = app.work(*names, concurrency=concurrency, lease=lease, name=name, drain=drain)
        except (FdbqueueError, ValueError) as error:
            raise CommandError(str(error)) from error
        if verbosity:
            self.stdout.write(f"{report.done:,} done, {report.failed:,} failed")
        if drain and report.failed:
            sys.exit(1)


def worker_app(backend: FdbqueueBackend) -> App:
    """Return an app whose jobs are the tasks of this process, for its `work`.

    It imports the module `tasks` of each installed app. Other modules with tasks must be imported
    already, for example by the URL configuration or by the `ready` of an app.

    Args:
        backend: The backend whose queues the worker works on.
    """
    autodiscover_modules("tasks")
    app = App(backend.app.db)
    for path, task in declared_tasks().items():
        options = options_of(task.func)
        policy = backend.retry if options.retry is None else options.retry
        job = app.job(name=path, queue=task.queue_name, retry=policy, timeout=options.timeout)
        job(_function(backend, task, policy))
    return app


def _function(backend: FdbqueueBackend, task: Task[..., Any], policy: Any) -> Callable[..., Any]:
    """Return the function of the job that runs a task."""

    def run(context: Context, *args: Any, **kwargs: Any) -> Any:
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
