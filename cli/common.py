"""What the commands share: the database, the output, the errors."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

import fdbqueue
from fdbqueue import Item, PriorityQueue, queue_names
from fdbqueue.embedded import Database
from fdbqueue.errors import FdbqueueError

__all__ = [
    "PrintFailed",
    "Seconds",
    "as_line",
    "command_options",
    "print_items",
    "queue_argument",
    "signals_held_back",
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


def command_options(command: _F) -> _F:
    """The options of every command: which database, how long to wait for it, `--json`, `-v`.

    The command gets the database as `db`; it is closed when the command ends.
    """

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
        db = _open(url, cluster_file)
        try:
            db.options.set_transaction_timeout(math.ceil(timeout * 1000))
            return command(*args, db=db, **kwargs)
        except fdbqueue.error_classes() as error:
            if error.code != 1031:
                raise
            sentence = f"the database did not answer within {timeout:g} seconds (--timeout)"
            if not isinstance(db, Database):
                file = cluster_file or url or "CLUSTER_FILE"
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


def _open(url: str | None, cluster_file: str | None) -> Any:
    """Open the database that the command line names."""
    if url is not None and cluster_file is not None:
        raise click.UsageError("--db and --cluster-file name a database each; give one of them")
    try:
        return fdbqueue.open(cluster_file or url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _complete_queue(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    try:
        db = _open(context.params.get("url"), context.params.get("cluster_file"))
        db.options.set_transaction_timeout(1000)
        return [name for name in queue_names(db) if name.startswith(incomplete)]
    except (FdbqueueError, click.UsageError):
        return []  # no suggestion is better than an error in the middle of a command line
    except fdbqueue.error_classes():
        return []


queue_argument = click.argument("queue", shell_complete=_complete_queue)


def as_line(value: Any) -> str:
    """A JSON value on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def item_line(item: Item) -> str:
    """An item as a line of JSON."""
    return as_line({"id": item.id, "priority": item.priority, "value": item.value})


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


class PrintFailed(Exception):
    """Standard output did not take these items."""

    def __init__(self, left: list[Item]) -> None:
        self.left = left
        super().__init__(f"the output cannot be written; {len(left):,} items are not in it")


def named(db: Any, name: str) -> PriorityQueue:
    """The queue that the command line names."""
    return PriorityQueue.named(db, name)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let a SIGINT or SIGTERM that comes meanwhile take effect afterwards."""
    held: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in held:
            os.kill(os.getpid(), each)
