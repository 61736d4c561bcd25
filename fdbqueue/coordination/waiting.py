"""The wait loop: try, sleep until a watched key changes, and try again."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fdbqueue.coordination.staged_pops import REQUEST_TIMEOUT
from fdbqueue.coordination.steps import Call, Sleep, Steps, cancel_all
from fdbqueue.coordination.sweeper import Sweeper
from fdbqueue.database.binding import is_database
from fdbqueue.database.retrying import run
from fdbqueue.types import Database, Future, Transaction, Transactor

__all__ = ["begin_watches", "until_found"]

_T = TypeVar("_T")


def until_found(
    sweeper: Sweeper,
    tr: Transactor,
    seconds: float,
    look: Callable[[], Steps[_T]],
    keys: Callable[[Transaction], list[bytes]],
) -> Steps[_T]:
    """Call `look` until it finds something or the time is over, and return what it found.

    After a `look` that found nothing, sleep until a key of `keys(tr)` changes, until the next item
    is due, and at most five seconds. Another client may take the item first; then sleep again. The
    last `look` is after the end of the time. Given a transaction, `look` is called once.

    Args:
        sweeper: The sweeper of the queue.
        tr: A transaction or a database.
        seconds: The time to wait; 0 for a single `look`.
        look: Makes one attempt; a result that is false means that nothing was found.
        keys: Returns the keys to watch; empty if it is worth looking again at once.
    """
    return look() if seconds == 0 else _until_found(sweeper, tr, seconds, look, keys)


def _until_found(
    sweeper: Sweeper,
    tr: Transactor,
    seconds: float,
    look: Callable[[], Steps[_T]],
    keys: Callable[[Transaction], list[bytes]],
) -> Steps[_T]:
    deadline = time.monotonic() + seconds
    while True:
        found = yield from look()
        left = deadline - time.monotonic()
        if found or left <= 0 or not is_database(tr):
            return found
        due: float = yield Call(partial(sweeper.seconds_left, tr))
        watches: list[Future] = yield Call(partial(begin_watches, tr, keys), cancel_all)
        if watches and not (yield Sleep(watches, min(left, due, REQUEST_TIMEOUT))):
            return found


def begin_watches(db: Database, keys: Callable[[Transaction], list[bytes]]) -> list[Future]:
    """Watch the keys that `keys(tr)` returns.

    The function reads the state of the queue in the same transaction. So the watches miss no later
    change, except for a value that changes and changes back.

    Source: FoundationDB documentation, Developer Guide, "Watches".
    """
    return run(db, lambda tr: [tr.watch(key) for key in keys(tr)])
