"""How a command is declared."""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import click

import fdbqueue
from fdbqueue import embedded
from fdbqueue.errors import FdbqueueError, LockTimeout, QueueNotFound
from fdbqueue.queue.overview import database_name, queue_names
from fdbqueue.types import Database

from .arguments import Duration, usage_errors
from .logs import log_to_stderr
from .opening import check_integrity, chosen_database, open_database
from .options import argument, flag, option, options_of
from .output import AS_JSON


def _complete_queue(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    try:
        db = open_database(chosen_database(context, context.params.get("url")), False)
        db.options.set_transaction_timeout(1000)
        return [name for name in queue_names(db) if name.startswith(incomplete)]
    except (FdbqueueError, click.UsageError):
        return []  # an error would be printed into the command line that the user is typing
    except fdbqueue.error_classes():
        return []


QUEUE = argument("queue", shell_complete=_complete_queue)
QUEUES = argument("queues", metavar="[QUEUE]...", nargs=-1, shell_complete=_complete_queue)
ID = argument("id")
IDS = argument("ids", metavar="[ID]...", nargs=-1)
YES = flag("-y", "--yes", help="Do not ask for confirmation.")


def database_option(*names: str) -> click.Option:
    """Return the option for the database."""
    return option(
        *names,
        "url",
        metavar="DATABASE",
        show_default="$FDBQ_DB, else $FDB_CLUSTER_FILE, else the user's data directory",
        help="Database: a directory, embedded:PATH, or a FoundationDB cluster file.",
    )


def _note_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[AS_JSON] = value


JSON = flag(
    "--json", help="Print JSON, one object per line.", expose_value=False, callback=_note_json
)

_OF_EVERY_COMMAND = [
    option(
        "--timeout",
        type=Duration(0, 1_000_000),
        default=10,
        help="Maximum time for a database transaction, including retries; 0 for no limit.",
    ),
    JSON,
    flag("-v", "--verbose", help="Log pushes, pops and jobs to standard error."),
]


def command(
    *params: click.Parameter,
    name: str | None = None,
    group: click.Group | None = None,
    opens: bool = True,
    creates: bool = False,
    database: tuple[str, ...] = ("--db",),
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command, which gets the open database as `db` if it `opens`.

    Each keyword-only parameter is an option, with its help in the docstring. `params` are the
    others. `creates` creates a missing database, as a true parameter `create` does. `database`
    names the option for the database.
    """

    def declare(function: Callable[..., None]) -> click.Command:
        run = on_database(usage_errors()(function), creates) if opens else function
        own = options_of(function, omit={each.name for each in params})
        every = [*params, *own, database_option(*database), *_OF_EVERY_COMMAND]
        help = inspect.cleandoc(function.__doc__ or "").partition("\n\nOptions:\n")[0]
        declared = click.command(name or function.__name__, params=every, help=help)(run)
        if group is not None:
            group.add_command(declared)
        return declared

    return declare


def on_database(function: Callable[..., None], creates: bool) -> Callable[..., None]:
    """Return a function that opens the database, calls `function`, and closes the database."""

    @functools.wraps(function)
    def run(
        *,
        url: str | None,
        timeout: float,
        verbose: bool,
        **given: Any,
    ) -> None:
        log_to_stderr(logging.DEBUG if verbose else logging.WARNING)
        url = chosen_database(click.get_current_context(), url)
        db = open_database(url, creates or bool(given.get("create")))
        try:
            db.options.set_transaction_timeout(math.ceil(timeout * 1000))
            with explained_time_outs(db, timeout):
                function(db=db, **given)
        except QueueNotFound:
            check_integrity(db)
            raise
        finally:
            if isinstance(db, embedded.Database):
                db.close()

    return run


@contextmanager
def explained_time_outs(db: Database, timeout: float) -> Generator[None]:
    """Replace a time-out of the database by a message that says what to do."""
    try:
        yield
    except fdbqueue.error_classes() as error:
        if error.code != 1031:
            raise
        message = f"the database did not answer within {timeout:g} seconds (--timeout)"
        if isinstance(error, LockTimeout):
            message += f": {error.reason}"
        if not isinstance(db, embedded.Database):
            file = database_name(db)
            message += f"; `fdbcli -C {file} --exec status` shows whether the cluster is up"
        raise click.ClickException(message) from error


_OTHER_NAMES = {
    **{"add": "push", "enqueue": "push", "dequeue": "pop", "get": "pop", "run": "work"},
    **{"list": "ls", "queues": "ls", "status": "stats", "delete": "rm", "remove": "rm"},
}
"""The names that other programs give to commands."""


class Group(click.Group):
    """A group of commands that suggests similar names for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and the remaining arguments."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            other = _OTHER_NAMES.get(name)
            similar = [other] if other in known else get_close_matches(name, known, n=2, cutoff=0.7)
            hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
            ctx.fail(f"No such command {name!r}{hint}")
        return super().resolve_command(ctx, args)
