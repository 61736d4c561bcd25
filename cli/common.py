"""Parts that commands share: parameter types, options, queues and output."""

from __future__ import annotations

import functools
import getpass
import json
import logging
import math
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar, get_args

import click
from click.types import FuncParamType

import fdbqueue
from fdbqueue import Item, PriorityQueue, Queue, Task, TaskQueue, embedded, existing_queue
from fdbqueue.errors import FdbqueueError, LockTimeout, NotADatabase, QueueNotFound
from fdbqueue.queue.arguments import MAX_INTEGER, seconds_of_text
from fdbqueue.queue.base import Stop, store_of
from fdbqueue.queue.overview import (
    by_state,
    json_bytes,
    priority_as_json,
    queue_names,
    with_stack,
)
from fdbqueue.queue.registry import open_queue, wait_for_queue
from fdbqueue.queue.transfer.importing import MAX_LINE
from fdbqueue.types import Database, Priority, PriorityJson, QueueStats, UniqueUntil

_MAX_TEXT = 120  # characters of an error in a list
_MAX_HINT = 40  # characters of a value in a hint

_R = TypeVar("_R")

if TYPE_CHECKING:
    from fdbqueue.admin import CheckReport, QueueCopy


class Duration(click.FloatRange):
    """A length of time: a number of seconds, or numbers with units, such as 5m or 1h30m."""

    name = "duration"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds; fail for text that is not a length of time, and for NaN."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = seconds_of_text(str(value))
        if math.isnan(seconds):
            self.fail(
                f"{value!r} is not a length of time, such as 90 for seconds, 5m or 1h30m",
                param,
                ctx,
            )
        try:
            number: float = super().convert(seconds, param, ctx)
        except click.BadParameter:
            self.fail(f"the time must be {self._bounds()} seconds, not {value}", param, ctx)
        return number

    def _bounds(self) -> str:
        lowest = f"{'more than' if self.min_open else 'at least'} {self.min:,}"
        return lowest if self.max is None else f"{lowest} and at most {self.max:,}"


# The other types of options are functions: click adds the name of the option to their errors.


def number_of_bytes(text: str) -> int:
    """Return a number of bytes, such as 1000000, 500M or 2G, with units of 1,024."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a number of bytes, such as 500M or 2G")
    bytes_of_unit: int = 1024 ** " KMGT".index(found[2] or " ")
    return int(found[1]) * bytes_of_unit


def priority(value: object) -> Any:
    """Return a priority in its JSON form: an integer, or a list for a tuple."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        text = str(value)[:100]
        raise click.BadParameter(
            f"{text!r} is not an integer or a list such as '[1, 2.5]'"
        ) from None


PRIORITY = FuncParamType(priority)


def aware_time(text: str) -> datetime:
    """Return an ISO 8601 time with a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not an ISO 8601 time such as 2030-01-31T08:00+01:00"
        ) from None
    if found.utcoffset() is None:
        raise click.BadParameter(f"{text!r} needs a time zone, such as +01:00")
    return found


def rate_of(text: str) -> tuple[int, str]:
    """Return the number and the time of a rate."""
    number, _, time = text.partition("/")
    if not (number.isdecimal() and time):
        raise click.BadParameter(f"{text!r} is not a number and a time, such as 100/1m")
    return int(number), time


def bound_or_none(highest: int = MAX_INTEGER) -> Callable[[str], int]:
    """Return a function that returns a number from 1, or 0 for `none`."""

    def bound(text: str) -> int:
        number = 0
        with suppress(ValueError):
            number = int(text)
        if text == "none" or 0 < number <= highest:
            return number
        upto = f" up to {highest:,}" if number > highest else ""
        raise click.BadParameter(f"{text[:100]!r} is not a positive integer{upto} or `none`")

    return bound


def rate_or_none(text: str) -> tuple[int, str] | tuple[()]:
    """Return the number and the time of a rate; nothing for `none`."""
    return () if text == "none" else rate_of(text)


def with_options(
    *options: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Return a decorator that adds options to a command, in the order of its help text."""

    def add(command: Callable[..., _R]) -> Callable[..., _R]:
        return functools.reduce(lambda command, option: option(command), options[::-1], command)

    return add


def push_options(what: str, at_hint: str) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Return a decorator that adds the times and the unique key to a command that pushes.

    Args:
        what: The noun for what is pushed.
        at_hint: The end of the help text of `--at`.
    """
    return with_options(
        click.option(
            "--delay",
            type=Duration(0),
            help=f"Time until the {what} is available, such as 90 for seconds, 5m or 1h30m.",
        ),
        click.option(
            "--at",
            metavar="TIME",
            type=aware_time,
            help=f"Time from which the {what} is available, {at_hint}.",
        ),
        click.option(
            "--ttl",
            type=Duration(0, min_open=True),
            help=f"Time after which the {what} expires unless it was popped or claimed.",
        ),
        click.option(
            "--unique", metavar="KEY", help=f"Push only if no unfinished {what} has this KEY."
        ),
        click.option(
            "--unique-until",
            type=click.Choice(get_args(UniqueUntil)),
            help=f"When the KEY is free again: once the {what} is claimed, or has ended.",
        ),
        click.option(
            "--unique-for",
            type=Duration(0, min_open=True),
            help="Time for which the KEY is not free, instead of --unique-until.",
        ),
    )


def create_option(what: str) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Return the option `--create`, which creates the database and perhaps more."""
    return click.option("--create", is_flag=True, help=f"Create {what} if there is none.")


def number_option(
    *names: str, default: int, help: str, lowest: int = 1, highest: int | None = None
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Return an option for a number in a range, whose default is shown."""
    kind = click.IntRange(lowest, highest)
    return click.option(
        *names, metavar="N", default=default, show_default=True, type=kind, help=help
    )


def database_options(*db_names: str) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Return a decorator that adds the options that name the database.

    Args:
        db_names: The names of the first one, such as `--db`.
    """
    return with_options(
        click.option(
            *db_names,
            "url",
            metavar="DATABASE",
            show_default="$FDBQ_DB, else $FDB_CLUSTER_FILE, else the user's data directory",
            help="Database: a directory, embedded:PATH, or a FoundationDB cluster file.",
        ),
        click.option(
            "-C",
            "--cluster-file",
            type=click.Path(exists=True, dir_okay=False),
            help="FoundationDB cluster file, instead of --db.",
        ),
    )


def command_options(
    *, creates: bool = False, db_names: tuple[str, ...] = ("--db",)
) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Return a decorator that adds the options of every command: database, time limit, output.

    The command receives the open database as `db`. The database is closed when the command ends.

    Args:
        creates: Create the database if it does not exist. Otherwise a command with a parameter
            `create` does so if that is true.
        db_names: The names of the option for the database.
    """
    return with_options(
        database_options(*db_names),
        click.option(
            "--timeout",
            type=Duration(0, 1_000_000),
            default=10,
            show_default=True,
            help="Maximum time for a database transaction, including retries; 0 for no limit.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line."),
        click.option(
            "-v", "--verbose", is_flag=True, help="Log pushes, pops and jobs to standard error."
        ),
        functools.partial(_on_database, creates=creates),
    )


def _on_database(command: Callable[..., _R], creates: bool) -> Callable[..., _R]:
    """Return a command that opens and closes its database."""

    @functools.wraps(command)
    def run_on_database(
        *args: object,
        url: str | None,
        cluster_file: str | None,
        timeout: float,
        verbose: bool,
        **kwargs: object,
    ) -> _R:
        log_to_stderr(logging.INFO if verbose else logging.WARNING)
        if verbose:
            logging.getLogger("fdbqueue.counts").setLevel(logging.INFO)
        url, cluster_file = chosen_database(click.get_current_context(), url, cluster_file)
        db = open_database(url, cluster_file, creates or bool(kwargs.get("create")))
        try:
            db.options.set_transaction_timeout(math.ceil(timeout * 1000))
            return command(*args, db=db, **kwargs)
        except QueueNotFound:
            check_integrity(db)
            raise
        except fdbqueue.error_classes() as error:
            if error.code != 1031:
                raise
            message = f"the database did not answer within {timeout:g} seconds (--timeout)"
            if isinstance(error, LockTimeout):
                message += f": {error.reason}"
            if not isinstance(db, embedded.Database):
                file = cluster_file or url or os.environ.get("FDB_CLUSTER_FILE") or "CLUSTER_FILE"
                message += f"; `fdbcli -C {file} --exec status` shows whether the cluster is up"
            raise click.ClickException(message) from error
        finally:
            if isinstance(db, embedded.Database):
                db.close()

    return run_on_database


def log_to_stderr(level: int) -> None:
    """Print log records from this level on to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(EscapedLog("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=level)


def chosen_database(
    context: click.Context, url: str | None, cluster_file: str | None
) -> tuple[str | None, str | None]:
    """Return the options that name the database, given before the command or after it."""
    if url is None and cluster_file is None:
        before = context.find_root().params
        return before.get("url"), before.get("cluster_file")
    return url, cluster_file


def open_database(url: str | None, cluster_file: str | None, create: bool) -> Database:
    """Open a database that the command line names.

    With `create`, a new database gets a directory. Only the user's data directory also gets the
    directories above it: a path that the user has typed may be mistyped.
    """
    if url is not None and cluster_file is not None:
        raise click.UsageError("--db and --cluster-file both name a database; give only one")
    named = url if cluster_file is None else cluster_file
    try:
        return fdbqueue.open(named, create=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except NotADatabase as error:
        parent = Path(error.path).parent
        is_named = bool(named or os.environ.get("FDBQ_DB"))
        if not create:
            if is_named or Path(error.path).exists():
                raise
            advice = "name yours by --db or $FDBQ_DB, or push an item to create this one"
            raise NotADatabase(error.path, "there is no database here", advice) from error
        if is_named and not parent.exists():
            problem = f"there is no directory {parent}"
            raise NotADatabase(error.path, problem, "create it, or correct the path") from error
    return fdbqueue.open(named, create=True)


def check_integrity(db: Database, seconds: float | None = 1.0) -> None:
    """Raise `CorruptDatabase` if the file of an embedded database is damaged.

    Damage can hide items and queues. Call this after listing them, so that an incomplete list does
    not pass for a complete one. The check reads about a gigabyte per second.

    Args:
        db: A database; only an embedded one is checked.
        seconds: The time after which the check stops without a result; `None` for no limit.
    """
    if isinstance(db, embedded.Database):
        db.check_integrity(seconds)


def _complete_queue(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    try:
        given = context.params.get("url"), context.params.get("cluster_file")
        db = open_database(*chosen_database(context, *given), False)
        db.options.set_transaction_timeout(1000)
        return [name for name in queue_names(db) if name.startswith(incomplete)]
    except (FdbqueueError, click.UsageError):
        return []  # an error would be printed into the command line that the user is typing
    except fdbqueue.error_classes():
        return []


queue_argument = click.argument("queue", shell_complete=_complete_queue)
queues_argument = click.argument(
    "queues", metavar="[QUEUE]...", nargs=-1, shell_complete=_complete_queue
)


def parse_value(text: str | bytes) -> Any:
    """Return the value of a JSON text that the user gave; raise a usage error for other text."""
    try:
        return with_stack(json.loads, text)
    except ValueError as error:
        hint = ""
        if isinstance(text, str) and not text.startswith(("{", "[", '"')):
            quoted = shlex.quote(json_line(text[:_MAX_HINT]))
            hint = f" (write a string in quotes, such as {quoted})"
        raise click.UsageError(f"the value is not JSON: {error}{hint}") from error


def json_line(value: object) -> str:
    """Return a value as JSON on one line, with control characters escaped for the terminal."""
    return escaped_json(json_bytes(value).decode())


def escaped_json(text: str) -> str:
    """Return the same JSON with control characters escaped for the terminal.

    >>> escaped_json('"\u00e9 \x9b"')
    '"\u00e9 \\\\u009b"'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def priority_line(priority: Priority | None) -> str:
    """Return a priority in the form that `--priority` accepts; `-` in a FIFO queue."""
    return "-" if priority is None else json_line(priority_as_json(priority))


def item_json(item: Item, **more: object) -> str:
    """Return an item, and perhaps more fields, as a line of JSON."""
    priority = priority_as_json(item.priority)
    return json_line({"id": item.id, "priority": priority, "value": item.value, **more})


def states_text(numbers: QueueStats | CheckReport | QueueCopy) -> str:
    """Return how many items are in each state, without the states that have none.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> _ = jobs.push(db, 1), jobs.push(db, 2, delay=60)
    >>> states_text(jobs.stats(db))
    '1 ready, 1 delayed'
    """
    found = by_state(numbers).items()
    return ", ".join(f"{number:,} {state}" for state, number in found if number) or "no items"


def notes_text(numbers: Mapping[str, Any]) -> str:
    """Return what to know about a queue besides its states, from its numbers in JSON.

    >>> notes_text({"paused": True, "unknown_jobs": 2})
    'paused, 2 unknown jobs'
    """
    notes = ["paused"] if numbers["paused"] else []
    if unknown := numbers["unknown_jobs"]:
        notes.append(count_noun(unknown, "unknown job"))
    return ", ".join(notes)


def deleted_text(queue: str, done: str, numbers: QueueStats | None, as_json: bool) -> str:
    """Return what was cleared or dropped: the items in each state just before, if known.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> _ = jobs.push(db, 1), jobs.push(db, 2, delay=60)
    >>> deleted_text("jobs", "dropped", jobs.stats(db), as_json=False)
    'dropped jobs: 1 ready, 1 delayed'
    """
    if as_json:
        known = {} if numbers is None else by_state(numbers)
        return json_line({"queue": queue, done: True, **known})
    return f"{done} {queue}" + (f": {states_text(numbers)}" if numbers else "")


def age_text(time: datetime | None) -> str | None:
    """Return how long ago something was, such as `0:01:30`; `None` for `None`."""
    if time is None:
        return None
    age = datetime.now(timezone.utc) - time
    return str(timedelta(seconds=max(0, round(age.total_seconds()))))


def user_name() -> str:
    """Return the user and the host, which a failed attempt notes when a dead letter is retried."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def printable(text: str) -> str:
    """Return a text shortened to one line, with control characters escaped for the terminal."""
    line = " ".join(text.split())
    return escaped(line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}...")


def escaped(text: str) -> str:
    """Return a text with control characters escaped for the terminal, except for ends of lines.

    Characters that change the direction of text, or cannot be printed, are escaped, too.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


def say(text: str = "", *, err: bool = False) -> None:
    """Print a text with control characters escaped for the terminal, and an end of line."""
    click.echo(escaped(text), err=err)


class EscapedLog(logging.Formatter):
    """Log records as text, with control characters escaped for the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return escaped(super().format(record))


def count_noun(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_items(items: list[Item], as_json: bool) -> None:
    """Print the value of each item on a line; with `as_json`, also its id and priority.

    Each line is flushed before the next, so that the error can name the items that are missing.

    Raises:
        PrintError: Standard output did not accept all items.
    """
    for index, item in enumerate(items):
        try:
            say(item_json(item) if as_json else json_line(item.value))
            sys.stdout.flush()
        except BaseException as error:
            raise PrintError(items[index:]) from error


_OTHER_NAMES = {
    **{"add": "push", "enqueue": "push", "dequeue": "pop", "get": "pop", "run": "work"},
    **{"list": "ls", "queues": "ls", "status": "stats", "delete": "rm", "remove": "rm"},
}
"""Names that other programs have for commands."""


class Group(click.Group):
    """A group of commands that answers a mistyped name with similar ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, and the other arguments."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            other = _OTHER_NAMES.get(name)
            similar = [other] if other in known else get_close_matches(name, known, n=2, cutoff=0.7)
            hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
            ctx.fail(f"No such command {name!r}{hint}")
        return super().resolve_command(ctx, args)


class OutputError(Exception):
    """Standard output cannot be written."""


class PrintError(OutputError):
    """Standard output did not accept some items.

    Attributes:
        items: The items that were not printed.
    """

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        verb = "was" if len(items) == 1 else "were"
        super().__init__(
            f"cannot write to standard output; {count_noun(len(items), 'item')} {verb} not printed"
        )


def echo(line: str) -> None:
    """Print and flush a line that reports a change.

    Raises:
        OutputError: The line could not be printed. The message says that the change was made.
    """
    try:
        say(line)
        sys.stdout.flush()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"done, but cannot write to standard output: {reason}; the output is {line!a}"
        ) from error


def echo_results(
    results: dict[str, bool], done: str, as_json: bool, explain: Callable[[str], str]
) -> None:
    """Print for which ids a change was made; exit with code 1 unless it was made for all.

    Args:
        results: Whether the change was made, for each id.
        done: The change, as a past participle.
        as_json: Print a line of JSON for each id.
        explain: Returns why the change was not made for an id.
    """
    for item_id, is_done in results.items():
        if as_json:
            echo(json_line({"id": item_id, done: is_done}))
        elif not is_done:
            say(f"fdbq: {item_id} was not {done}: {explain(item_id)}", err=True)
    if not as_json:
        echo(f"{sum(results.values()):,} {done}")
    if not all(results.values()):
        sys.exit(1)


def confirm(question: str) -> None:
    """Ask a question and abort the command unless the answer is yes."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            say(err=True)  # ends the line of the question, as the Enter key would
        raise


AnyQueue: TypeAlias = PriorityQueue | Queue | TaskQueue
"""A queue of any kind."""


def any_queue(db: Database, name: str, *, must_exist: bool) -> AnyQueue:
    """Open the named queue of any kind; without `must_exist`, a new one is a priority queue."""
    return existing_queue(db, name) if must_exist else open_queue(db, name)


def item_queue(db: Database, name: str, *, must_exist: bool = False) -> PriorityQueue | Queue:
    """Open the named queue; fail if it is a task queue."""
    queue = any_queue(db, name, must_exist=must_exist)
    if queue.kind == "task":
        raise click.ClickException(f"{name!r} is a task queue; use `fdbq task`")
    return queue


def found_queue(
    db: Database, name: str, command: str, wait: float = 0.0
) -> PriorityQueue | Queue | None:
    """Open the named queue, whose values are JSON, or wait until there is one.

    Without a queue, say so on standard error, and return `None` after the time to wait.
    """
    try:
        return json_queue(db, name, must_exist=True)
    except QueueNotFound as error:
        check_integrity(db)
        waiting = " (waiting until there is one)" if wait else ""
        say(f"fdbq {command}: {error}{waiting}", err=True)
    if not wait or wait_for_queue(db, name, Stop(), wait) is None:
        return None
    return json_queue(db, name, must_exist=True)


def json_queue(db: Database, name: str, *, must_exist: bool = False) -> PriorityQueue | Queue:
    """Open the named queue; fail if it is a task queue or its values are not JSON."""
    queue = item_queue(db, name, must_exist=must_exist)
    codec = store_of(queue).given_options.codec
    if codec != "json":
        raise click.ClickException(
            f"{name!r} has the codec {codec}, but fdbq needs JSON values; use the Python library"
        )
    return queue


def priority_from_json(queue: PriorityQueue, priority: PriorityJson) -> Priority:
    """Return the priority of a queue from its JSON form.

    Raises:
        InvalidPriority: The queue does not accept such a priority.
    """
    return store_of(queue).levels.from_json(priority)


def with_priorities(queue: AnyQueue, name: str, what: str) -> PriorityQueue:
    """Return a priority queue; raise a usage error for a queue of another kind.

    Args:
        queue: The queue.
        name: Its name.
        what: The option or command that needs priorities.
    """
    if queue.kind == "priority":
        return queue
    raise unsupported(queue, name, what)


def unsupported(queue: AnyQueue, name: str, what: str) -> click.UsageError:
    """Return the error for an option or a command that a queue of this kind does not support."""
    kind = "FIFO" if queue.kind == "fifo" else queue.kind
    return click.UsageError(f"{name!r} is a {kind} queue and does not support {what}")


def value_of(item: Item | Task) -> Any:
    """Return the value that was pushed."""
    return item.payload if isinstance(item, Task) else item.value


@contextmanager
def usage_errors(flags: Mapping[str, str] = MappingProxyType({})) -> Generator[None]:
    """Report an argument that the library does not accept as a usage error.

    A message that begins with the name of an argument and a colon begins with its flag instead.
    """
    try:
        yield
    except FdbqueueError:
        raise
    except (TypeError, ValueError) as error:
        name, colon, reason = str(error).partition(":")
        raise click.UsageError(f"{flags.get(name, name)}{colon}{reason}") from error


def read_value(file: BinaryIO) -> bytes:
    """Read a value from a file, but stop after its maximum size, because input may be endless.

    Raises:
        UsageError: The value is too long.
    """
    text = file.read(MAX_LINE + 1)
    if len(text) > MAX_LINE:
        raise click.UsageError(f"the value is longer than {MAX_LINE:,} bytes")
    return text
