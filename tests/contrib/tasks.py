"""The tasks of the tests, at the top level of a module, as Django requires."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from django import db

from fdbqueue.contrib.django import options
from fdbqueue.contrib.django.api import task_backends
from fdbqueue.jobs import Discard, Retry, Snooze

if TYPE_CHECKING:
    from django.tasks import task
else:
    try:
        from django.tasks import task
    except ImportError:
        from django_tasks import task

ran: list[Any] = []  # what the tasks of a test have noted
connections: list[Any] = []


@task
def note(*args: Any, **kwargs: Any) -> Any:
    ran.append((args, kwargs))
    return [args, kwargs]


@task
async def double(x: int) -> int:
    return 2 * x


@task(takes_context=True)
def describe(context: Any, x: int) -> list[Any]:
    seen = task_backends["default"].get_result(context.task_result.id)
    return [context.attempt, context.task_result.id, context.task_result.status, seen.status, x]


class Broken(Exception):
    pass


@task
def fail(message: str = "broken") -> None:
    raise Broken(message)


@task
def leave() -> None:
    raise SystemExit("left")


@task
def nested() -> None:
    raise ValueError(ValueError("two\nlines: of text"))


@task
def unserializable() -> object:
    return object()


@task
def too_large() -> str:
    return "x" * 100_000


@task(takes_context=True)
@options(retry=Retry(attempts=3, first=0, jitter=0, on=(OSError,)))
def third_time(context: Any) -> Any:
    if context.attempt < 3:
        raise OSError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def snoozes(context: Any) -> Any:
    ran.append("snoozes")
    if len(ran) < 2:
        raise Snooze(0)
    return context.attempt


@task
def gives_up() -> None:
    raise Discard("the customer has left")


@task
@options(unique=lambda order: f"mail {order}")
def mail(order: int) -> int:
    return order


@task
def use_database() -> None:
    connection = db.connections["default"]  # of this thread
    connection.ensure_connection()
    connections.append(connection)
    ran.append(connection.connection is not None)


release = threading.Event()


@task
@options(timeout=0.01)
def hang() -> None:
    ran.append(threading.current_thread())
    release.wait()


hidden = task(lambda: None)
"""Its function has no name under which a worker finds the task."""

not_a_task = ran.append
