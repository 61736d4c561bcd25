"""Transactions that take effect exactly once, even if the result of a commit is unknown."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import check_fork
from fdbqueue.database.event_loops import warn_in_event_loop
from fdbqueue.database.retrying import confirm_reads, new_transaction, prepare_retry, run
from fdbqueue.errors import FDBError, StorageError, error_classes
from fdbqueue.layout.keys import receipt_key, receipts_before
from fdbqueue.layout.values import decode_receipt, encode_receipt
from fdbqueue.types import Database, Transaction

_T = TypeVar("_T")

Pausing: TypeAlias = Generator[None, None, _T]
"""A call that pauses where it would wait for the database, so its thread can run other calls."""


def run_once(
    db: Database,
    body: Callable[[Transaction], _T],
    receipts: Subspace,
    wrote: Callable[[Any], bool] = lambda _: True,
    committed: Callable[[Transaction], object] = lambda _: None,
    is_stored: Callable[[Transaction, Any], bool] | None = None,
    begin: Callable[[], object] = bool,
) -> _T:
    """Run `body(tr)` in a transaction that takes effect exactly once, and return its result.

    A client identity of this process numbers its operations and runs one at a time. Each commit
    writes the number to the client's receipt and conflicts on it. After an unknown result the next
    attempt reads the receipt. If present, the earlier attempt committed, and its result is
    returned. If absent, the earlier attempt can no longer commit: this attempt overwrites a key it
    conflicts on.

    An operation whose result names what it stored needs no receipt: `is_stored` looks for it. Its
    commits conflict on the key of the receipt without writing it.

    Receipts are stored under the hour in which their client started. Clients that start more than a
    day later delete them.

    Args:
        db: A database. On the embedded engine, which does not repeat a commit with an unknown
            result, this is `run`.
        body: The function to run, possibly several times.
        receipts: The subspace of the receipts.
        wrote: Returns whether an attempt with this result wrote anything; if not, it leaves no
            receipt.
        committed: Called with the transaction after a commit that succeeded at once. Not called on
            the embedded engine, nor if only the receipt revealed the commit.
        is_stored: Returns whether an attempt with this result has committed, by reading what it
            stored. If others have deleted that since, return false: the operation then runs again,
            or raises its error. The earlier attempt may still have committed what
            its result does not name, such as a sweep.
            By default, receipts are written.
        begin: Called before each attempt, outside of its transaction. It may read the clock for the
            body, which must not read it.

    Raises:
        FDBError: An error that is not retryable. After an unknown result (a timeout, 1031) it is
            raised only once it is certain that nothing took effect. 1021 is raised only if the
            database can no longer be reached to find out, or if the disk of an embedded database
            has not confirmed the commit.

    Example:
        >>> import fdbqueue
        >>> run_once(fdbqueue.open("memory:"), lambda tr: 7, Subspace(("receipts",)))
        7
    """
    if getattr(db, "commits_are_certain", False):
        return run(db, body, begin)
    warn_in_event_loop()
    check_fork(db)
    with Receipt(receipts) as receipt:
        steps = _without_pause(body)
        once = _Operation(db, steps, receipt, wrote, committed, is_stored, begin)
        result: _T = _finish(once.run())
        return result


def run_once_with_pauses(
    db: Database, body: Callable[[Transaction], Pausing[_T]], receipts: Subspace
) -> Pausing[_T]:
    """Run `body` as `run_once` does; pause where `body` pauses, and before waiting for a commit.

    On the embedded engine, only commits take time, so the body does not pause there.

    >>> import fdbqueue
    >>> def body(tr):
    ...     tr[b"k"] = b"v"
    ...     yield
    >>> list(run_once_with_pauses(fdbqueue.open("memory:"), body, Subspace(("receipts",))))
    [None]
    """
    is_local = getattr(db, "conflicts_are_cheap", False)
    steps = _without_pause(lambda tr: _finish(body(tr))) if is_local else body
    needs_receipt = not getattr(db, "commits_are_certain", False)
    check_fork(db)
    with Receipt(receipts) as receipt:
        once = _Operation(db, steps, receipt, wrote=lambda _: needs_receipt)
        result: _T = yield from once.run()
        return result


def _without_pause(body: Callable[[Transaction], _T]) -> Callable[[Transaction], Pausing[_T]]:
    def steps(tr: Transaction) -> Pausing[_T]:
        yield from ()
        return body(tr)

    return steps


def _finish(call: Pausing[_T]) -> _T:
    """Finish a call, and wait where it pauses."""
    try:
        while True:
            next(call)
    except StopIteration as end:
        result: _T = end.value
        return result


_RECEIPT_HOURS = 24  # hours after which receipts are deleted

NOTHING = -1
"""The outcome of an operation that took no effect, and can no longer take any."""


def _hour() -> int:
    """Return the number of hours since 1970."""
    return int(time.time() // 3600)


class _Client:
    """An identity that numbers operations, for clients that started in the same hour."""

    def __init__(self) -> None:
        self.hour = _hour()
        self.id = uuid.uuid4().bytes
        self.sequence = 0


_free_clients: list[_Client] = []
os.register_at_fork(after_in_child=_free_clients.clear)


class Receipt:
    """The receipt of one operation, which says what became of it.

    A transaction that performs the operation writes the receipt and conflicts on it. If its result
    is unknown, another transaction reads the receipt. If that one does not find it, it conflicts on
    it and writes it, so the first can no longer commit.

    A `with` statement lends it a client of this hour, a free or a new one, until the operation has
    ended. After an error the client is not reused: its last operation may still be in flight.

    Args:
        receipts: The subspace of the receipts.

    Attributes:
        number: The number of the operation among those of its client.
        key: The key of the receipt, which all operations of the client share.
    """

    def __init__(self, receipts: Subspace) -> None:
        try:
            client = _free_clients.pop()
            if client.hour != _hour():
                client = _Client()
        except IndexError:
            client = _Client()
        client.sequence += 1
        self._client = client
        self._receipts = receipts
        self.number = client.sequence
        self.key = receipt_key(receipts, client.hour, client.id)

    def __enter__(self) -> Receipt:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            _free_clients.append(self._client)

    def read(self, tr: Transaction) -> Any:
        """Return the outcome of the operation; `None` if no attempt has committed yet.

        It is the number of the try, or the results if another process performed the operation.
        """
        stored = tr[self.key].value
        if stored is None:
            return None
        number, outcome = decode_receipt(stored)
        return outcome if number == self.number else None

    def write(self, tr: Transaction, outcome: int) -> None:
        """Write the outcome, and conflict with other transactions that write it."""
        tr.add_read_conflict_key(self.key)
        tr[self.key] = encode_receipt(self.number, outcome)
        if self.number == 1:
            self.clear_outdated(tr)

    def clear_outdated(self, tr: Transaction) -> None:
        """Delete the receipts of clients that started more than a day earlier."""
        tr.clear_range(*receipts_before(self._receipts, self._client.hour - _RECEIPT_HOURS))


def settle(
    db: Database,
    find: Callable[[Transaction], _T | None],
    fence: Callable[[Transaction], object],
) -> _T | None:
    """Find out what became of an operation whose result is unknown, and end it.

    Args:
        db: The database.
        find: Returns its outcome; `None` if it took no effect.
        fence: Called in the second case, so that what is still in flight conflicts and cannot
            commit.

    Raises:
        FDBError: 1021, because the database cannot be reached.
    """

    def body(tr: Transaction) -> _T | None:
        outcome = find(tr)
        if outcome is None:
            fence(tr)
        return outcome

    errors: tuple[type[Exception], ...] = (StorageError, *error_classes())
    try:
        try:
            return run(db, body)
        except error_classes():
            return run(db, body)  # perhaps only this transaction was unlucky
    except errors as error:
        raise FDBError(1021) from error


# Errors of a commit after which it may or may not have taken effect.
_MAYBE_COMMITTED = frozenset({1021, 1031, 1039})


@dataclass
class _Operation:
    """One exactly-once operation: its attempts, and the result that each one would have."""

    db: Database
    body: Callable[[Transaction], Pausing[Any]]
    receipt: Receipt
    wrote: Callable[[Any], bool] = lambda _: True
    committed: Callable[[Transaction], object] = lambda _: None
    is_stored: Callable[[Transaction, Any], bool] | None = None
    begin: Callable[[], object] = bool
    results: list[Any] = field(default_factory=list[Any])

    def run(self) -> Pausing[Any]:
        """Run attempts until one commits or none can; pause before waiting for a commit."""
        transaction = new_transaction(self.db)
        uncertain = False
        while True:
            committing = False
            self.begin()
            try:
                if uncertain and (done := self._committed_attempt(transaction)) is not None:
                    return self.results[done]
                result = yield from self.body(transaction)
                # After an unknown result even an attempt that wrote nothing must fence the earlier
                # one off.
                if uncertain or self.wrote(result):
                    self.results.append(result)
                    self._fence(transaction, len(self.results) - 1)
                    committing = True
                commit = transaction.commit()
                yield
                commit.wait()
            except error_classes() as error:
                uncertain = uncertain or (committing and error.code in _MAYBE_COMMITTED)
                try:
                    prepare_retry(transaction, error)
                except error_classes():
                    if not uncertain:
                        raise
                    return self._settle(error)
            except Exception as error:
                confirm_reads(transaction)
                if not uncertain:
                    raise
                return self._settle(error)
            else:
                self.committed(transaction)
                return result

    def _committed_attempt(self, transaction: Transaction) -> int | None:
        """Return the number of the attempt that committed, if one did."""
        if self.is_stored is None:
            attempt: int | None = self.receipt.read(transaction)
            return attempt
        for number, result in enumerate(self.results):
            if self.is_stored(transaction, result):
                return number
        return None

    def _fence(self, transaction: Transaction, attempt: int) -> None:
        """Let this attempt conflict with the others, and write its receipt if there is one."""
        if self.is_stored is None:
            self.receipt.write(transaction, attempt)
        else:
            transaction.add_read_conflict_key(self.receipt.key)
            transaction.add_write_conflict_key(self.receipt.key)

    def _settle(self, error: Exception) -> Any:
        """Return the result of the attempt that committed, after an error that ends the operation.

        If none did, raise the error.
        """
        done = settle(self.db, self._committed_attempt, partial(self._fence, attempt=NOTHING))
        if done in (None, NOTHING):
            raise error
        return self.results[done]
