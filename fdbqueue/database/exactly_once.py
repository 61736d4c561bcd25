"""Transactions that take effect exactly once, even if the result of a commit is unknown."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import check_fork, engine_of
from fdbqueue.database.event_loops import warn_in_event_loop
from fdbqueue.database.retrying import confirm_reads, new_transaction, prepare_retry, run
from fdbqueue.errors import FDBError, StorageError, error_classes
from fdbqueue.layout.keys import receipt_key, receipts_before
from fdbqueue.layout.values import decode_receipt, encode_receipt
from fdbqueue.types import Database, Transaction

_T = TypeVar("_T")


def run_once(
    db: Database,
    body: Callable[[Transaction], _T],
    receipts: Subspace,
    wrote: Callable[[Any], bool] = lambda _: True,
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
    if engine_of(db).commits_are_certain:
        return run(db, body, begin)
    warn_in_event_loop()
    check_fork(db)
    with Receipt(receipts) as receipt:
        operation = _Operation(db, body, receipt, wrote, is_stored, begin)
        result: _T = operation.run()
        return result


_RECEIPT_HOURS = 24  # hours after which receipts are deleted
_NONE = -1  # instead of the number of an attempt, so that no attempt can commit any more


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

    def read(self, tr: Transaction) -> int | None:
        """Return the number of the attempt that has committed; `None` if none has yet."""
        stored = tr[self.key].value
        if stored is None:
            return None
        number, attempt = decode_receipt(stored)
        return attempt if number == self.number else None

    def write(self, tr: Transaction, attempt: int) -> None:
        """Write the number of an attempt, and conflict with the others.

        The first receipt of a client deletes those of clients that started a day earlier.
        """
        tr.add_read_conflict_key(self.key)
        tr[self.key] = encode_receipt(self.number, attempt)
        if self.number == 1:
            tr.clear_range(*receipts_before(self._receipts, self._client.hour - _RECEIPT_HOURS))


# Errors of a commit after which it may or may not have taken effect.
_MAYBE_COMMITTED = frozenset({1021, 1031, 1039})


@dataclass
class _Operation:
    """One exactly-once operation: its attempts, and the result that each one would have."""

    db: Database
    body: Callable[[Transaction], Any]
    receipt: Receipt
    wrote: Callable[[Any], bool] = lambda _: True
    is_stored: Callable[[Transaction, Any], bool] | None = None
    begin: Callable[[], object] = bool
    results: list[Any] = field(default_factory=list[Any])

    def run(self) -> Any:
        """Run attempts until one commits or none can."""
        transaction = new_transaction(self.db)
        uncertain = False
        while True:
            committing = False
            self.begin()
            try:
                if uncertain and (done := self._committed_attempt(transaction)) is not None:
                    return self.results[done]
                result = self.body(transaction)
                # After an unknown result even an attempt that wrote nothing must fence the earlier
                # one off.
                if uncertain or self.wrote(result):
                    self.results.append(result)
                    self._fence(transaction, len(self.results) - 1)
                    committing = True
                transaction.commit().wait()
                return result
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

    def _committed_attempt(self, transaction: Transaction) -> int | None:
        """Return the number of the attempt that committed, if one did."""
        if self.is_stored is None:
            return self.receipt.read(transaction)
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

        If none did, make sure that none can any more, and raise the error.

        Raises:
            FDBError: 1021, because the database cannot be reached to find out.
        """

        def body(tr: Transaction) -> int | None:
            committed = self._committed_attempt(tr)
            if committed is None:
                self._fence(tr, _NONE)
            return committed

        errors: tuple[type[Exception], ...] = (StorageError, *error_classes())
        try:
            try:
                done = run(self.db, body)
            except error_classes():
                done = run(self.db, body)  # perhaps only this transaction was unlucky
        except errors as failed:
            raise FDBError(1021) from failed
        if done in (None, _NONE):
            raise error
        return self.results[done]
