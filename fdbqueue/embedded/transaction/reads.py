"""The reads of a transaction, with the official binding's interface."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, overload

from fdb import fdboptions

from fdbqueue import types
from fdbqueue.embedded.arguments import as_key, is_selector
from fdbqueue.embedded.ranges import key_after
from fdbqueue.embedded.transaction.attempt import UNLIMITED, Attempt, Rows
from fdbqueue.embedded.transaction.futures import (
    FutureInt64,
    FutureKeyArray,
    Key,
    KeyValue,
    Value,
    as_row,
    fresh,
)
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.types import KeyLike, KeyOrSelector

if TYPE_CHECKING:
    from fdbqueue.embedded.database import Database

__all__ = [
    "BINDING_REFUSED",
    "FDBRange",
    "SnapshotRead",
    "TransactionRead",
    "VersionstampFuture",
    "strinc",
]

_Batch: TypeAlias = tuple[Rows, bool, FdbqueueError | None]

BINDING_REFUSED = (
    "fdb.transactional does not retry transactions of an embedded database; decorate the function "
    "with fdbqueue.transactional, which runs on both engines"
)

_ITERATOR, _EXACT, _WANT_ALL = (
    fdboptions.StreamingMode[name][0] for name in ("iterator", "exact", "want_all")
)
# The bytes that FoundationDB reads at once. A transaction conflicts with all of them.
_BATCH_BYTES = {
    _EXACT: UNLIMITED,
    _WANT_ALL: 80_000,
    **{
        fdboptions.StreamingMode[name][0]: size
        for name, size in (("small", 256), ("medium", 1000), ("large", 4096), ("serial", 80_000))
    },
}
_ITERATOR_BYTES = (4096, 6144, 9216, 13_824, 20_736, 31_104, 46_656, 69_984, 80_000, 120_000)
_ITERATIONS = len(_ITERATOR_BYTES)


def strinc(prefix: KeyLike) -> bytes:
    r"""Return the first key after all keys that start with `prefix`.

    >>> strinc(b"ab\xff")
    b'ac'
    """
    stripped = as_key(prefix).rstrip(b"\xff")
    if not stripped:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return stripped[:-1] + bytes([stripped[-1] + 1])


class FDBRange:
    """The rows of a range read, fetched in batches during iteration."""

    def __init__(
        self,
        reads: TransactionRead,
        attempt: Attempt,
        begin: bytes | types.KeySelector,
        end: bytes | types.KeySelector,
        limit: int,
        reverse: bool,
        mode: int,
    ) -> None:
        self._reads = reads  # keeps the transaction until all rows are read
        self._attempt = attempt
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = reverse
        self._mode = mode
        # The first batch is read now, in the order of the transaction's operations.
        self._first = self._batch(begin, end, limit, mode, 0)

    def _batch(
        self,
        begin: bytes | types.KeySelector,
        end: bytes | types.KeySelector,
        limit: int,
        mode: int,
        number: int,
    ) -> _Batch:
        """Read a batch, numbered from 0; return its rows, whether a limit stopped it, its error."""
        try:
            if mode == _ITERATOR:
                size = _ITERATOR_BYTES[number] if number < _ITERATIONS else _ITERATOR_BYTES[-1]
            elif mode not in _BATCH_BYTES:
                raise FDBError(2000)
            elif mode == _EXACT and limit in (0, -1):
                raise FDBError(2210)
            else:
                size = _BATCH_BYTES[mode]
            rows, more = self._attempt.read_range(
                begin, end, limit, self._reverse, self._reads.is_snapshot, size
            )
        except FDBError as error:
            return [], False, self._attempt.failed_read(error)
        return rows, more, None

    def to_list(self) -> list[KeyValue]:
        """Return all rows as a list."""
        mode = self._mode
        if mode == _ITERATOR:
            mode = _EXACT if self._limit > 0 else _WANT_ALL
        return list(self._rows(mode))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._rows(self._mode)

    def _rows(self, mode: int) -> Iterator[KeyValue]:
        rows, more, error = self._first
        if error is not None:
            raise fresh(error)
        if more and rows and self._limit != len(rows):
            return self._all_batches(mode)
        return map(as_row, rows)

    def _all_batches(self, mode: int) -> Iterator[KeyValue]:
        (rows, more, error), left, number = self._first, self._limit, 0
        begin, end = self._begin, self._end
        while rows:
            last = rows[-1]
            yield from map(as_row, islice(rows, len(rows) - 1))
            if more and left != len(rows):
                left -= len(rows) if left > 0 else 0
                if self._reverse:
                    end = last[0]
                else:
                    begin = key_after(last[0])
                number += 1
                # As in the binding, before the caller has the last row.
                rows, more, error = self._batch(begin, end, left, mode, number)
            else:
                rows = []
            yield as_row(last)
        if error is not None:
            raise fresh(error)


class TransactionRead:
    """The reads of a transaction. `tr.snapshot` offers the same without read conflicts."""

    is_snapshot = False

    def __init__(self, database: Database, attempt: Attempt) -> None:
        self.database = database
        self._attempt = attempt

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # The binding's decorator takes whatever is not its own transaction for a database.
            if name == "create_transaction":
                raise AttributeError(BINDING_REFUSED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def db(self) -> Database:
        """The database of the transaction."""
        return self.database

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
            streaming_mode: How many bytes to read at once; `exact` requires a limit (2210
                otherwise). A transaction conflicts with all rows that it has read, also those that
                the caller has not come to.
        """
        return FDBRange(
            self,
            self._attempt,
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

    def get_read_version(self) -> FutureInt64:
        """Return the version that the transaction reads at."""
        try:
            return FutureInt64(self._attempt.read_version())
        except FdbqueueError as error:
            return FutureInt64(error=error)

    def get_estimated_range_size_bytes(self, begin_key: bytes, end_key: bytes) -> FutureInt64:
        """Return the size of a range in bytes: exact here, an estimate in FoundationDB.

        It is the size of what is committed now, whatever the transaction reads or has written.
        """
        try:
            return FutureInt64(sum(size for _, size in self._committed_sizes(begin_key, end_key)))
        except FdbqueueError as error:
            return FutureInt64(error=error)

    def get_range_split_points(
        self, begin_key: bytes, end_key: bytes, chunk_size: int
    ) -> FutureKeyArray:
        """Return keys that split a range into chunks of at most `chunk_size` bytes.

        The first is the begin of the range, the last its end. A larger row is a chunk of its own.
        FoundationDB estimates the sizes; here they are exact.
        """
        if chunk_size <= 0:
            raise ValueError(f"the chunk size must be positive, not {chunk_size}")
        try:
            self._attempt.check()
            if max(begin_key, end_key) > self._attempt.max_read_key:
                raise FDBError(2004)
            points, chunk = [begin_key], 0
            for key, size in self._committed_sizes(begin_key, end_key):
                if chunk and chunk + size > chunk_size:
                    points.append(key)
                    chunk = 0
                chunk += size
            return FutureKeyArray([*points, end_key])
        except FdbqueueError as error:
            return FutureKeyArray(error=error.with_traceback(None))

    def _committed_sizes(self, begin: KeyLike, end: KeyLike) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of a range that are committed now, and the sizes of their rows."""
        self._attempt.check()
        begin, end = as_key(begin), as_key(end)
        if begin > end:
            raise FDBError(2005)
        view = self.database.storage.begin(self._attempt.deadline)
        try:
            with closing(view.rows(begin, end, False)) as rows:
                for key, value in rows:
                    yield key, len(key) + len(value)
        finally:
            self.database.storage.end(view)


class SnapshotRead(TransactionRead):
    """The reads of `tr.snapshot`, which do not conflict."""

    is_snapshot = True

    def __init__(self, transaction: TransactionRead, attempt: Attempt) -> None:
        super().__init__(transaction.database, attempt)
        self._transaction = transaction  # keeps it until its reads are over


def _as_end(key_or_selector: KeyOrSelector | None, default: bytes) -> bytes | types.KeySelector:
    """Return an end of a range: a key, or a key selector of this module or of the binding."""
    if key_or_selector is None:
        return default
    return key_or_selector if is_selector(key_or_selector) else as_key(key_or_selector)


class VersionstampFuture(Key):
    """The versionstamp of a transaction, ready once it is committed."""

    __slots__ = ("_ready",)

    def __init__(self) -> None:
        super().__init__(None)
        self._ready = threading.Event()

    def finish(self, stamp: bytes | None, error: FDBError | None = None) -> None:
        """Make the versionstamp ready, or its error. Only the first call has an effect."""
        if not self._ready.is_set():
            self._value, self._error = stamp, error
            self._ready.set()

    def is_ready(self) -> bool:
        """Return whether the transaction has ended."""
        return self._ready.is_set()

    def block_until_ready(self) -> None:
        """Wait until the transaction has ended."""
        while not self._ready.wait(1.0):
            pass

    @property
    def value(self) -> bytes:
        """The versionstamp. Waits for the commit."""
        self.block_until_ready()
        return super().value

    def wait(self) -> VersionstampFuture:
        """Wait for the commit; return the versionstamp, or raise its error."""
        self.block_until_ready()
        self._check()
        return self
