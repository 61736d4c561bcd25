"""The log of the items that calls push and pop."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from fdbqueue.coordination.sans_io import Call, SansIO
from fdbqueue.database.binding import is_database
from fdbqueue.types import Database, Item, Transactor

if TYPE_CHECKING:
    from fdbqueue.coordination.store import Store

_log = logging.getLogger("fdbqueue")

# This logger has a level of its own: a program that logs at INFO must not pay for it unasked.
_counts_log = logging.getLogger("fdbqueue.counts")
if _counts_log.level == logging.NOTSET:
    _counts_log.setLevel(logging.WARNING)


def log_items(
    store: Store[Any], tr: Transactor, items: list[Item[Any]], *, popped: bool = False
) -> SansIO[None]:
    """Log a line for each item that was pushed or popped.

    The logger `fdbqueue.counts` also gets the counters of the priorities, which takes a read. A
    caller's transaction is not logged, because it may not commit.
    """
    shows_items = _log.isEnabledFor(logging.DEBUG)
    shows_counts = _counts_log.level <= logging.INFO and _counts_log.isEnabledFor(logging.INFO)
    if not (shows_items or shows_counts) or not is_database(tr):
        return
    items = [item for item in items if item.is_new]
    verb = "popped from" if popped else "pushed to"
    title = store.layout.name or store.layout.subspace.key()
    if shows_items:
        for item in items:
            _log.debug("%s %s, priority %s", verb, title, item.priority)
    if items and shows_counts:

        def log_counts(db: Database) -> list[Item[Any]]:
            left = store.reads.counts_text(db)
            for item in items:
                _counts_log.info("%s %s, priority %s; left: %s", verb, title, item.priority, left)
            return items

        yield Call(partial(log_counts, tr), partial(store.put_back, tr) if popped else None)
