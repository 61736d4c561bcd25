"""The reads of a transaction, with the official binding's interface."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, overload

from fdb import fdboptions

from fdbqueue import types
from fdbqueue.embedded.ranges import key_after
from fdbqueue.embedded.transaction.attempt import Attempt, Rows, as_key, is_selector
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
    "prefix_end",
]

BINDING_REFUSED = (
    "fdb.transactional does not retry transactions of an embedded database; decorate the function "
    "with fdbqueue.transactional, which runs on both engines"
)

_EXACT = fdboptions.StreamingMode["exact"][0]


def prefix_end(prefix: KeyLike) -> bytes:
    r"""Return the first key after all keys that start with `prefix`.

    >>> prefix_end(b"ab\xff")
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
        attempt: Attempt,
        snapshot: bool,
        begin: bytes | types.KeySelector,
        end: bytes | types.KeySelector,
        limit: int,
        reverse: bool,
        exact: bool,
    ) -> None:
        self._attempt = attempt
        self._snapshot = snapshot
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = reverse
        # The first batch is read now, in the order of the transaction's operations.
        self._rows: Rows = []
        self._more = False
        self._error: FdbqueueError | None = None
        try:
            if exact and limit in (0, -1):
                raise FDBError(2210)
            self._rows, self._more = attempt.read_range(begin, end, limit, reverse, snapshot)
        except FDBError as error:
            self._error = attempt.failed_read(error)

    def to_list(self) -> list[KeyValue]:
        """Return all rows as a list."""
        return list(self)

    def __iter__(self) -> Iterator[KeyValue]:
        if self._error is not None:
            raise fresh(self._error)
        if self._more and self._limit != len(self._rows):
            return self._all_batches()
        return map(as_row, self._rows)

    def _all_batches(self) -> Iterator[KeyValue]:
        rows, more, left, batch = self._rows, self._more, self._limit, 0
        begin, end = self._begin, self._end
        while True:
            yield from map(as_row, rows)
            if not more or not rows or left == len(rows):
                return
            if left > 0:
                left -= len(rows)
            if self._reverse:
                end = rows[-1][0]
            else:
                begin = key_after(rows[-1][0])
            batch += 1
            try:
                rows, more = self._attempt.read_range(
                    begin, end, left, self._reverse, self._snapshot, batch
                )
            except FDBError as error:
                raise self._attempt.failed_read(error) from None


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
        streaming_mode: int = -1,
    ) -> FDBRange:
        """Return the rows from `begin` up to, but not including, `end`.

        Args:
            begin: A key or key selector; `None` for the first key.
            end: A key or key selector; `None` for the end of the keys.
            limit: The most rows to return; 0 or -1 for no limit.
            reverse: Whether to return the last row first.
            streaming_mode: Ignored, except that `exact` requires a limit (2210 otherwise).
        """
        return FDBRange(
            self._attempt,
            self.is_snapshot,
            begin if type(begin) is bytes else _as_end(begin, b""),
            end if type(end) is bytes else _as_end(end, b"\xff"),
            limit,
            bool(reverse),
            streaming_mode == _EXACT,
        )

    def get_range_startswith(
        self, prefix: KeyLike, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> FDBRange:
        """Return the rows whose keys start with `prefix`."""
        prefix = as_key(prefix)
        return self.get_range(prefix, prefix_end(prefix), limit, reverse, streaming_mode)

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
        view = self.database.storage.begin()
        try:
            with closing(view.rows(begin, end, False)) as rows:
                for key, value in rows:
                    yield key, len(key) + len(value)
        finally:
            self.database.storage.end(view)


class SnapshotRead(TransactionRead):
    """The reads of `tr.snapshot`, which do not conflict."""

    is_snapshot = True


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
