"""Shared parts of the commands: the database, the output and the errors."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, BinaryIO, TypeAlias, TypeVar

import click

import fdbqueue
from fdbqueue import Item, PriorityQueue, Queue, TaskQueue, embedded, existing_queue, queue_names
from fdbqueue.errors import FdbqueueError, LockTimeout, QueueNotFound
from fdbqueue.layout.codecs import json_bytes
from fdbqueue.layout.priorities import priority_as_json
from fdbqueue.queue.base import store_of
from fdbqueue.queue.importing import MAX_LINE
from fdbqueue.queue.registry import open_queue
from fdbqueue.types import Database, Priority

__all__ = [
    "PRIORITY",
    "TIME",
    "AnyQueue",
    "NotTold",
    "OutputFailed",
    "PrintFailed",
    "Seconds",
    "any_queue",
    "as_line",
    "command_options",
    "confirm",
    "item_line",
    "json_queue",
    "look_for_damage",
    "print_items",
    "priority_from_json",
    "priority_line",
    "queue_argument",
    "read_value",
    "refuse_for_fifo",
    "tell",
]

_F = TypeVar("_F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A time in seconds."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", parameter, context)
        return super().convert(seconds, parameter, context)


class _Priority(click.ParamType):  # type: ignore[type-arg]
    """A priority in its JSON form: an integer, or the list of a tuple's parts."""

    name = "priority"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            self.fail(
                f"{value[:100]!r} is no integer, nor a list as in '[1, 2.5]'", parameter, context
            )


PRIORITY = _Priority()


class _Time(click.ParamType):  # type: ignore[type-arg]
    """A moment, in the format of ISO 8601."""

    name = "time"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time, as 2030-01-31T08:00+01:00 is", parameter, context)
        if at.utcoffset() is None:
            self.fail(f"{value!r} needs a time zone, as +01:00", parameter, context)
        return at


TIME = _Time()


def command_options(*, creates: bool = False) -> Callable[[_F], _F]:
    """The options of every command: which database, how long to wait for it, `--json`, `-v`.

    The command gets the database as `db`; it is closed when the command ends. Only one that
    `creates` makes a database where there is none.
    """
    return functools.partial(_with_options, creates=creates)


def _with_options(command: _F, creates: bool) -> _F:
    @functools.wraps(command)
    def on_database(
        *args: Any,
        url: str | None,
        cluster_file: str | None,
        timeout: float,
        verbose: bool,
        **kwargs: Any,
    ) -> Any:
        if verbose:
            logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.INFO)
        db = _open(url, cluster_file, creates)
        try:
            db.options.set_transaction_timeout(math.ceil(timeout * 1000))
            return command(*args, db=db, **kwargs)
        except QueueNotFound:
            look_for_damage(db)
            raise
        except fdbqueue.error_classes() as error:
            if error.code != 1031:
                raise
            sentence = f"the database did not answer within {timeout:g} seconds (--timeout)"
            if isinstance(error, LockTimeout):
                sentence += f": {error.reason}"
            if not isinstance(db, embedded.Database):
                file = cluster_file or url or os.environ.get("FDB_CLUSTER_FILE") or "CLUSTER_FILE"
                sentence += f"; `fdbcli -C {file} --exec status` tells whether the cluster is up"
            raise click.ClickException(sentence) from error
        finally:
            if hasattr(db, "close"):
                db.close()

    options = (
        click.option(
            "--db",
            "url",
            metavar="DATABASE",
            help="A directory, 'embedded:/path', or the cluster file of a FoundationDB. Without "
            "it: $FDBQ_DB, else the cluster of $FDB_CLUSTER_FILE, else the user's data directory.",
        ),
        click.option(
            "-C",
            "--cluster-file",
            type=click.Path(exists=True, dir_okay=False),
            help="The cluster file of a FoundationDB.",
        ),
        click.option(
            "--timeout",
            metavar="SECONDS",
            type=Seconds(0, 1_000_000),
            default=10,
            show_default=True,
            help="How long a transaction may take, with all its attempts; 0: any time.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print lines of JSON."),
        click.option(
            "-v", "--verbose", is_flag=True, help="Log to standard error what comes and goes."
        ),
    )
    for option in reversed(options):
        on_database = option(on_database)
    return on_database  # type: ignore[return-value]


def _open(url: str | None, cluster_file: str | None, create: bool) -> Any:
    """Open the database that the command line names."""
    if url is not None and cluster_file is not None:
        raise click.UsageError("--db and --cluster-file name a database each; give one of them")
    try:
        return fdbqueue.open(url if cluster_file is None else cluster_file, create=create)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def look_for_damage(db: Database, seconds: float | None = 1.0) -> None:
    """Raise `CorruptDatabase` for a damaged file, after a command that has listed what is there.

    Damage can hide items and queues from a list, which must not pass for a whole one. The check
    reads about a gigabyte a second, and gives up in time; one without limit is `fdbq check`.
    """
    if isinstance(db, embedded.Database):
        db.check_integrity(seconds)


def _complete_queue(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    try:
        db = _open(context.params.get("url"), context.params.get("cluster_file"), False)
        db.options.set_transaction_timeout(1000)
        return [name for name in queue_names(db) if name.startswith(incomplete)]
    except (FdbqueueError, click.UsageError):
        return []  # no suggestion is better than an error in the middle of a command line
    except fdbqueue.error_classes():
        return []


queue_argument = click.argument("queue", shell_complete=_complete_queue)


def as_line(value: Any) -> str:
    """A JSON value on one line."""
    return json_bytes(value).decode()


def priority_line(priority: Any) -> str:
    """A priority as `-p` takes it."""
    return as_line(priority_as_json(priority))


def item_line(item: Item) -> str:
    """An item as a line of JSON."""
    priority = priority_as_json(item.priority)
    return as_line({"id": item.id, "priority": priority, "value": item.value})


def print_items(items: list[Item], as_json: bool) -> None:
    """The values of items, one a line; with `--json`, their ids and priorities too.

    Each line is out before the next one; `PrintFailed` tells which items are not.
    """
    for number, item in enumerate(items):
        try:
            click.echo(item_line(item) if as_json else as_line(item.value))
            sys.stdout.flush()
        except BaseException as error:
            raise PrintFailed(items[number:]) from error


class OutputFailed(Exception):
    """Standard output did not take what was printed."""


class PrintFailed(OutputFailed):
    """Standard output did not take these items."""

    def __init__(self, left: list[Any]) -> None:
        self.left = left
        super().__init__(f"the output cannot be written; {len(left):,} items are not in it")


def tell(line: str) -> None:
    """Print a line about what was changed, which stays so if it cannot be printed: `NotTold`."""
    try:
        click.echo(line)
        sys.stdout.flush()
    except (OSError, UnicodeError) as error:
        raise NotTold(line, error) from error


def tell_each(
    results: dict[str, bool], done: str, as_json: bool, why_not: Callable[[str], str]
) -> None:
    """Tell of each id whether it is done, and why not; exit code 1 if one is not."""
    for item_id, is_done in results.items():
        if as_json:
            tell(as_line({"id": item_id, done: is_done}))
        elif not is_done:
            click.echo(f"fdbq: {item_id} was not {done}: {why_not(item_id)}", err=True)
    if not as_json:
        tell(f"{sum(results.values()):,} {done}")
    if not all(results.values()):
        sys.exit(1)


class NotTold(OutputFailed):
    """Standard output did not take a line about what was changed."""

    def __init__(self, line: str, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        super().__init__(f"it is done, but the output cannot be written: {reason}; it is {line!a}")


def confirm(question: str) -> None:
    """Go on only after a yes."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            click.echo(err=True)  # no key was hit that ended the line
        raise


AnyQueue: TypeAlias = PriorityQueue | Queue | TaskQueue
"""What a name stands for."""


def any_queue(db: Database, name: str, *, must_exist: bool) -> AnyQueue:
    """The queue that the command line names, of whatever kind; a new one is a priority queue."""
    return existing_queue(db, name) if must_exist else open_queue(db, name)


def item_queue(db: Database, name: str, *, must_exist: bool = False) -> PriorityQueue | Queue:
    """The queue that the command line names, which must not be a task queue."""
    queue = any_queue(db, name, must_exist=must_exist)
    if isinstance(queue, TaskQueue):
        raise click.ClickException(f"{name!r} is a task queue; `fdbq task` is for it")
    return queue


def json_queue(db: Database, name: str, *, must_exist: bool = False) -> PriorityQueue | Queue:
    """Return the named queue, whose values must be JSON."""
    queue = item_queue(db, name, must_exist=must_exist)
    codec = store_of(queue).given_options.codec
    if codec != "json":
        raise click.ClickException(
            f"the values of {name!r} are not JSON, its codec is {codec}; use it from Python"
        )
    return queue


def priority_from_json(queue: PriorityQueue, priority: Any) -> Priority:
    """The priority that the command line gives in its JSON form; raises `InvalidPriority`."""
    return store_of(queue).levels.from_json(priority)


def refuse_for_fifo(name: str, **given: Any) -> None:
    """Raise a usage error for an option that is given, and that a FIFO queue does not have."""
    for option, value in given.items():
        if value:
            raise click.UsageError(f"{name!r} is a FIFO queue, and takes no --{option}")


def read_value(file: BinaryIO) -> bytes:
    """Read a value, and of one that is too long no more than shows that."""
    text = file.read(MAX_LINE + 1)
    if len(text) > MAX_LINE:
        raise click.UsageError(f"the value is longer than {MAX_LINE:,} bytes")
    return text
