"""Pushes of values: the new items that they store, and the log of pushes and pops."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue.coordination.sans_io import Call, SansIO
from fdbqueue.database.binding import is_database
from fdbqueue.database.clock import uuids
from fdbqueue.operations.items import NewItem
from fdbqueue.options import PushManyOptions
from fdbqueue.queue.arguments import due_time, new_headers, of_each, validate_key, validate_options
from fdbqueue.types import Database, Item, Task, Transactor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fdbqueue.coordination.store import Store

_T = TypeVar("_T", bound=Item | Task)

_log = logging.getLogger("fdbqueue")

# This logger has a level of its own: a program that logs at INFO must not pay for it unasked.
_counts_log = logging.getLogger("fdbqueue.counts")
if _counts_log.level == logging.NOTSET:
    _counts_log.setLevel(logging.WARNING)


def new_items(
    store: Store[Any],
    values: Sequence[Any],
    priorities: Iterable[Any],
    **options: Unpack[PushManyOptions],
) -> list[NewItem]:
    """Return what a push of these values, each with its priority, stores."""
    validate_options(PushManyOptions, options)
    n, due = len(values), due_time(options.get("delay"), options.get("at"))
    headers = new_headers(n, options)
    levels = list(map(store.levels.level, priorities))
    group, groups = options.get("group"), options.get("groups")
    if groups is not None:
        if group is not None:
            raise ValueError("give one group for all values or one for each, not both")
        levels = list(map(store.levels.in_group, levels, map(_group, of_each(n, "groups", groups))))
    elif group is not None:
        levels = list(map(store.levels.in_group, levels, repeat(_group(group))))
    payloads = map(store.codec.encode, values)
    return [*map(NewItem, levels, payloads, uuids(n), repeat(due), headers, values)]


def _group(name: object) -> str | None:
    return None if name is None else validate_key("a group", name)


def log_items(
    store: Store[Any], tr: Transactor, items: list[_T], *, popped: bool = False
) -> SansIO[None]:
    """Log a line for each item with a priority that was pushed or popped.

    The logger `fdbqueue.counts` also gets the counters of the priorities, which takes a read. A
    caller's transaction is not logged, because it may not commit.
    """
    shows_items = _log.isEnabledFor(logging.DEBUG)
    shows_counts = _counts_log.level <= logging.INFO and _counts_log.isEnabledFor(logging.INFO)
    if not (shows_items or shows_counts) or not is_database(tr):
        return
    priorities = [
        item.priority
        for item in items
        if isinstance(item, Item) and item.is_new and item.priority is not None
    ]
    verb = "popped from" if popped else "pushed to"
    title = store.layout.name or store.layout.subspace.key()
    if shows_items:
        for priority in priorities:
            _log.debug("%s %s, priority %s", verb, title, priority)
    if priorities and shows_counts:

        def log_counts(db: Database) -> list[_T]:
            left = store.reads.counts_text(db)
            for priority in priorities:
                _counts_log.info("%s %s, priority %s; left: %s", verb, title, priority, left)
            return items

        yield Call(partial(log_counts, tr), partial(store.put_back, tr) if popped else None)
