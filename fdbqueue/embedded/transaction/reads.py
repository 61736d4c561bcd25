"""The reads of a transaction, with the official binding's interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, overload

from fdb import fdboptions

from fdbqueue import types
from fdbqueue.embedded.arguments import as_key, is_selector, strinc
from fdbqueue.embedded.ranges import Range
from fdbqueue.embedded.transaction.attempt import MOST_ROWS, Attempt
from fdbqueue.embedded.transaction.futures import Future, Key, KeyValue, Value, as_row, fresh
from fdbqueue.embedded.transaction.write_map import Rows
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.types import KeyLike, KeyOrSelector

BINDING_REFUSED = (
    "fdb.transactional does not retry transactions of an embedded database; decorate the function "
    "with fdbqueue.transactional, which runs on both engines"
)

_ITERATOR, _EXACT = (fdboptions.StreamingMode[name][0] for name in ("iterator", "exact"))
_FIRST_ROWS = {
    mode: MOST_ROWS if name in ("want_all", "exact", "serial") else 16
    for name, (mode, *_) in fdboptions.StreamingMode.items()
}
"""The rows that a range read fetches first, by streaming mode. Each later batch is larger."""


class FDBRange:
    """The rows of a range read, fetched in batches during iteration.

    The first batch is read at once, in the order of the transaction's operations.
    """

    __slots__ = ("_attempt", "_error", "_limit", "_reads", "_rest", "_reverse", "_rows")

    def __init__(
        self,
        reads: TransactionRead,
        begin: bytes | types.KeySelector,
        end: bytes | types.KeySelector,
        limit: int,
        reverse: bool,
        mode: int,
    ) -> None:
        self._reads = reads  # keeps the database open until all rows are read
        self._attempt = attempt = reads._attempt
        self._limit = limit
        self._reverse = reverse
        self._rows: Rows = []
        self._rest: Range | None = None
        self._error: FdbqueueError | None = None
        try:
            if mode not in _FIRST_ROWS:
                raise FDBError(2000)
            if mode == _EXACT and limit in (0, -1):
                raise FDBError(2210)
            self._rows, self._rest = attempt.read_range(
                begin, end, limit, reverse, reads.is_snapshot, _FIRST_ROWS[mode]
            )
        except FDBError as error:
            self._error = attempt.failed_read(error)

    def to_list(self) -> list[KeyValue]:
        """Return all rows as a list."""
        return list(self)

    def __iter__(self) -> Iterator[KeyValue]:
        if self._error is not None:
            raise fresh(self._error)
        return map(as_row, self._rows) if self._rest is None else self._all_rows()

    def _all_rows(self) -> Iterator[KeyValue]:
        rows, rest, left = self._rows, self._rest, self._limit
        yield from map(as_row, rows)
        while rest is not None:
            begin, end = rest
            left = left - len(rows) if left > 0 else left
            count = min(4 * len(rows), MOST_ROWS)
            try:
                rows, rest = self._attempt.read_range(
                    begin, end, left, self._reverse, self._reads.is_snapshot, count
                )
            except FDBError as error:
                self._attempt.failed_read(error)
                raise
            yield from map(as_row, rows)


class TransactionRead:
    """The reads of a transaction. `tr.snapshot` offers the same without read conflicts."""

    is_snapshot = False

    db: types.Database
    """The database of the transaction."""
    _attempt: Attempt

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # The binding's decorator takes whatever is not its own transaction for a database.
            if name == "create_transaction":
                raise AttributeError(BINDING_REFUSED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get(self, key: KeyLike) -> Value:
        """Return the value of a key."""
        try:
            if type(key) is not bytes:
                key = as_key(key)
            return Value(self._attempt.read_value(key, self.is_snapshot))
        except FdbqueueError as error:
            return Value(None, self._attempt.failed_read(error))

    def get_key(self, key_selector: types.KeySelector) -> Key:
        r"""Return the key of a selector; `b""` before the first key, `b"\xff"` after the last."""
        try:
            return Key(self._attempt.read_key(key_selector, self.is_snapshot))
        except FdbqueueError as error:
            return Key(None, self._attempt.failed_read(error))

    def get_range(
        self,
        begin: KeyOrSelector | None,
        end: KeyOrSelector | None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = _ITERATOR,
    ) -> FDBRange:
        """Return the rows from `begin` up to, but not including, `end`.

        Args:
            begin: A key or key selector; `None` for the first key.
            end: A key or key selector; `None` for the end of the keys.
            limit: The most rows to return; 0 or -1 for no limit.
            reverse: Whether to return the last row first.
            streaming_mode: How many rows to read first; later batches are larger. `exact` requires
                a limit (2210 otherwise). A transaction conflicts with all rows that it has read,
                also those that the caller has not come to.
        """
        return FDBRange(
            self,
            begin if type(begin) is bytes else _as_end(begin, b""),
            end if type(end) is bytes else _as_end(end, b"\xff"),
            limit,
            bool(reverse),
            streaming_mode,
        )

    def get_range_startswith(
        self,
        prefix: KeyLike,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = _ITERATOR,
    ) -> FDBRange:
        """Return the rows whose keys start with `prefix`."""
        prefix = as_key(prefix)
        return self.get_range(prefix, strinc(prefix), limit, reverse, streaming_mode)

    @overload
    def __getitem__(self, key: KeyLike) -> Value: ...

    @overload
    def __getitem__(self, key: slice) -> FDBRange: ...

    def __getitem__(self, key: KeyLike | slice) -> Value | FDBRange:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)

    def get_read_version(self) -> Future[int]:
        """Return the version that the transaction reads at, also after its commit."""
        try:
            return Future(self._attempt.read_version())
        except FdbqueueError as error:
            return Future(0, error)


class SnapshotRead(TransactionRead):
    """The reads of `tr.snapshot`, which do not conflict."""

    is_snapshot = True

    def __init__(self, db: types.Database) -> None:
        self.db = db


def _as_end(key_or_selector: KeyOrSelector | None, default: bytes) -> bytes | types.KeySelector:
    """Return an end of a range: a key, or a key selector of this module or of the binding."""
    if key_or_selector is None:
        return default
    return key_or_selector if is_selector(key_or_selector) else as_key(key_or_selector)
