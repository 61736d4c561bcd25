"""The command `fdbq limit`."""

from __future__ import annotations

import math
from typing import Any

import click

from fdbqueue import existing_queue
from fdbqueue.options import QueueLimits, QueueOptions, QueueSettings
from fdbqueue.queue.arguments import text_of_seconds
from fdbqueue.queue.overview import open_queue
from fdbqueue.types import Database

from .arguments import NONE, Duration
from .command import QUEUE, command
from .options import chosen, option, options_of
from .output import show_fields

FLAGS = {
    "max_size": "--size",
    "max_attempts": "--attempts",
    "concurrency": "--concurrency",
    "keep_number": "--keep-last",
    "keep_seconds": "--keep-for",
    "kept_attempts": "--keep-attempts",
    "traceback_bytes": "--keep-traceback",
    "rate": "--rate",
    "shards": "--shards",
}


class _Time(Duration):
    """A length of time from one second, in whole seconds, or `none`."""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        return NONE if value == "none" else math.ceil(super().convert(value, param, ctx))


@command(
    QUEUE,
    *options_of(
        QueueOptions,
        QueueLimits,
        QueueSettings,
        flags=FLAGS,
        omit=("keep", "paused"),
        keep_seconds=option(
            *("--keep-for", "keep_seconds"),
            metavar="DURATION|none",
            type=_Time(1, 10_000_000_000),
            help="Time for which done items are kept, such as 7d.",
        ),
    ),
)
def limit(db: Database, queue: str, *, create: bool = False, **settings: Any) -> None:
    """Set limits of QUEUE; without options, show them.

    `none` removes a limit. A push to a full queue stores nothing. Items beyond a new limit stay.

    --keep-last and --keep-for keep acknowledged items as done. If both are set, an item stays only
    while both apply. `fdbq show` prints what --keep-attempts and --keep-traceback keep.

    \b
    Example:
      fdbq limit jobs --size 10000 --concurrency 20 --rate 100/1m

    Options:
        create: Create the queue and the database if missing.
    """
    target = open_queue(db, queue) if create else existing_queue(db, queue)
    target.configure(db, **chosen(settings))
    options = target.options(db)
    limits = {name: getattr(options, name) for name in FLAGS}
    shown = {FLAGS[name][2:]: value for name, value in limits.items()}
    shown["keep-last"] = options.keep_number or None  # 0 is stored if no items are kept
    shown["shards"] = options.shards or 1
    if options.keep_seconds is not None:
        shown["keep-for"] = text_of_seconds(options.keep_seconds)
    paused = {"paused": options.paused}
    show_fields({"queue": queue, **limits, **paused}, {**shown, **paused})
