"""Run a transaction until it commits."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, overload

from fdbqueue.database import binding
from fdbqueue.database.binding import Guard, check_fork, is_database
from fdbqueue.errors import error_classes
from fdbqueue.types import (
    Database,
    ReadTransaction,
    ReadTransactor,
    Transaction,
    Transactor,
)

_T = TypeVar("_T")

MAX_RETRY_DELAY = 2
"""Maximum milliseconds between a conflict of a queue's transaction and the next attempt."""

TOO_OLD = 1007
"""The error code after five seconds."""

_LIFETIME = 4.0  # seconds, with a margin for the clocks
_FEW = 1_000  # rows that take far less time, unless the database recovers or is cut off

retries: Counter[int] = Counter()
"""Retries in this process by error code (1020 is a conflict), without callers' transactions."""

_counting = Guard()
os.register_at_fork(after_in_child=retries.clear)


@overload
def read(tr: Transactor, body: Callable[[Transaction], _T]) -> _T: ...


@overload
def read(tr: ReadTransactor, body: Callable[[ReadTransaction], _T]) -> _T: ...


def read(tr: ReadTransactor, body: Callable[[Any], _T]) -> _T:
    """Run a read in the caller's transaction or, given a database, in a new one."""
    return run(tr, body) if is_database(tr) else body(tr)


def run(
    db: Database,
    body: Callable[[Transaction], _T],
    begin: Callable[[], object] = bool,
    failed: Callable[[Any], object] = bool,
    unconfirmed: list[Any] | None = None,
) -> _T:
    """Run `body(tr)` in a transaction, with retries until it commits.

    After an unknown commit result, the body may take effect twice; `run_once` prevents that.
    `begin` is called before each attempt, `failed` with each database error. A commit that only has
    to reach the disk is appended to `unconfirmed`, without a wait.
    """
    if binding.client_was_forked:
        check_fork(db)
    transaction: Any = db.create_transaction()
    if hasattr(transaction, "read_ahead"):
        # Nobody learns what it read before the commit, which waits until that is on disk.
        transaction.read_ahead()
    while True:
        begin()
        try:
            result = body(transaction)
            committed = transaction.commit()
            if unconfirmed is not None and committed.takes_time():
                unconfirmed.append(committed)
            else:
                committed.wait()
            return result
        except error_classes() as error:
            failed(error)
            prepare_retry(transaction, error)
        except Exception:
            if hasattr(transaction, "confirm_reads"):
                transaction.confirm_reads()  # the error may tell what the body read
            raise


def prepare_retry(transaction: Transaction, error: Any) -> None:
    """Wait for the next attempt of a transaction; raise the error if it is not retryable."""
    try:
        transaction.on_error(error.code).wait()
    except error_classes() as final:
        if final.code == error.code:
            raise error from None  # the original may say more than its code
        raise
    with _counting:
        retries[error.code] += 1


def has_read_for_too_long(error: Any, seconds: float, rows: int) -> bool:
    """Return whether a failed transaction read too much, and would fail again.

    After a recovery, a transaction is too old whatever it has read.
    """
    return error.code == TOO_OLD and seconds >= _LIFETIME and rows >= _FEW
