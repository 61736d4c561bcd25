"""The command `fdbq relay`."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from types import FrameType

import click

from .command import database_option
from .interrupts import stop_on_signal
from .loading import loaded_app
from .logs import log_to_stderr
from .opening import chosen_database, open_database
from .options import flag, option


@click.command(
    params=[
        option("--app", metavar="MODULE:APP", required=True, help="The app with the outboxes."),
        flag("--drain", help="Exit when no row is left."),
        database_option("--db"),
    ]
)
def relay(app: str, drain: bool, url: str | None) -> None:
    """Push the rows of an app's outboxes to its queues, until Ctrl-C or SIGTERM.

    The workers of the app do this, too. If several processes do it, one pushes at a time, and
    another one goes on when it dies.

    \b
    Example:
      fdbq relay --app shop:app
    """
    log_to_stderr(logging.WARNING)
    found = loaded_app(app)
    if not found.relays:
        raise click.UsageError(f"{app!r} has no outbox; its module has to make one")
    url = chosen_database(click.get_current_context(), url)
    if url is not None or not found.is_bound:
        found.bind(open_database(url, create=True))
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    with stop_on_signal(end, max_signals=2), ExitStack() as beside:
        for relaying in found.relays:
            beside.enter_context(relaying(drain))
        if not drain:
            stop.wait()
