"""Lines of the logger "fdbqueue" about what comes and goes."""

from __future__ import annotations

import logging
from typing import Any

from fdbqueue.database import error_classes, is_database
from fdbqueue.types import Item

__all__ = ["log_items"]

_log = logging.getLogger("fdbqueue")


def log_items(queue: Any, tr: Any, verb: str, items: list[Item]) -> None:
    """Log a line for each item that came or went, and how many are left, if it is wanted.

    Of a transaction of the caller's nobody knows yet whether it commits: it is not logged.
    """
    if not items or not _log.isEnabledFor(logging.INFO) or not is_database(tr):
        return
    name = queue.layout.name or queue.subspace.key()
    try:
        counts = queue.counts(tr)
    except error_classes() as error:  # what came or went did so all the same
        left = f"unknown ({error.code})"
    else:
        left = " ".join(f"{level}:{count:,}" for level, count in counts.items()) or "nothing"
    for item in items:
        _log.info("%s %s, priority %s; left: %s", verb, name, item.priority, left)
