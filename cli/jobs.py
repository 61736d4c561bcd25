"""The command `fdbq jobs`."""

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

    The delays are the first and the longest between attempts. A function that decides about
    retries, a unique key or a group is shown by name; `yes` means unique by all arguments. The
    database is not opened.

    \b
    Example:
      fdbq jobs --app shop:app
    """
    found = [job for _, job in sorted(loaded_app(app).jobs.items())]
    show_table(_COLUMNS, [found], _fields, _row, "no jobs")


def _fields(job: Job[Any, Any, Any, Any]) -> dict[str, Any]:
    settings = job.settings
    return {
        "job": job.name,
        "queue": settings.queue,
        "priority": settings.priority,
        "retry": _policy(settings.retry),
        "timeout": settings.timeout,
        "unique": _name(settings.unique),
        "group": _name(settings.group),
        "version": job.version,
    }


def _policy(retry: Retry | Callable[..., object]) -> Any:
    if not isinstance(retry, Retry):
        return _name(retry)
    kinds = {"on": _names(retry.on), "never_on": _names(retry.never_on)}
    times = {name: validate_seconds(name, getattr(retry, name)) for name in ("first", "longest")}
    fixed = {"attempts": retry.attempts, "factor": retry.factor, "jitter": retry.jitter}
    return {**fixed, **times, **kinds}


def _names(kinds: type[Exception] | tuple[type[Exception], ...]) -> list[str]:
    return [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]


def _name(option: object) -> Any:
    return getattr(option, "__qualname__", repr(option)) if callable(option) else option


def _row(job: Job[Any, Any, Any, Any]) -> list[str]:
    fields = _fields(job)
    attempts, delays, policy = "-", fields["retry"], fields["retry"]
    if isinstance(job.settings.retry, Retry):
        attempts = "any" if policy["attempts"] is None else policy["attempts"]
        delays = " to ".join(text_of_seconds(policy[each]) for each in ("first", "longest"))
    fields["timeout"] = fields["timeout"] and text_of_seconds(fields["timeout"])
    fields["unique"] = "yes" if fields["unique"] is True else fields["unique"]
    cells = {**fields, "attempts": attempts, "delays": delays}
    return ["-" if cells[title] is None else str(cells[title]) for title in _COLUMNS]
