"""The wait loop: try, sleep until a watched key changes, and try again."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fdbqueue.coordination.steps import Call, Sleep, Steps
from fdbqueue.database.binding import is_database
from fdbqueue.database.retrying import run
from fdbqueue.types import Database, Transaction, Transactor

__all__ = ["begin_sleep", "until_found"]

_T = TypeVar("_T")

# Seconds after which a client looks although nothing woke it. A client of another kind may have
# pushed, which knows only the recipe and changes no watched key.
_MAX_SLEEP = 60.0


def until_found(
    tr: Transactor,
    seconds: float,
    look: Callable[[], Steps[_T]],
    keys: Callable[[Transaction], list[bytes]],
    seconds_left: Callable[[Transaction], float],
) -> Steps[_T]:
    """Call `look` until it finds something or the time is over, and return what it found.

    After a `look` that found nothing, sleep until a key of `keys(tr)` changes, for `seconds_left`,
    and at most a minute. Another client may take the item first; then sleep again. The last `look`
    is after the end of the time. Given a transaction, `look` is called once.

    Args:
        tr: A transaction or a database.
        seconds: The time to wait; 0 for a single `look`.
        look: Makes one attempt; a result that is false means that nothing was found.
        keys: Returns the keys to watch; empty if it is worth looking again at once.
        seconds_left: Returns the seconds after which to look although no key has changed.
    """
    return look() if seconds == 0 else _until_found(tr, seconds, look, keys, seconds_left)


def _until_found(
    tr: Transactor,
    seconds: float,
    look: Callable[[], Steps[_T]],
    keys: Callable[[Transaction], list[bytes]],
    seconds_left: Callable[[Transaction], float],
) -> Steps[_T]:
    deadline = time.monotonic() + seconds
    while True:
        found = yield from look()
        left = deadline - time.monotonic()
        if found or left <= 0 or not is_database(tr):
            return found
        begin = partial(begin_sleep, tr, keys, seconds_left, min(left, _MAX_SLEEP))
        sleep: Sleep = yield Call(begin, Sleep.cancel)
        if sleep.watches and not (yield sleep):
            return found


def begin_sleep(
    db: Database,
    keys: Callable[[Transaction], list[bytes]],
    seconds_left: Callable[[Transaction], float],
    seconds: float,
) -> Sleep:
    """Watch the keys that `keys(tr)` returns, for `seconds_left(tr)` but at most some seconds.

    Both functions read the state of the queue in the same transaction. So the watches miss no later
    change, except for a value that changes and changes back.

    Source: FoundationDB documentation, Developer Guide, "Watches".
    """

    def body(tr: Transaction) -> Sleep:
        left = min(seconds, seconds_left(tr))
        return Sleep([tr.watch(key) for key in keys(tr)], left)

    return run(db, body)
