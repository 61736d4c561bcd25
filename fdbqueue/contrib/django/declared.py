"""The tasks that imported modules declare, and options that Django lacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

from fdbqueue.contrib.django.api import Task
from fdbqueue.jobs.retry import Decision, Retry
from fdbqueue.types import Duration


def declared_task(path: str) -> Task[..., Any] | None:
    """Return the task at a path, `module.name`, of an imported module, or `None`.

    Nothing is imported by a stored name: a client that writes to the database can call any of these
    tasks with any arguments, but no other function.
    """
    module, _, name = path.rpartition(".")
    found = _names(sys.modules.get(module)).get(name)
    return found if _is_task(found) and found.module_path == path else None


def declared_tasks() -> dict[str, Task[..., Any]]:
    """Return the tasks of all imported modules by their paths."""
    modules = [*sys.modules.values()]
    values = [value for module in modules for value in [*_names(module).values()]]
    paths = {value.module_path for value in values if _is_task(value)}
    found = {path: declared_task(path) for path in sorted(paths)}
    return {path: task for path, task in found.items() if task is not None}


def _names(module: object) -> dict[str, Any]:
    # An entry of a module that must not be imported is `None`.
    return getattr(module, "__dict__", {})


def _is_task(value: object) -> TypeGuard[Task[..., Any]]:
    # By its type: `isinstance` would evaluate Django's lazy objects.
    return issubclass(type(value), Task)


UniqueTask: TypeAlias = str | Callable[..., str]
"""A unique key, or a function of the arguments that returns one."""

_F = TypeVar("_F", bound=Callable[..., Any])

_NAME = "_fdbqueue_options"


class TaskOptions(NamedTuple):
    """The options of a task; see `options`."""

    retry: Retry | Decision | None = None
    timeout: Duration | None = None
    unique: UniqueTask | None = None


def options(
    *,
    retry: Retry | Decision | None = None,
    timeout: Duration | None = None,
    unique: UniqueTask | None = None,
) -> Callable[[_F], _F]:
    """Return a decorator that gives a task's function options of fdbqueue.

    Write it below Django's `@task`. Other backends ignore the options.

    Args:
        retry: When to try the task again, as for a job; by default the policy of the backend.
        timeout: The time after which an attempt fails.
        unique: A unique key, or a function of the arguments that returns one. `enqueue` stores
            nothing while an unfinished task has the same key, and returns the result of that task.

    Raises:
        TypeError: It stands above `@task`.

    Example:
        >>> from fdbqueue.jobs import Retry
        >>> @options(retry=Retry(attempts=5), unique=lambda order: f"mail {order}")
        ... def mail(order: int) -> None: ...
        >>> options_of(mail).unique(7)
        'mail 7'
    """
    given = TaskOptions(retry, timeout, unique)

    def decorate(function: _F) -> _F:
        if not hasattr(function, "__dict__"):
            raise TypeError(f"write @options(...) below @task, above the function: {function!r}")
        vars(function)[_NAME] = given
        return function

    return decorate


def options_of(function: Callable[..., Any]) -> TaskOptions:
    """Return the options of a task's function."""
    return getattr(function, _NAME, TaskOptions())
