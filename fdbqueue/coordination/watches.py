"""Waiting for a key to change, by a watch; outside of transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fdbqueue.database.binding import is_database
from fdbqueue.database.retrying import run

__all__ = ["begin_watch", "checked_wait", "sleep_on", "wait_for_change"]


def checked_wait(tr: Any, seconds: float) -> float:
    """The seconds themselves; raises for what is no time, or where nobody may sleep.

    >>> import fdbqueue
    >>> checked_wait(fdbqueue.open("memory:"), 1.5)
    1.5
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"wait is a number of seconds, not {seconds!r}")
    if not seconds >= 0:  # NaN neither
        raise ValueError(f"wait is a number of seconds from 0, not {seconds!r}")
    if seconds and not is_database(tr):
        raise ValueError(
            "only a call that is given a database can wait: nothing sleeps inside a transaction"
        )
    return min(seconds, threading.TIMEOUT_MAX)


def wait_for_change(db: Any, keys: Callable[[Any], list[bytes]], seconds: float) -> bool:
    """Sleep until the value of one of the keys changes that `keys(tr)` returns; true if it did.

    At once if there are none. What it reads and the values are of one transaction, so no change
    between them is missed. A value that changes and changes back may be missed. False if the time
    ran out before.

    Source: FoundationDB documentation, Developer Guide, "Watches".
    """
    watches = begin_watch(db, keys)
    if not watches:
        return True
    fired = sleep_on(watches, seconds)
    if fired is None:
        return False
    fired.wait()  # for its error, if it has one
    return True


def begin_watch(db: Any, keys: Callable[[Any], list[bytes]]) -> list[Any]:
    """Watches of the keys that `keys(tr)` returns in the transaction that sets them."""
    watches: list[Any] = run(db, lambda tr: [tr.watch(key) for key in keys(tr)])
    return watches


def sleep_on(watches: list[Any], seconds: float) -> Any:
    """Sleep until one of the watches fires or fails, and return it; `None` if the time ran out.

    Watches that are not waited for any more are cancelled: a client has a limited number of them.
    """
    # Not before it is needed: the name may be taken, as in `recipes/`.
    from queue import Empty, SimpleQueue

    fired: SimpleQueue[Any] = SimpleQueue()
    for watch in watches:
        watch.on_ready(fired.put)
    try:
        return fired.get(timeout=seconds)
    except Empty:
        return None
    finally:
        for watch in watches:
            if not watch.is_ready():
                watch.cancel()
