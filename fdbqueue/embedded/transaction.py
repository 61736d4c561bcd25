"""Transactions: what is read, what is written, what conflicts, what is tried again.

The names and rules are those of the official Python binding; where a docstring here is short, the
binding's documentation (`api-python.rst`) holds. Reads return futures that are ready; writes return
at once and report a bad key or value at the next read or at the commit, as FoundationDB does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from fdbqueue.embedded import limits
from fdbqueue.embedded.atomics import MutationType
from fdbqueue.embedded.futures import (
    FutureInt64,
    FutureVoid,
    Key,
    KeySelector,
    KeyValue,
    Pause,
    Value,
    WatchFuture,
)
from fdbqueue.embedded.locks import Turn
from fdbqueue.embedded.options import Settings, TransactionOptions
from fdbqueue.embedded.ranges import Range, key_after
from fdbqueue.embedded.storage import Snapshot
from fdbqueue.embedded.write_map import Mutation, WriteMap
from fdbqueue.errors import FDBError, FdbqueueError

if TYPE_CHECKING:
    from fdbqueue.embedded.database import Database

__all__ = ["FDBRange", "Transaction", "TransactionRead", "prefix_end"]

# FoundationDB's onError tries these again; the first two without growing the delay.
_RETRYABLE_VERSIONS = frozenset({1007, 1009})
_RETRYABLE = frozenset({1020, 1021, 1037, 1038, 1039, 1042, 1051, 1078, 1213})

_STARVED = 3  # conflicts after which a transaction takes its turn under the writers' lock

# What FoundationDB counts for a mutation and for a conflict range beside their bytes.
_MUTATION_OVERHEAD = 40
_RANGE_OVERHEAD = 24

_FIRST_BATCH = 64  # rows that an unlimited range read fetches first; four times as many each time
_BATCH_BYTES = 1 << 20


def as_key(key: Any) -> bytes:
    """A key as bytes: bytes themselves, or an object with `as_foundationdb_key`."""
    if type(key) is bytes:
        return key
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError(f"Key must be of type bytes, not {type(key).__name__}")
    return key


def as_value(value: Any) -> bytes:
    """A value as bytes: bytes themselves, or an object with `as_foundationdb_value`."""
    if type(value) is bytes:
        return value
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError(f"Value must be of type bytes, not {type(value).__name__}")
    return value


def prefix_end(prefix: Any) -> bytes:
    """The first key behind all those that begin with `prefix`.

    >>> prefix_end(b"ab\\xff")
    b'ac'
    """
    stripped = as_key(prefix).rstrip(b"\xff")
    if not stripped:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return stripped[:-1] + bytes([stripped[-1] + 1])


class FDBRange:
    """The rows of a range read, fetched in batches as they are iterated over."""

    def __init__(
        self,
        reader: TransactionRead,
        begin: KeySelector,
        end: KeySelector,
        limit: int,
        reverse: bool,
    ) -> None:
        self._reader = reader
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = reverse
        # The first batch is read here, at this call's place among the transaction's operations.
        self._rows: list[tuple[bytes, bytes]] = []
        self._more = False
        self._error: FdbqueueError | None = None
        try:
            self._rows, self._more = reader.read_batch(begin, end, limit, reverse, 0)
        except FDBError as error:
            self._error = error

    def to_list(self) -> list[KeyValue]:
        """All rows, as a list."""
        return list(self)

    def __iter__(self) -> Iterator[KeyValue]:
        if self._error is not None:
            raise self._error
        rows, more, left, batch = self._rows, self._more, self._limit, 0
        begin, end = self._begin, self._end
        while True:
            for key, value in rows:
                yield KeyValue(key, value)
            if not more or not rows or left == len(rows):
                return
            if left:
                left -= len(rows)
            if self._reverse:
                end = KeySelector.first_greater_or_equal(rows[-1][0])
            else:
                begin = KeySelector.first_greater_than(rows[-1][0])
            batch += 1
            rows, more = self._reader.read_batch(begin, end, left, self._reverse, batch)


class TransactionRead:
    """The reads of a transaction; `tr.snapshot` has them without read conflicts."""

    is_snapshot = False

    @property
    def _transaction(self) -> Transaction:
        raise NotImplementedError  # pragma: no cover

    @property
    def db(self) -> Database:
        """The database that the transaction belongs to."""
        return self._transaction.database

    def get(self, key: Any) -> Value:
        """The value of a key."""
        try:
            return Value(self._transaction.read_value(as_key(key), self.is_snapshot))
        except FdbqueueError as error:
            return Value(None, error)

    def get_key(self, key_selector: Any) -> Key:
        """The key that a selector describes; `b""` before the first, `b"\\xff"` behind the last."""
        try:
            return Key(self._transaction.read_key(key_selector, self.is_snapshot))
        except FdbqueueError as error:
            return Key(None, error)

    def get_range(
        self,
        begin: Any,
        end: Any,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: Any = None,
    ) -> FDBRange:
        """The rows from `begin` up to, not with, `end`: keys or key selectors.

        A limit of 0 is none. Every streaming mode is accepted, and gives the same rows.
        """
        return FDBRange(
            self,
            _as_selector(b"" if begin is None else begin),
            _as_selector(b"\xff" if end is None else end),
            limit,
            bool(reverse),
        )

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> FDBRange:
        """The rows whose keys begin with `prefix`."""
        prefix = as_key(prefix)
        return self.get_range(prefix, prefix_end(prefix), *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)

    def get_read_version(self) -> FutureInt64:
        """The version that the transaction reads at."""
        try:
            return FutureInt64(self._transaction.read_version())
        except FdbqueueError as error:
            return FutureInt64(error=error)

    def get_estimated_range_size_bytes(self, begin_key: bytes, end_key: bytes) -> FutureInt64:
        """The bytes of keys and values in a range; exact here, an estimate in FoundationDB."""
        try:
            rows = self._transaction.view().rows(as_key(begin_key), as_key(end_key), False)
            return FutureInt64(sum(len(key) + len(value) for key, value in rows))
        except FdbqueueError as error:
            return FutureInt64(error=error)

    def read_batch(
        self, begin: KeySelector, end: KeySelector, limit: int, reverse: bool, batch: int
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """One batch of a range read, and whether there may be more."""
        if limit < 0:
            raise FDBError(2012)
        rows = limit or _FIRST_BATCH << 2 * min(batch, 5)
        return self._transaction.read_range(begin, end, rows, reverse, self.is_snapshot)


class _SnapshotRead(TransactionRead):
    """`tr.snapshot`: reads that do not conflict."""

    is_snapshot = True

    def __init__(self, transaction: Transaction) -> None:
        self._owner = transaction

    @property
    def _transaction(self) -> Transaction:
        return self._owner


def _as_selector(key_or_selector: Any) -> KeySelector:
    # By its attributes: the official binding's own class does as well.
    if hasattr(key_or_selector, "or_equal"):
        return key_or_selector  # type: ignore[no-any-return]
    return KeySelector(key_or_selector, False, 1)


class _Versionstamp(Key):
    """The versionstamp of a transaction: there once it is committed."""

    __slots__ = ("_ready",)

    def __init__(self) -> None:
        super().__init__(None)
        self._ready = threading.Event()

    def finish(self, stamp: bytes | None, error: FDBError | None = None) -> None:
        if not self._ready.is_set():
            self._value, self._error = stamp, error
            self._ready.set()

    def is_ready(self) -> bool:
        return self._ready.is_set()

    def block_until_ready(self) -> None:
        while not self._ready.wait(1.0):
            pass

    @property
    def value(self) -> Any:
        self.block_until_ready()
        self._check()
        return self._value

    def wait(self) -> Any:
        self.block_until_ready()
        self._check()
        return self


class Transaction(TransactionRead):
    """A transaction on an embedded database; `Database.create_transaction` makes them.

    It reads at the version of its first read, sees its own writes, and commits only if nothing that
    it read was written in between (1020 otherwise). Conflicts are found at commit, nothing blocks.
    """

    # Defaults of what most transactions never touch.
    _settings: Settings | None = None
    _snapshot: Snapshot | None = None
    _turn: Turn | None = None
    _fixed_version: int | None = None
    _write_map: WriteMap | None = None
    _mapped = 0
    _stamped_keys: tuple[bytes, ...] = ()
    _watches: tuple[tuple[bytes, bytes | None, WatchFuture], ...] = ()
    _versionstamp: _Versionstamp | None = None
    _deferred: FDBError | None = None
    _over: FDBError | None = None
    _commit_started = False
    _ryw_disabled = False
    _deadline: float | None = None
    _retries = 0
    _conflicts = 0
    _backoff = limits.INITIAL_BACKOFF
    _committed_version = -1
    _read = False
    _size = 0
    skip_next_write_conflict = False
    max_read_key = b"\xff"
    max_write_key = b"\xff"

    def __init__(self, database: Database) -> None:
        self.database = database
        self._mutations: list[Mutation] = []
        self._reads: list[Range] = []
        self._writes: list[tuple[bytes, bytes | None]] = []
        self.snapshot_ryw = database.defaults.snapshot_ryw
        if database.defaults.timeout:
            self.restart_timeout()

    def __del__(self) -> None:
        # A transaction that is dropped without an end must not hold its snapshot.
        if self._snapshot is not None or self._versionstamp is not None or self._watches:
            self._drop(FDBError(1025))

    @property
    def _transaction(self) -> Transaction:
        return self

    @property
    def snapshot(self) -> TransactionRead:
        """The same transaction, read without read conflicts."""
        return _SnapshotRead(self)

    @property
    def options(self) -> TransactionOptions:
        """The options of this transaction, as `set_...` methods."""
        return TransactionOptions(self)

    # Reading

    def view(self) -> Snapshot:
        """The snapshot that this transaction reads from; the first call takes it."""
        snapshot = self._snapshot
        if snapshot is None:
            storage = self.database.storage
            if self._fixed_version is not None:
                snapshot = storage.begin_at(self._fixed_version)
            else:
                if self._conflicts >= _STARVED and self._turn is None:
                    self._turn = storage.turn()
                snapshot = storage.begin()
            self._snapshot = snapshot
        return snapshot

    def _check(self) -> None:
        """Raise what stands in the way of another operation."""
        if self._deferred is not None:
            raise self._deferred
        if self._commit_started:
            self._over = self._over or FDBError(2017)
            raise FDBError(2017)
        if self._over is not None:
            raise self._over
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._over = FDBError(1031)
            raise self._over

    def _own_writes(self, snapshot: bool) -> WriteMap | None:
        """The own writes that a read has to see; `None` if there are none."""
        if not self._mutations or self._ryw_disabled or (snapshot and self.snapshot_ryw <= 0):
            return None
        return self._map_writes()

    def _map_writes(self) -> WriteMap:
        if self._write_map is None:
            self._write_map = WriteMap()
        version = 0 if self._snapshot is None else self._snapshot.version
        for mutation in self._mutations[self._mapped :]:
            self._write_map.add(mutation, version)
        self._mapped = len(self._mutations)
        return self._write_map

    def _conflict_with(self, begin: bytes, end: bytes) -> None:
        """Note that the transaction depends on what the database has in a range."""
        if begin >= end:
            return
        self._size += len(begin) + len(end) + _RANGE_OVERHEAD
        if self._mutations and not self._ryw_disabled:
            self._reads.extend(self._map_writes().dependent_parts(begin, end))
        else:
            self._reads.append((begin, end))

    def read_value(self, key: bytes, snapshot: bool) -> bytes | None:
        """The value of a key, as this transaction sees it."""
        self._check()
        self._read = True
        if key >= self.max_read_key:
            raise FDBError(2004)
        if len(key) > limits.KEY_SIZE_LIMIT and len(key) > _key_size_limit(key):
            return None
        own = self._own_writes(snapshot)
        if own is None:
            value = self.view().get(key)
        else:
            value = own.get(key, self.view().get(key) if own.needs_database(key) else None)
        if not snapshot:
            self._conflict_with(key, key_after(key))
        return value

    def read_key(self, selector: Any, snapshot: bool) -> bytes:
        """The key that a selector describes, as this transaction sees it."""
        self._check()
        self._read = True
        key, offset = self._normalized(selector)
        own = self._own_writes(snapshot)
        if offset > 0:
            found = self._nth(own, key, self.max_read_key, offset, reverse=False)
            resolved = self.max_read_key if found is None else found
            conflict = (key, key_after(resolved))
        else:
            found = self._nth(own, b"", key, 1 - offset, reverse=True)
            resolved = b"" if found is None else found
            conflict = (resolved, key)
        if not snapshot:
            self._conflict_with(*conflict)
        return resolved

    def _normalized(self, selector: Any) -> tuple[bytes, int]:
        """A selector as (key, offset) from the first key that is at least `key`."""
        key = as_key(selector.key)
        if key > self.max_read_key:
            raise FDBError(2004)
        return (key_after(key) if selector.or_equal else key), selector.offset

    def _nth(
        self, own: WriteMap | None, begin: bytes, end: bytes, count: int, reverse: bool
    ) -> bytes | None:
        """The key of the range's row number `count`, from one; `None` if it has fewer."""
        row = next(islice(self._rows(own, begin, end, reverse), count - 1, None), None)
        return None if row is None else row[0]

    def _rows(
        self, own: WriteMap | None, begin: bytes, end: bytes, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self.view().rows(begin, end, reverse)
        return rows if own is None else own.merge(rows, begin, end, reverse)

    def read_range(
        self, begin: KeySelector, end: KeySelector, limit: int, reverse: bool, snapshot: bool
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Up to `limit` rows between two selectors, and whether the limit ended the reading."""
        self._check()
        self._read = True
        begin_key, begin_offset = self._normalized(begin)
        end_key, end_offset = self._normalized(end)
        if begin_key >= end_key and begin_offset >= end_offset:
            return [], False
        own = self._own_writes(snapshot)
        if own is None and begin_offset == 1 and end_offset == 1:
            if limit <= _FIRST_BATCH:
                rows = self.view().first_rows(begin_key, end_key, reverse, limit)
                more = len(rows) >= limit
            else:
                rows, more = _batch(self._rows(None, begin_key, end_key, reverse), limit)
            if not snapshot:
                self._range_conflict(begin_key, end_key, rows, more, reverse)
            return rows, more
        return self._read_between(
            own, (begin_key, begin_offset), (end_key, end_offset), limit, reverse, snapshot
        )

    def _read_between(
        self,
        own: WriteMap | None,
        begin: tuple[bytes, int],
        end: tuple[bytes, int],
        limit: int,
        reverse: bool,
        snapshot: bool,
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """A range read whose ends have to be found first, or which has to see own writes."""
        first, to_begin, through_end = self._boundary(own, *begin)
        last, end_to_begin, end_through_end = self._boundary(own, *end)
        rows: list[tuple[bytes, bytes]] = []
        more = False
        if first < last:
            rows, more = _batch(self._rows(own, first, last, reverse), limit)
        if not snapshot:
            self._range_conflict(
                begin[0],
                end[0],
                rows,
                more,
                reverse,
                begin[1],
                end[1],
                (to_begin or end_to_begin) and not more,
                through_end or end_through_end,
            )
        return rows, more

    def _boundary(self, own: WriteMap | None, key: bytes, offset: int) -> tuple[bytes, bool, bool]:
        """Where a range begins or ends, and whether the search ran off an end of the database."""
        if offset == 1:
            return key, False, False
        if offset > 1:
            found = self._nth(own, key, self.max_read_key, offset, reverse=False)
            return (self.max_read_key, False, True) if found is None else (found, False, False)
        found = self._nth(own, b"", key, 1 - offset, reverse=True)
        return (b"", True, False) if found is None else (found, False, False)

    def _range_conflict(
        self,
        begin: bytes,
        end: bytes,
        rows: list[tuple[bytes, bytes]],
        more: bool,
        reverse: bool,
        begin_offset: int = 1,
        end_offset: int = 1,
        to_begin: bool = False,
        through_end: bool = False,
    ) -> None:
        """Note the range on which the result of a range read depends.

        A read that its limit ended depends on nothing behind its last row. The cases are those of
        `addConflictRange` in `fdbclient/ReadYourWrites.actor.cpp`.
        """
        low, high = (begin, end) if begin < end else (end, begin)
        if begin < end and more:
            if reverse and begin_offset <= 1:
                low = end
            elif not reverse and end_offset > 0:
                high = begin
        if to_begin and begin_offset <= 0:
            low = b""
        if through_end and end_offset > 0:
            high = self.max_read_key
        if rows:
            lowest, highest = (rows[-1][0], rows[0][0]) if reverse else (rows[0][0], rows[-1][0])
            if reverse or begin_offset <= 0:
                low = min(low, lowest)
            if high <= highest and (not reverse or end_offset > 0):
                high = key_after(highest)
        self._conflict_with(low, high)

    # Writing

    def _fail(self, code: int) -> None:
        """Keep an error of a write for the next read or the commit, which report it."""
        if self._deferred is None:
            self._deferred = FDBError(code)

    def _write(self, mutation: Mutation, end: bytes | None) -> None:
        """Buffer a mutation; `end` is the end of its conflict range, `None` for a single key."""
        key = mutation.key
        self._mutations.append(mutation)
        size = len(key) + len(mutation.param) + _MUTATION_OVERHEAD
        if self.skip_next_write_conflict:
            self.skip_next_write_conflict = False
        else:
            self._writes.append((key, end))
            size += len(key) + (len(key) + 1 if end is None else len(end)) + _RANGE_OVERHEAD
        self._size += size

    def _may_write(self, key: bytes) -> bool:
        if self._commit_started:
            self._over = self._over or FDBError(2017)
            self._fail(2017)
        elif key >= self.max_write_key:
            self._fail(2004)
        elif len(key) > limits.KEY_SIZE_LIMIT and len(key) > _key_size_limit(key):
            self._fail(2102)
        else:
            return True
        return False

    def set(self, key: Any, value: Any) -> None:
        """Give a key a value."""
        key, value = as_key(key), as_value(value)
        if self._may_write(key):
            if len(value) > limits.VALUE_SIZE_LIMIT:
                self._fail(2103)
            else:
                self._write(Mutation(MutationType.SET, key, value), None)

    def clear(self, key: Any) -> None:
        """Take a key's value away."""
        key = as_key(self.get_key(key) if hasattr(key, "or_equal") else key)
        if len(key) > _key_size_limit(key) and not self._commit_started:
            return  # no such key can be there
        if self._may_write(key):
            self._write(Mutation(MutationType.CLEAR_RANGE, key, key_after(key)), None)

    def clear_range(self, begin: Any, end: Any) -> None:
        """Take away the values of all keys from `begin` up to, not with, `end`."""
        begin, end = (
            as_key(self.get_key(key) if hasattr(key, "or_equal") else key)
            for key in (b"" if begin is None else begin, b"\xff" if end is None else end)
        )
        if self._commit_started:
            self._may_write(begin)
        elif begin > end:
            self._fail(2005)
        elif begin > self.max_write_key or end > self.max_write_key:
            self._fail(2004)
        elif begin < end:
            self._write(Mutation(MutationType.CLEAR_RANGE, begin, end), end)

    def clear_range_startswith(self, prefix: Any) -> None:
        """Take away the values of all keys that begin with `prefix`."""
        prefix = as_key(prefix)
        self.clear_range(prefix, prefix_end(prefix))

    def _atomic(self, kind: MutationType, key: Any, param: Any) -> None:
        key, param = as_key(key), as_value(param)
        if self._may_write(key):
            if len(param) > limits.VALUE_SIZE_LIMIT:
                self._fail(2103)
            else:
                self._write(Mutation(kind, key, param), None)

    def add(self, key: Any, param: Any) -> None:
        """Add a little-endian integer; a missing value counts as zero."""
        self._atomic(MutationType.ADD, key, param)

    def bit_and(self, key: Any, param: Any) -> None:
        """Combine bit by bit; a missing value becomes the parameter."""
        self._atomic(MutationType.BIT_AND, key, param)

    def bit_or(self, key: Any, param: Any) -> None:
        """Combine bit by bit; a missing value counts as zeros."""
        self._atomic(MutationType.BIT_OR, key, param)

    def bit_xor(self, key: Any, param: Any) -> None:
        """Combine bit by bit; a missing value counts as zeros."""
        self._atomic(MutationType.BIT_XOR, key, param)

    def max(self, key: Any, param: Any) -> None:
        """Keep the greater of two little-endian integers."""
        self._atomic(MutationType.MAX, key, param)

    def min(self, key: Any, param: Any) -> None:
        """Keep the lesser of two little-endian integers; a missing value becomes the parameter."""
        self._atomic(MutationType.MIN, key, param)

    def byte_max(self, key: Any, param: Any) -> None:
        """Keep the value that sorts later, byte by byte."""
        self._atomic(MutationType.BYTE_MAX, key, param)

    def byte_min(self, key: Any, param: Any) -> None:
        """Keep the value that sorts earlier; a missing value becomes the parameter."""
        self._atomic(MutationType.BYTE_MIN, key, param)

    def append_if_fits(self, key: Any, param: Any) -> None:
        """Append to the value unless it would pass the limit of 100,000 bytes."""
        self._atomic(MutationType.APPEND_IF_FITS, key, param)

    def compare_and_clear(self, key: Any, param: Any) -> None:
        """Take the value away if it equals the parameter."""
        self._atomic(MutationType.COMPARE_AND_CLEAR, key, param)

    def set_versionstamped_key(self, key: Any, param: Any) -> None:
        """Set a key into which the commit puts the versionstamp, where its last four bytes say."""
        key, param = as_key(key), as_value(param)
        if not self._may_write(key):
            return
        if len(param) > limits.VALUE_SIZE_LIMIT:
            self._fail(2103)
        elif not _stamp_fits(key):
            self._fail(2000)
        else:
            # The conflict range is the key that comes out, which the commit knows.
            self.skip_next_write_conflict = True
            self._write(Mutation(MutationType.SET_VERSIONSTAMPED_KEY, key, param), None)
            self._stamped_keys += (key,)
            if not self._ryw_disabled:
                self._map_writes()  # now: which keys are unreadable depends on the read version

    def set_versionstamped_value(self, key: Any, param: Any) -> None:
        """Set a value into which the commit puts the versionstamp."""
        if not _stamp_fits(as_value(param)):
            self._fail(2000)
        else:
            self._atomic(MutationType.SET_VERSIONSTAMPED_VALUE, key, param)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    # Conflict ranges

    def add_read_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict as if the range had been read."""
        begin, end = self._conflict_range(begin, end, self.max_read_key)
        if begin < end and self._deferred is None:
            self._conflict_with(begin, end)

    def add_read_conflict_key(self, key: Any) -> None:
        """Conflict as if the key had been read."""
        key = as_key(key)
        self.add_read_conflict_range(key, key_after(key))

    def add_write_conflict_range(self, begin: Any, end: Any) -> None:
        """Make others conflict as if the range had been written."""
        begin, end = self._conflict_range(begin, end, self.max_write_key)
        if begin < end and self._deferred is None:
            self._writes.append((begin, end))
            self._size += len(begin) + len(end) + _RANGE_OVERHEAD

    def add_write_conflict_key(self, key: Any) -> None:
        """Make others conflict as if the key had been written."""
        key = as_key(key)
        self.add_write_conflict_range(key, key_after(key))

    def _conflict_range(self, begin: Any, end: Any, greatest: bytes) -> Range:
        begin, end = as_key(begin), as_key(end)
        if begin > end:
            raise FDBError(2005)
        if self._commit_started:
            self._may_write(begin)
        elif begin > greatest or end > greatest:
            self._fail(2004)
        return begin, end

    # Versions

    def read_version(self) -> int:
        """The version that the transaction reads at."""
        if self._deferred is not None or self._over is not None:
            raise self._deferred or self._over or FDBError(1025)
        self._read = True
        if self._fixed_version is None:
            if self._turn is not None:
                self._turn.end()  # the lock is asked for below
            self._fixed_version = self.database.storage.read_version(self.view())
        return self._fixed_version

    def set_read_version(self, version: int) -> None:
        """Read at this version, for example at what another transaction committed.

        The embedded engine keeps no history: a version before the last commit is too old (1007).
        """
        if self._fixed_version is not None or self._snapshot is not None:
            self._fail(2010)
        elif version <= 0:
            self._fail(2011)
        else:
            self._fixed_version = version

    def get_committed_version(self) -> int:
        """The version of the commit; -1 before it, and for a transaction that wrote nothing."""
        return self._committed_version

    def get_versionstamp(self) -> Key:
        """The versionstamp, a future that the commit makes ready; ask for it before the commit."""
        try:
            self._check()
        except FDBError as error:
            return Key(None, error)
        if self._versionstamp is None:
            self._versionstamp = _Versionstamp()
        return self._versionstamp

    def get_approximate_size(self) -> FutureInt64:
        """About how many bytes count against the limit of 10,000,000 by now."""
        return FutureInt64(self._size)

    # The end

    def watch(self, key: Any) -> WatchFuture:
        """A future that is ready once the key's value is no longer what this transaction saw.

        It counts from the commit on, and reads the key: that read can conflict.
        """
        future = WatchFuture()
        try:
            if self._ryw_disabled:
                raise FDBError(1034)
            key = as_key(key)
            if len(key) > _key_size_limit(key):
                raise FDBError(2102)
            value = self.read_value(key, snapshot=False)
            self.database.watcher.reserve(len(self._watches) + 1)
            self._watches += ((key, value, future),)
        except FdbqueueError as error:
            future.finish(error)
        return future

    def commit(self) -> FutureVoid:
        """Make the writes take place, all at once, unless a read is out of date (1020).

        Its outcome is always known: 1021 does not occur here. Acknowledged is on disk, where the
        database is durable.
        """
        try:
            self._commit()
        except FdbqueueError as error:
            return FutureVoid(error)
        return FutureVoid()

    def _commit(self) -> None:
        self._check()
        self._commit_started = True
        watches = self._watched_values()
        try:
            if self._mutations or self._writes:
                if self._size > self._setting().size_limit:
                    raise FDBError(2101)
                if self._reads:
                    self.view()  # conflict ranges without a read count from now
                snapshot, self._snapshot = self._snapshot, None
                turn, self._turn = self._turn, None
                self._committed_version = self.database.storage.commit(
                    snapshot, turn, self._reads, self._mutations, self._writes, self._stamped_keys
                )
        except FDBError:
            if self._versionstamp is not None:
                self._versionstamp.finish(None, FDBError(2020))
            raise
        finally:
            self._release()
        if self._versionstamp is not None:
            if self._committed_version < 0:
                self._versionstamp.finish(None, FDBError(2021))
            else:
                self._versionstamp.finish(self._committed_version.to_bytes(8, "big") + b"\0\0")
        self._watches = ()
        for key, value, future in watches:
            self.database.watcher.watch(key, value, future)

    def _watched_values(self) -> list[tuple[bytes, bytes | None, WatchFuture]]:
        """The watches to set, each with the value that the key has after this transaction.

        A watch whose key the transaction itself changed, after setting it, has its change.
        """
        watches = []
        for key, seen, future in self._watches:
            own = self._map_writes() if self._mutations else None
            try:
                value = seen if own is None or not own.touches(key) else own.get(key, seen)
            except FDBError:
                value = None  # a versionstamp: a value that nobody saw yet
                future.finish()
            if value != seen:
                future.finish()
            if not future.is_ready():
                watches.append((key, value, future))
        return watches

    def on_error(self, error: Any) -> FutureVoid:
        """Prepare another attempt after an error that one can help, else fail with that error.

        The future is the pause before the attempt: FoundationDB's, growing from 10 ms to a second.
        """
        if isinstance(error, int):
            error = FDBError(error)
        if not hasattr(error, "code"):
            raise error
        if self._over is not None:
            return FutureVoid(self._over)
        settings = self._setting()
        limited = settings.retry_limit != -1 and self._retries >= settings.retry_limit
        self._retries += 1
        if limited or error.code not in _RETRYABLE | _RETRYABLE_VERSIONS:
            self._drop(FDBError(1025))
            self._over = FDBError(1025)
            return FutureVoid(error)
        longest = settings.max_retry_delay / 1000
        if error.code in _RETRYABLE_VERSIONS:
            pause = min(limits.FUTURE_VERSION_DELAY, longest)
        else:
            pause = self._backoff * random.random()
            self._backoff = min(self._backoff * limits.BACKOFF_GROWTH, longest)
        if self._deadline is not None and time.monotonic() + pause >= self._deadline:
            self._drop(FDBError(1031))
            self._over = FDBError(1031)
            return FutureVoid(self._over)
        if error.code == 1020:
            self._conflicts += 1
        self._restart()
        return Pause(pause)

    def reset(self) -> None:
        """Begin anew, as a transaction just created."""
        self._restart()
        self._settings = None
        self._retries = self._conflicts = 0
        self._backoff = limits.INITIAL_BACKOFF
        self._deadline = None
        if self.database.defaults.timeout:
            self.restart_timeout()

    def cancel(self) -> None:
        """Give the transaction up; every further use of it fails with 1025."""
        self._over = self._over or FDBError(1025)
        self._drop(FDBError(1025))

    def _restart(self) -> None:
        """Forget everything that belongs to one attempt."""
        self._drop(FDBError(1025))
        self._mutations, self._reads, self._writes = [], [], []
        self._write_map, self._mapped, self._stamped_keys = None, 0, ()
        self._fixed_version = self._deferred = self._over = None
        self._commit_started = self._ryw_disabled = self._read = False
        self._committed_version, self._size = -1, 0
        self.skip_next_write_conflict = False
        self.max_read_key = self.max_write_key = b"\xff"
        self.snapshot_ryw = self.database.defaults.snapshot_ryw

    def _release(self) -> None:
        """Give back the snapshot and the turn."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self.database.storage.end(snapshot)
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.end()

    def _drop(self, error: FDBError) -> None:
        self._release()
        watches, self._watches = self._watches, ()
        for _, _, future in watches:
            future.finish(error)
        stamp, self._versionstamp = self._versionstamp, None
        if stamp is not None:
            stamp.finish(None, error)

    # Options

    def _setting(self) -> Settings:
        return self.database.defaults if self._settings is None else self._settings

    def own_settings(self) -> Settings:
        """The settings of this transaction alone, to be changed."""
        if self._settings is None:
            self._settings = self.database.defaults.copy()
        return self._settings

    def restart_timeout(self) -> None:
        """Count the time-out from now."""
        timeout = self._setting().timeout
        self._deadline = time.monotonic() + timeout / 1000 if timeout else None

    def disable_read_your_writes(self) -> None:
        """Let reads not see own writes; only before the first operation (2000)."""
        if self._read or self._mutations or self._writes:
            raise FDBError(2000)
        self._ryw_disabled = True


def _batch(
    rows: Iterator[tuple[bytes, bytes]], limit: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The first rows, by number and by bytes, and whether one of these limits ended them."""
    batch = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row[0]) + len(row[1])
        if len(batch) >= limit or size >= _BATCH_BYTES:
            return batch, True
    return batch, False


def _key_size_limit(key: bytes) -> int:
    return limits.SYSTEM_KEY_SIZE_LIMIT if key[:1] == b"\xff" else limits.KEY_SIZE_LIMIT


def _stamp_fits(template: bytes) -> bool:
    """Whether the last four bytes name a place for ten bytes of versionstamp."""
    if len(template) < 4:
        return False
    at = int.from_bytes(template[-4:], "little", signed=True)
    return at >= 0 and at + 10 <= len(template) - 4
