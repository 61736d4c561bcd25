"""Waiting for a key to change, by a watch; outside of transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fdbqueue.database import is_database, run

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


def wait_for_change(db: Any, key: bytes, still: Callable[[Any], bool], seconds: float) -> bool:
    """Sleep until a key's value changes; true at once if `still(tr)` no longer holds.

    `still` and the value are read in one transaction, so no change between them is missed. A value
    that changes and changes back may be missed. False if the time ran out before.

    Source: FoundationDB documentation, Developer Guide, "Watches".
    """
    watch = begin_watch(db, key, still)
    if watch is None:
        return True
    if not sleep_on(watch, seconds):
        return False
    watch.wait()  # for its error, if it has one
    return True


def begin_watch(db: Any, key: bytes, still: Callable[[Any], bool]) -> Any:
    """A watch of a key, or `None` if `still(tr)` does not hold in the transaction that sets it."""
    return run(db, lambda tr: tr.watch(key) if still(tr) else None)


def sleep_on(watch: Any, seconds: float) -> bool:
    """Sleep until a watch fires or fails; false if the time ran out before.

    A watch that is not waited for any more is cancelled: a client has a limited number of them.
    """
    fired = threading.Event()
    watch.on_ready(lambda _: fired.set())
    try:
        return fired.wait(seconds)
    finally:
        if not fired.is_set():
            watch.cancel()
