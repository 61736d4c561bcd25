"""The command `fdbq jobs`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from typing import Any

import click

from fdbqueue import existing_queue
from fdbqueue.errors import NotADatabase
from fdbqueue.jobs import App, Retry
from fdbqueue.jobs.app import database_of, queues_of
from fdbqueue.jobs.job import Job
from fdbqueue.queue.arguments import text_of_seconds, validate_seconds
from fdbqueue.queue.overview import by_job, queue_names
from fdbqueue.types import STATES, Database

from .command import JSON, database_option
from .loading import loaded_app
from .opening import chosen_database, open_database
from .options import option
from .output import count_noun, show, show_table

_COLUMNS = (
    *("job", "queue", "priority", "attempts", "delays", "timeout"),
    *("unique", "group", "version"),
)
_UNKNOWN = ("unknown job", "queue", *STATES)
_TIMEOUT = 10_000  # milliseconds


@click.command(
    params=[
        option(
            "--app", metavar="MODULE:APP", required=True, help="The app that declares the jobs."
        ),
        database_option("--db"),
        JSON,
    ]
)
def jobs(app: str, url: str | None) -> None:
    """List the jobs that an app declares, with their queues, retry policies and other options.

    The delays are the first and the longest between attempts. A function that decides about
    retries, a unique key or a group is shown by name; `yes` means unique by all arguments.

    Then list the names of stored jobs that the app does not know, in the queues of its jobs, among
    the first 500 items of each state. --db replaces the app's own database; if there is none, only
    the app is listed.

    \b
    Example:
      fdbq jobs --app shop:app
    """
    loaded = loaded_app(app)
    found = [job for name, job in sorted(loaded.jobs.items()) if name == job.name]
    show_table(_COLUMNS, [found], _fields, _row, "no jobs")
    bound = chosen_database(click.get_current_context(), url) or database_of(loaded)
    with suppress(NotADatabase):
        if isinstance(bound, str | None):
            bound = open_database(bound, create=False)
        if found:
            bound.options.set_transaction_timeout(_TIMEOUT)
            _show_unknown(loaded, bound)


def _show_unknown(app: App, db: Database) -> None:
    unknown, n = list[dict[str, Any]](), 0
    for name in {*queues_of(app)} & {*queue_names(db)}:
        for found in by_job(db, existing_queue(db, name))["jobs"]:
            numbers = {str(state): found[state] for state in STATES}
            n += sum(numbers.values())
            if found["name"] not in app.jobs:
                unknown.append({"unknown_job": found["name"], "queue": name, **numbers})
    unknown.sort(key=itemgetter("queue", "unknown_job"))
    show_table(_UNKNOWN, [unknown], dict, lambda numbers: [*map(str, numbers.values())])
    text = f"{count_noun(len(unknown), 'unknown name')} among {count_noun(n, 'stored job')}"
    show({"unknown_jobs": len(unknown), "looked_at": n}, text)


def _fields(job: Job[Any, Any, Any, Any]) -> dict[str, Any]:
    settings = job.settings
    alert = settings.alert
    return {
        "job": job.name,
        "queue": settings.queue,
        "priority": settings.priority,
        "retry": _policy(settings.retry),
        "timeout": settings.timeout,
        "unique": _name(settings.unique),
        "group": _name(settings.group),
        "version": job.version,
        "aliases": job.aliases,
        "on_dead": alert and alert.job.name,
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
