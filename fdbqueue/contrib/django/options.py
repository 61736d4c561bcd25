"""The options of a task that Django's decorator does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fdbqueue.jobs.retry import Decision, Retry
from fdbqueue.types import Duration

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
    """Return a decorator that gives the function of a task options of fdbqueue.

    Write it below Django's `@task`. The function stays as it is, so the task also runs on other
    backends, which ignore the options.

    Args:
        retry: When to try the task again after an error: a policy, or a function of the error and
            the context that returns a delay or an outcome. By default that of the backend.
        timeout: The time of an attempt after which it has failed.
        unique: A unique key, or a function of the arguments that returns one: `enqueue` stores
            nothing while an unfinished task has the same key, and returns the result of that one.

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
    """Return the options of the function of a task."""
    return getattr(function, _NAME, TaskOptions())
