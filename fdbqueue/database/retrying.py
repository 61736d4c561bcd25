"""Running a transaction again until it commits."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue.database.binding import check_fork, error_classes, is_database

__all__ = ["prepare_retry", "read", "retries", "run"]

_T = TypeVar("_T")


class _Retries:
    """How often this process tried a transaction again, by the code of the error: 1020 conflicts.

    For metrics. Of transactions that a caller runs by itself it knows nothing.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin with none, in a forked child too."""
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()

    def note(self, code: int) -> None:
        with self._lock:
            self._counts[code] += 1

    def counts(self) -> dict[int, int]:
        with self._lock:
            return dict(self._counts)


retries = _Retries()
os.register_at_fork(after_in_child=retries.clear)


def read(tr: Any, body: Callable[[Any], _T]) -> _T:
    """Run a read in the caller's transaction, or, given a database, in one of its own.

    >>> import fdbqueue
    >>> read(fdbqueue.open("memory:"), lambda tr: tr[b"k"].present())
    False
    """
    return run(tr, body) if is_database(tr) else body(tr)


def run(db: Any, body: Callable[[Any], _T]) -> _T:
    """Run `body(tr)` in a transaction and commit it, again and again until it goes through.

    After an unknown commit result the body may take effect twice: for reads, and for bodies that
    may; `run_once` is for the others.

    >>> import fdbqueue
    >>> run(fdbqueue.open("memory:"), lambda tr: tr[b"k"].present())
    False
    """
    check_fork(db)
    transaction = db.create_transaction()
    while True:
        try:
            result = body(transaction)
            transaction.commit().wait()
            return result
        except error_classes() as error:
            prepare_retry(transaction, error)


def prepare_retry(transaction: Any, error: Any) -> None:
    """Wait until the next attempt of a transaction; raise the error if there is to be none."""
    try:
        transaction.on_error(error.code).wait()
    except error_classes() as final:
        if final.code == error.code:
            raise error from None  # it may say more than its code
        raise
    retries.note(error.code)
