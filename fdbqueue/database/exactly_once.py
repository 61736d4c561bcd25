"""Transactions that take effect exactly once, even if a commit's result is unknown."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import engine_of
from fdbqueue.database.retrying import run
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

    Each commit writes a receipt, or its result names what it stored. After an unknown result, the
    next attempt looks for this; see `docs/design/receipts.md`. The embedded engine does not repeat
    a commit with an unknown result; on it, this is `run`.

    An attempt leaves a receipt if `wrote(result)`. `begin` is as for `run`. With `is_stored`, there
    are no receipts: `is_stored(tr, result)` looks for what an attempt stored. If absent, it adds a
    write conflict to what the attempt has read. It may return false if others have deleted it: the
    operation runs again, or raises its error. What the result does not name, such as a sweep, may
    still commit.

    Raises:
        FDBError: An error that is not retryable, once it is certain that nothing took effect;
            or 1021, if the database cannot be reached to find out, or the disk did not confirm.
    """
    if engine_of(db).commits_are_certain:
        return run(db, body, begin)
    receipt = _Receipt(receipts) if is_stored is None else None
    result: _T = _Operation(body, wrote, is_stored, receipt).run(db, begin)
    return result


_RECEIPT_HOURS = 24  # hours after which receipts are deleted
_NONE = -1  # instead of the number of an attempt, so that no attempt can commit any more


def _hour() -> int:
    return int(time.time() // 3600)


class _Client:
    def __init__(self) -> None:
        self.hour = _hour()
        self.id = uuid.uuid4().bytes
        self.sequence = 0


_free_clients: list[_Client] = []
os.register_at_fork(after_in_child=_free_clients.clear)


# Errors of a commit after which it may or may not have taken effect.
_MAYBE_COMMITTED = frozenset({1021, 1031, 1039})


class _Committed(Exception):
    """An earlier attempt has committed, so this one commits nothing."""

    def __init__(self, result: Any) -> None:
        super().__init__(result)
        self.result = result


class _Receipt:
    """The receipt of one operation, under a client of this hour.

    After an error the client is not reused: its last operation may still be in flight.
    """

    def __init__(self, receipts: Subspace) -> None:
        try:
            client = _free_clients.pop()
            if client.hour != _hour():
                client = _Client()
        except IndexError:
            client = _Client()
        client.sequence += 1
        self.client = client
        self._number = client.sequence
        self._receipts = receipts
        self._key = receipt_key(receipts, client.hour, client.id)

    def find(self, tr: Transaction) -> int | None:
        receipt = tr[self._key].value
        if receipt is None:
            return None
        number, attempt = decode_receipt(receipt)
        return attempt if number == self._number else None

    def write(self, tr: Transaction, attempt: int) -> None:
        """Write an attempt's receipt, which conflicts with the others.

        A client's first receipt deletes receipts a day older.
        """
        tr.add_read_conflict_key(self._key)
        tr[self._key] = encode_receipt(self._number, attempt)
        if self._number == 1:
            tr.clear_range(*receipts_before(self._receipts, self.client.hour - _RECEIPT_HOURS))


@dataclass(eq=False)
class _Operation:
    body: Callable[[Transaction], Any]
    wrote: Callable[[Any], bool]
    is_stored: Callable[[Transaction, Any], bool] | None
    receipt: _Receipt | None
    _results: list[Any] = field(default_factory=list[Any])
    _is_committing: bool = False
    _is_uncertain: bool = False  # whether an earlier attempt may have committed

    def run(self, db: Database, begin: Callable[[], object]) -> Any:
        try:
            result = run(db, self._attempt, begin, self._note_error)
        except _Committed as earlier:
            result = earlier.result
        except Exception as error:
            if not self._is_uncertain:
                raise
            result = self._settle(db, error)
        if self.receipt is not None:
            _free_clients.append(self.receipt.client)
        return result

    def _attempt(self, tr: Transaction) -> Any:
        self._is_committing = False
        if self._is_uncertain and (done := self._committed_attempt(tr)) is not None:
            raise _Committed(self._results[done])
        result = self.body(tr)
        # After an unknown result even an attempt that wrote nothing must fence the earlier one off.
        if self._is_uncertain or self.wrote(result):
            self._results.append(result)
            if self.receipt is not None:
                self.receipt.write(tr, len(self._results) - 1)
            self._is_committing = True
        return result

    def _note_error(self, error: Any) -> None:
        if self._is_committing and error.code in _MAYBE_COMMITTED:
            self._is_uncertain = True

    def _committed_attempt(self, tr: Transaction) -> int | None:
        if self.receipt is not None:
            return self.receipt.find(tr)
        assert self.is_stored is not None
        # A list: each of the others is fenced off.
        stored = [n for n, result in enumerate(self._results) if self.is_stored(tr, result)]
        return stored[0] if stored else None

    def _settle(self, db: Database, error: Exception) -> Any:
        """Return the committed attempt's result; if none can commit any more, raise the error."""

        def body(tr: Transaction) -> int | None:
            committed = self._committed_attempt(tr)
            if committed is None and self.receipt is not None:
                self.receipt.write(tr, _NONE)
            return committed

        errors: tuple[type[Exception], ...] = (StorageError, *error_classes())
        try:
            try:
                done = run(db, body)
            except error_classes():
                done = run(db, body)  # perhaps only this transaction was unlucky
        except errors as failed:
            raise FDBError(1021) from failed
        if done in (None, _NONE):
            raise error
        return self._results[done]
