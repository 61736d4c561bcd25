"""The command `fdbq jobs`, which lists the jobs of an app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fdbqueue.jobs import Retry
from fdbqueue.jobs.job import Job
from fdbqueue.queue.arguments import text_of_seconds, validate_seconds

from .command import JSON
from .loading import loaded_app
from .options import option
from .output import show_table

_COLUMNS = (
    *("job", "queue", "priority", "attempts", "delays", "timeout"),
    *("unique", "group", "version"),
)


@click.command(
    params=[
        option(
            "--app", metavar="MODULE:APP", required=True, help="The app that declares the jobs."
        ),
        JSON,
    ]
)
def jobs(app: str) -> None:
    """List the jobs that an app declares, with their queues, retry policies and other options.

    The delays are those after the first failure and after many. A function that decides about
    retries, or returns the unique key or the group, is shown by its name. A job that is unique by
    its arguments is marked `yes`. The database is not opened.

    \b
    Example:
      fdbq jobs --app shop:app
    """
    found = [job for _, job in sorted(loaded_app(app).jobs.items())]
    show_table(_COLUMNS, [found], _fields, _row, "no jobs")


def _fields(job: Job[Any, Any, Any, Any]) -> dict[str, Any]:
    """Return what is declared about a job, with times in seconds."""
    settings = job.settings
    return {
        "job": job.name,
        "queue": settings.queue,
        "priority": settings.priority,
        "retry": _policy(settings.retry),
        "timeout": settings.timeout,
        "unique": _name(settings.unique) if callable(settings.unique) else settings.unique,
        "group": _name(settings.group) if callable(settings.group) else settings.group,
        "version": job.version,
    }


def _policy(retry: Retry | Callable[..., object]) -> dict[str, Any] | str:
    if not isinstance(retry, Retry):
        return _name(retry)
    return {
        "attempts": retry.attempts,
        "first": validate_seconds("first", retry.first),
        "factor": retry.factor,
        "longest": validate_seconds("longest", retry.longest),
        "jitter": retry.jitter,
        "on": _names(retry.on),
        "never_on": _names(retry.never_on),
    }


def _names(kinds: type[Exception] | tuple[type[Exception], ...]) -> list[str]:
    return [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _row(job: Job[Any, Any, Any, Any]) -> list[str]:
    fields, retry, timeout = _fields(job), job.settings.retry, job.settings.timeout
    attempts, delays = "-", _policy(retry)
    if isinstance(retry, Retry):
        attempts = "any" if retry.attempts is None else str(retry.attempts)
        bounds = (validate_seconds("delay", each) for each in (retry.first, retry.longest))
        delays = " to ".join(map(text_of_seconds, bounds))
    return [
        job.name,
        job.settings.queue,
        str(job.settings.priority),
        attempts,
        str(delays),
        "-" if timeout is None else text_of_seconds(timeout),
        "yes" if fields["unique"] is True else fields["unique"] or "-",
        fields["group"] or "-",
        str(job.version),
    ]
