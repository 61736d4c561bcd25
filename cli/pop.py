"""The commands `fdbq pop` and `fdbq peek`."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import click

from fdbqueue import FdbqueueError, error_classes
from fdbqueue.types import Database

from .arguments import Duration
from .command import QUEUE, command
from .interrupts import defer_signals
from .opening import AnyQueue, found_queue, priority_queue
from .options import flag, integer, option
from .output import OutputError, PrintError, count_noun, show_items

_COUNT = integer("-n", "count", default=1, help="Maximum number of items.")


class _Wait(Duration):
    """The time of `--wait`, which may be the next argument."""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message} (QUEUE comes before --wait)", param, ctx)


@command(
    QUEUE,
    flag("--max", "highest", help="Pop the highest priority first."),
    _COUNT,
    option(
        "--wait",
        metavar="[DURATION]",
        is_flag=False,
        flag_value=math.inf,
        default=0.0,
        show_default=False,
        type=_Wait(0),
        help="Wait up to DURATION for an item; without DURATION, forever. Put --wait last.",
    ),
)
def pop(
    db: Database, queue: str, highest: bool, count: int, wait: float, *, create: bool = False
) -> None:
    """Pop the first item of QUEUE and print its value; with -n, up to N in one transaction.

    Items are removed before they are printed, and put back if printing fails. After Ctrl-C, SIGTERM
    or SIGHUP, the items that are not printed are put back.

    Exits with code 1 if the queue is empty, also after --wait, or does not exist.

    \b
    Example:
      while item=$(fdbq pop jobs --wait); do echo "working on $item"; done

    Options:
        create: Create the database if missing.
    """
    deadline = time.monotonic() + wait
    target = found_queue(db, queue, wait)
    if highest and target is not None:
        priority_queue(target, queue, "--max")
    while target is None or not pop_and_show(db, target, count, highest):
        remaining = deadline - time.monotonic()
        if target is None or remaining <= 0:
            sys.exit(1)
        target.wait(db, remaining)


def pop_and_show(db: Database, queue: AnyQueue, count: int, highest: bool = False) -> bool:
    """Pop and print items, with signals deferred; return false if the queue is empty."""
    with defer_signals():
        poppable: Any = queue
        items = poppable.pop_many(db, count, **({"max": True} if highest else {}))
        try:
            show_items(items)
        except PrintError as error:
            _put_back(db, queue, error.items)
            raise OutputError(f"{error} but put back") from error
        return bool(items)


def _put_back(db: Database, queue: Any, items: list[Any]) -> None:
    failures: tuple[type[Exception], ...] = (FdbqueueError, *error_classes())
    try:
        queue.put_back(db, items)
    except failures as error:
        raise OutputError(
            f"cannot write to standard output, and cannot put back all of "
            f"{count_noun(len(items), 'item')} from {items[0].id} on: {error}"
        ) from error


@command(QUEUE, flag("--max", "highest", help="Show the highest priority first."), _COUNT)
def peek(db: Database, queue: str, highest: bool, count: int) -> None:
    """Print the first value of QUEUE without removing it.

    Exits with code 1 if the queue is empty or does not exist.

    \b
    Example:
      fdbq peek jobs -n 3
    """
    target = found_queue(db, queue)
    if target is None:
        sys.exit(1)
    if highest:
        items = priority_queue(target, queue, "--max").peek_many(db, count, max=True)
    else:
        items = list(target.items(db, limit=count))
    show_items(items)
    if not items:
        sys.exit(1)
