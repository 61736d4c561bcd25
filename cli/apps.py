"""Commands for an app: `fdbq deploy`, `relay` and `jobs`."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
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

from .command import JSON, command, database_option, explained_time_outs
from .interrupts import stop_on_signal
from .loading import bound_app, loaded_app
from .logs import log_to_stderr
from .opening import chosen_database, open_database
from .options import flag, option
from .output import count_noun, report, say, show, show_table, wants_json

_COLUMNS = (
    *("job", "queue", "priority", "attempts", "delays", "timeout"),
    *("unique", "group", "version"),
)
_UNKNOWN = ("unknown job", "queue", *STATES)
_TIMEOUT = 10_000  # milliseconds


def _app(help: str) -> click.Option:
    return option("--app", metavar="MODULE:APP", required=True, help=help)


@command(_app("The app that declares the options."), opens=False)
def deploy(app: str, *, check: bool = False, force: bool = False, **given: Any) -> None:
    """Store the options of queues and the schedules that an app declares, and print what changes.

    All of it is one transaction. Workers do the same for their queues when they start.

    \b
    Example:
      fdbq deploy --app shop:app

    Options:
        check: Only print what differs; exit with code 1 if anything does.
        force: Replace also values set by hand since the last deployment, which stay otherwise.
    """
    log_to_stderr(logging.DEBUG if given["verbose"] else logging.WARNING)
    loaded = bound_app(app, given["url"], given["timeout"], create=not check)
    with explained_time_outs(loaded.db, given["timeout"]):
        differences = loaded.deploy(force=force, check=check)
    for each in differences:
        (show if check else report)(asdict(each), str(each))
    if not differences and not wants_json():
        say("nothing differs")
    if check and differences:
        sys.exit(1)


@command(
    _app("The app with the outboxes."),
    flag("--drain", help="Exit when no row is left."),
    opens=False,
)
def relay(app: str, drain: bool, **given: Any) -> None:
    """Push the rows of an app's outboxes to its queues, until Ctrl-C or SIGTERM.

    The workers of the app do this, too. If several processes do it, one pushes at a time.

    \b
    Example:
      fdbq relay --app shop:app
    """
    log_to_stderr(logging.DEBUG if given["verbose"] else logging.WARNING)
    found = bound_app(app, given["url"], given["timeout"])
    if not found.relays:
        raise click.UsageError(f"{app!r} has no outbox; its module has to make one")
    stop = threading.Event()
    with stop_on_signal(lambda _number, _frame: stop.set()), ExitStack() as beside:
        for relaying in found.relays:
            beside.enter_context(relaying(drain))
        if not drain:
            stop.wait()


@click.command(params=[_app("The app that declares the jobs."), database_option("--db"), JSON])
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
    show_table(_COLUMNS, found, _fields, _row, "no jobs")
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
    show_table(_UNKNOWN, unknown, dict, lambda numbers: [*map(str, numbers.values())])
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
