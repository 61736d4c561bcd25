"""Waiting for a key to change, by a watch; outside of transactions."""

from __future__ import annotations

from collections.abc import Callable

from fdbqueue.database.retrying import run
from fdbqueue.types import Database, Future, Transaction

__all__ = ["begin_watches", "cancel_all", "sleep_on"]


def begin_watches(db: Database, keys: Callable[[Transaction], list[bytes]]) -> list[Future]:
    """Watch the keys that `keys(tr)` returns, in the transaction that reads what they depend on.

    So no change after that is missed, except of a value that changes and changes back.

    Source: FoundationDB documentation, Developer Guide, "Watches".
    """
    return run(db, lambda tr: [tr.watch(key) for key in keys(tr)])


def cancel_all(watches: list[Future]) -> None:
    """Cancel those watches that have not fired: a client has a limited number of them."""
    for watch in watches:
        if not watch.is_ready():
            watch.cancel()


def sleep_on(watches: list[Future], seconds: float) -> Future | None:
    """Sleep until one of the watches fires or fails, and return it; `None` if the time ran out.

    The others are cancelled.
    """
    # Not before it is needed: the name may be taken, as in `recipes/`.
    from queue import Empty, SimpleQueue

    fired: SimpleQueue[Future] = SimpleQueue()
    for watch in watches:
        watch.on_ready(fired.put)
    try:
        return fired.get(timeout=seconds)
    except Empty:
        return None
    finally:
        cancel_all(watches)
