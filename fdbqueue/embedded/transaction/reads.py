"""The reads of a transaction, with the official binding's interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, overload

from fdb import fdboptions

from fdbqueue import types
from fdbqueue.embedded.arguments import as_key, is_selector, strinc
from fdbqueue.embedded.ranges import key_after
from fdbqueue.embedded.transaction.attempt import UNLIMITED, Attempt, Rows
from fdbqueue.embedded.transaction.futures import Future, Key, KeyValue, Value, as_row, fresh
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.types import KeyLike, KeyOrSelector

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


class FDBRange:
    """The rows of a range read, fetched in batches during iteration.

    The first batch is read at once, in the order of the transaction's operations.
    """

    def __init__(
        self,
        reads: TransactionRead,
        attempt: Attempt,
        begin: bytes | types.KeySelector,
        end: bytes | types.KeySelector,
        limit: int,
        reverse: bool,
        mode: int,
        number: int = 0,
    ) -> None:
        self._reads = reads  # keeps the database open until all rows are read
        self._attempt = attempt
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = reverse
        self._mode = mode
        self._number = number
        self._rows: Rows = []
        self._more = False
        self._error: FdbqueueError | None = None
        try:
            if mode == _ITERATOR:
                size = _ITERATOR_BYTES[number] if number < _ITERATIONS else _ITERATOR_BYTES[-1]
            elif mode not in _BATCH_BYTES:
                raise FDBError(2000)
            elif mode == _EXACT and limit in (0, -1):
                raise FDBError(2210)
            else:
                size = _BATCH_BYTES[mode]
            rows, more = attempt.read_range(begin, end, limit, reverse, reads.is_snapshot, size)
        except FDBError as error:
            self._error = attempt.failed_read(error)
        else:
            self._rows, self._more = rows, more and len(rows) != limit

    def to_list(self) -> list[KeyValue]:
        """Return all rows as a list."""
        mode = self._mode
        if mode == _ITERATOR:
            mode = _EXACT if self._limit > 0 else _WANT_ALL
        return list(self._all_rows(mode))

    def __iter__(self) -> Iterator[KeyValue]:
        if self._error is not None:
            raise fresh(self._error)
        return self._all_rows(self._mode) if self._more else map(as_row, self._rows)

    def _all_rows(self, mode: int) -> Iterator[KeyValue]:
        batch: FDBRange | None = self
        while batch is not None:
            if batch._error is not None:
                raise fresh(batch._error)
            rows = batch._rows
            yield from map(as_row, rows[:-1])
            # As in the binding, before the caller has the last row.
            batch = batch._next(mode) if batch._more else None
            yield from map(as_row, rows[-1:])

    def _next(self, mode: int) -> FDBRange:
        """Read the next batch."""
        rows, limit = self._rows, self._limit
        begin, end = self._begin, self._end
        if self._reverse:
            end = rows[-1][0]
        else:
            begin = key_after(rows[-1][0])
        left = limit - len(rows) if limit > 0 else limit
        number = self._number + 1
        return FDBRange(self._reads, self._attempt, begin, end, left, self._reverse, mode, number)


class TransactionRead:
    """The reads of a transaction. `tr.snapshot` offers the same without read conflicts."""

    is_snapshot = False

    db: types.Database
    """The database of the transaction."""

    def __init__(self, db: types.Database, attempt: Attempt) -> None:
        self.db = db
        self._attempt = attempt

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

    def get_read_version(self) -> Future[int]:
        """Return the version that the transaction reads at, also after its commit."""
        attempt = self._attempt
        try:
            if not attempt.is_unrestricted and (code := attempt.deferred or attempt.ended()):
                raise FDBError(code)
            if attempt.version is None:
                view = attempt.held.snapshot or attempt.view()
                if view.present is None:
                    attempt.version = attempt.storage.read_version(view, attempt.deadline)
                else:
                    attempt.version = view.present
            return Future(attempt.version)
        except FdbqueueError as error:
            return Future(0, error)

    def get_estimated_range_size_bytes(self, begin_key: bytes, end_key: bytes) -> Future[int]:
        """Return the size of a range in bytes: exact here, an estimate in FoundationDB.

        It is the size of what is committed now, whatever the transaction reads or has written.
        """
        try:
            return Future(sum(size for _, size in self._committed_sizes(begin_key, end_key)))
        except FdbqueueError as error:
            return Future(0, error)

    def get_range_split_points(
        self, begin_key: bytes, end_key: bytes, chunk_size: int
    ) -> Future[list[bytes]]:
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
            return Future([*points, end_key])
        except FdbqueueError as error:
            return Future([], error.with_traceback(None))

    def _committed_sizes(self, begin: KeyLike, end: KeyLike) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of a range that are committed now, and the sizes of their rows."""
        self._attempt.check()
        begin, end = as_key(begin), as_key(end)
        if begin > end:
            raise FDBError(2005)
        storage = self._attempt.storage
        view = storage.begin(self._attempt.deadline)
        try:
            with closing(view.rows(begin, end, False)) as rows:
                for key, value in rows:
                    yield key, len(key) + len(value)
        finally:
            storage.end(view)


class SnapshotRead(TransactionRead):
    """The reads of `tr.snapshot`, which do not conflict."""

    is_snapshot = True


def _as_end(key_or_selector: KeyOrSelector | None, default: bytes) -> bytes | types.KeySelector:
    """Return an end of a range: a key, or a key selector of this module or of the binding."""
    if key_or_selector is None:
        return default
    return key_or_selector if is_selector(key_or_selector) else as_key(key_or_selector)
