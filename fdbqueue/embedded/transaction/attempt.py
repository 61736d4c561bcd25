"""One attempt of a transaction: its snapshot, its buffered writes and its conflict ranges."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fdbqueue.embedded import limits
from fdbqueue.embedded.arguments import as_key, key_size_limit
from fdbqueue.embedded.disk.damage import check_order
from fdbqueue.embedded.disk.locks import WriteLockHold
from fdbqueue.embedded.mutations import Mutation, MutationType
from fdbqueue.embedded.ranges import Range, RangeSet, key_after
from fdbqueue.embedded.storage.owners import Reference
from fdbqueue.embedded.storage.snapshot import BACKWARD, FORWARD, Snapshot
from fdbqueue.embedded.storage.sql_writer import GET
from fdbqueue.embedded.transaction.futures import VersionstampFuture, WatchFuture
from fdbqueue.embedded.transaction.write_map import NO_VALUE, WriteMap
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.types import KeySelector

if TYPE_CHECKING:
    from fdbqueue.embedded.storage.storage import Storage

Rows: TypeAlias = list[tuple[bytes, bytes]]

Watches: TypeAlias = tuple[tuple[bytes, bytes | None, WatchFuture], ...]
"""Keys, the values that a transaction sees, and the futures of watches set by its commit."""

RANGE_OVERHEAD = 24
"""The bytes that FoundationDB counts for a conflict range in addition to its ends."""

_CLEAR = int(MutationType.CLEAR_RANGE)

# Errors of a read that was performed. Other errors say that its arguments are wrong, or that the
# transaction is over.
_FAILED_READS = (1007, 1009, 1036)

UNLIMITED = sys.maxsize
"""No limit of rows, or of bytes."""

_ROW_OVERHEAD = 24  # bytes that FoundationDB counts for a row in addition to its key and value
_FEW = 16  # rows that are read by one call; more are read one after the other


class Held:
    """The resources of an attempt, until it ends or nothing refers to it any more."""

    __slots__ = ("reference", "snapshot", "storage", "versionstamp", "watches", "write_lock")
    versionstamp: VersionstampFuture | None

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.reference: Reference | None = None
        """The weak reference to the attempt, while there is something to release."""
        self.snapshot: Snapshot | None = None
        self.write_lock: WriteLockHold | None = None
        self.versionstamp = None
        self.watches: Watches = ()

    def release(self) -> None:
        """Release the snapshot and the writers' lock."""
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            self.storage.end(snapshot)
        hold, self.write_lock = self.write_lock, None
        if hold is not None:
            self.storage.lock.end_hold(hold)
        self.let_go()

    def let_go(self) -> None:
        """Forget the attempt, if nothing is left to release."""
        if self.reference is not None and self.versionstamp is None and not self.watches:
            self.storage.attempts.forget(self.reference)
            self.reference = None

    def finish(self, code: int) -> None:
        """Release everything but the watches."""
        self.release()
        stamp, self.versionstamp = self.versionstamp, None
        if stamp is not None:
            stamp.finish(FDBError(code))

    def end_watches(self, error: BaseException) -> None:
        """Fail the watches that were not set by a commit."""
        watches, self.watches = self.watches, ()
        for _, _, future in watches:
            future.finish(error)

    def drop(self) -> None:
        """Release everything."""
        self.finish(1025)
        if self.watches:
            self.end_watches(FDBError(1025))
        self.let_go()


class _Boundary(NamedTuple):
    """An end of a range: a key and an offset, and the key that they lead to.

    Attributes:
        key: The key from which the offset counts.
        offset: The number of the key to find, from 1 for the first one at or after `key`.
        found: That key, or an end of the key space.
        left: The offset that is left after all keys were counted: less than 1 if the search passed
            the first key, more if it passed the last one.
    """

    key: bytes
    offset: int
    found: bytes
    left: int


class Attempt:
    """The reads and writes of a transaction since it was created or last restarted."""

    # Class attributes, because most attempts never change them.
    version: int | None = None
    has_read = False
    is_unrestricted = True
    """False once `check` may raise: after an error or the commit, and if there is a deadline."""
    commit_started = False
    # Codes of errors, not errors: the traceback of an error would keep the transaction alive.
    deferred = 0
    """The error of a write, which the next read or the commit raises."""
    over = 0
    """The error that every further operation raises."""
    size = 0
    """The bytes of all operations so far."""
    uncounted = 0
    """The bytes of `size` that FoundationDB's `get_approximate_size` leaves out."""
    ryw_disabled = False
    skip_next_write_conflict = False
    read_error = 0
    """The error of the first read that failed. As in FoundationDB, the commit fails with it too."""
    max_read_key = b"\xff"
    max_write_key = b"\xff"
    _write_map: WriteMap | None = None
    _mapped = 0
    _starved = False

    deadline: float | None = None
    """When to stop waiting for the writers' lock, by `time.monotonic()`."""
    duration = math.inf
    """The seconds from the snapshot to the commit."""
    reads_ahead = False
    """True if reads return before what they saw is on disk; then the commit waits for it."""

    def __init__(self, held: Held, snapshot_ryw: int) -> None:
        self.held = held
        self.storage = held.storage
        self.snapshot_ryw = snapshot_ryw
        self.mutations: list[Mutation] = []
        self.reads: list[Range] = []
        self.writes: list[bytes] = []

    def restart(self, snapshot_ryw: int, starved: bool) -> None:
        """Begin the next attempt. Snapshot reads and options of the transaction stay valid."""
        self.held.drop()
        reads_ahead, deadline = self.reads_ahead, self.deadline
        self.__dict__ = vars(Attempt(self.held, snapshot_ryw))
        self.reads_ahead = reads_ahead
        self._starved = starved
        self.set_deadline(deadline)

    def check(self) -> None:
        """Raise what prevents another operation."""
        if self.deferred:
            raise FDBError(self.deferred)
        over = self.ended()
        if self.commit_started:
            self.end(2017)
            raise FDBError(2017)
        if over:
            raise FDBError(over)

    def ended(self) -> int:
        """Return the error that every further operation raises, 0 if there is none.

        An expired timeout is such an error, even if the timeout is changed later.
        """
        if not self.over and self.deadline is not None and time.monotonic() >= self.deadline:
            self.end(1031)
        return self.over

    def end(self, code: int) -> None:
        """Make every further operation raise an error. The first one stays."""
        self.over = self.over or code
        self.is_unrestricted = False

    def set_deadline(self, deadline: float | None) -> None:
        """Set the time of the timeout, by `time.monotonic()`."""
        self.deadline = deadline
        if deadline is not None:
            self.is_unrestricted = False

    def failed_read(self, error: FdbqueueError) -> FdbqueueError:
        """Note the error of a read, and return it without its traceback, to be stored."""
        if isinstance(error, FDBError) and error.code in _FAILED_READS:
            self.read_error = self.read_error or error.code
        return error.with_traceback(None)

    def view(self) -> Snapshot:
        """Return the snapshot of this attempt. The first call takes it."""
        return self.held.snapshot or self._read_first(GET, (b"",))[0]

    def _read_first(
        self, statement: str, parameters: tuple[bytes | int, ...]
    ) -> tuple[Snapshot, Rows]:
        """Take the snapshot by the first read; return it and the rows."""
        held = self.held
        self.storage.attempts.add(self, held)
        if self._starved and self.version is None and held.write_lock is None:
            held.write_lock = self.storage.lock.take_hold(self.deadline)
        snapshot, rows = self.storage.read_first(
            statement, parameters, self.deadline, self.reads_ahead
        )
        if self.version is not None:
            try:
                self.storage.check_version(snapshot, self.version)
            except FDBError:
                self.storage.end(snapshot)
                raise
        held.snapshot = snapshot
        return snapshot, rows

    def finish(self, code: int) -> None:
        """Make every further operation fail. The watches end when the attempt is dropped."""
        self.end(code)
        self.held.finish(code)

    def commit(self) -> tuple[int, Callable[[], None] | None]:
        """Commit the writes; return the version, which is -1 if there are none.

        Also return a function that waits until the commit is on disk, or `None` if it need not be.
        """
        held = self.held
        if not self.mutations and not self.writes:
            snapshot = held.snapshot
            held.release()
            if snapshot is None or snapshot.unconfirmed is None:
                return -1, None
            return -1, partial(self.storage.confirm, snapshot, self.deadline)
        if held.snapshot is None:
            if self.reads:
                self.view()  # conflict ranges added without a read count from now
            elif self.version is not None:
                self.storage.check_age(self.version)
        snapshot, held.snapshot = held.snapshot, None
        hold, held.write_lock = held.write_lock, None
        held.let_go()
        if snapshot is not None:
            self.duration = time.monotonic() - snapshot.expires + limits.TRANSACTION_LIFETIME
        return self.storage.commit(
            snapshot, hold, self.reads, self.mutations, self.writes, self.deadline
        )

    # Own writes

    def _visible_writes(self, snapshot: bool) -> WriteMap | None:
        """Return the transaction's own writes that a read must see; `None` if there are none."""
        if not self.mutations or self.ryw_disabled or (snapshot and self.snapshot_ryw <= 0):
            return None
        return self.own_writes()

    def own_writes(self) -> WriteMap:
        """Return the map of this transaction's writes, brought up to date."""
        if self._write_map is None:
            self._write_map = WriteMap()
        snapshot, version = self.held.snapshot, self.version
        if version is None:
            version = 0 if snapshot is None else snapshot.version
        for mutation in self.mutations[self._mapped :]:
            self._write_map.add(mutation, version)
        self._mapped = len(self.mutations)
        return self._write_map

    def add_read_conflict(
        self, begin: bytes, end: bytes, is_read: bool = True, is_key: bool = False
    ) -> None:
        """Note that the transaction depends on the database's contents in a range.

        Args:
            begin: The first key of the range.
            end: The key after the range.
            is_read: Whether it was read; otherwise the program named it.
            is_key: Whether it is the key of a read of its value.
        """
        if begin >= end:
            return
        size = len(begin) + len(end) + RANGE_OVERHEAD
        if self.ryw_disabled:
            self.reads.append((begin, end))
            if is_key or not is_read:  # ranges that are read do not count
                self.size += size
                self.uncounted += size if is_read else 0
        elif self.mutations or self._write_map is not None:
            parts = self.own_writes().dependent_parts(begin, end)
            self.reads += parts
            self.size += len(parts) * size
        else:
            self.reads.append((begin, end))
            self.size += size

    def read_value(self, key: bytes, snapshot: bool) -> bytes | None:
        """Return the value of a key as this transaction sees it."""
        if not self.is_unrestricted:
            self.check()
        self.has_read = True
        if key >= self.max_read_key:
            raise FDBError(2004)
        if len(key) > limits.KEY_SIZE_LIMIT and len(key) > key_size_limit(key):
            return None
        own = self._visible_writes(snapshot) if self.mutations else None
        if own is None:
            view = self.held.snapshot
            rows = view.fetch(GET, (key,)) if view else self._read_first(GET, (key,))[1]
            value: bytes | None = rows[0][0] if rows else None
        else:
            value = own.get(key, self.view().get(key) if own.needs_database(key) else None)
        if not snapshot:
            self.add_read_conflict(key, key + b"\0", is_key=True)
        return value

    def read_key(self, selector: KeySelector, snapshot: bool) -> bytes:
        """Return the key that a selector describes, as this transaction sees it."""
        if not self.is_unrestricted:
            self.check()
        self.has_read = True
        key, offset = self._normalized(selector)
        resolved = self._find(self._visible_writes(snapshot), key, offset, with_value=True).found
        if not snapshot:
            begin, end = (key, key_after(resolved)) if offset > 0 else (resolved, key)
            self.add_read_conflict(begin, end)
        return resolved

    def _normalized(self, key_or_selector: bytes | KeySelector) -> tuple[bytes, int]:
        """Return a key or selector as (key, offset), counted from the first key at or after it."""
        if isinstance(key_or_selector, bytes):
            key, or_equal, offset = key_or_selector, False, 1
        else:
            selector = key_or_selector
            key, or_equal, offset = as_key(selector.key), selector.or_equal, selector.offset
        if key > self.max_read_key:
            raise FDBError(2004)
        return (key_after(key) if or_equal else key), offset

    def _find(
        self, own: WriteMap | None, key: bytes, offset: int, with_value: bool = False
    ) -> _Boundary:
        """Count the rows from a key, and return where that ends.

        As in FoundationDB, a key that the transaction's own `compare_and_clear` left without a
        value counts. With `with_value`, the result is the next key that has a value.
        """
        is_forward = offset > 0
        begin, end = (key, self.max_read_key) if is_forward else (b"", key)
        left = offset if is_forward else 1 - offset
        with closing(self._rows(own, begin, end, not is_forward)) as rows:
            for found, value in rows:
                left -= 1
                if left <= 0 and (value is not NO_VALUE or not with_value):
                    return _Boundary(key, offset, found, 1)
        if is_forward:
            return _Boundary(key, offset, self.max_read_key, left)
        return _Boundary(key, offset, b"", 1 - left)

    def _rows(
        self, own: WriteMap | None, begin: bytes, end: bytes, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        low, high = (begin, end) if own is None else own.readable(begin, end, reverse)
        # Closed immediately in all cases: an open generator blocks other reads of the snapshot.
        with closing(self.view().rows(low, high, reverse)) as rows:
            yield from rows if own is None else own.merge(rows, low, high, reverse)
        if (low, high) != (begin, end):
            raise FDBError(1036)  # the read would pass a key that only the commit determines

    def read_range(
        self,
        begin: bytes | KeySelector,
        end: bytes | KeySelector,
        limit: int,
        reverse: bool,
        snapshot: bool,
        size: int = UNLIMITED,
    ) -> tuple[Rows, bool]:
        """Return the next rows between two ends, and whether a limit stopped the read.

        Args:
            begin: The first key, or its selector.
            end: The key after the last one, or its selector.
            limit: The most rows; 0 or -1 for no limit.
            reverse: Whether to return the last row first.
            snapshot: Whether to read without a conflict.
            size: The bytes after which to stop.
        """
        if not self.is_unrestricted:
            self.check()
        if not -1 <= limit < 1 << 31:
            raise FDBError(2012)
        if limit <= 0:
            limit = UNLIMITED
        own = self._visible_writes(snapshot) if self.mutations else None
        if own is not None or type(begin) is not bytes or type(end) is not bytes:
            return self._read_between(own, begin, end, limit, reverse, snapshot, size)
        if begin > self.max_read_key or end > self.max_read_key:
            raise FDBError(2004)
        if begin >= end:
            return [], False
        self.has_read = True
        statement = BACKWARD if reverse else FORWARD
        few = limit if limit < _FEW else _FEW
        fetched: Rows
        if (view := self.held.snapshot) is None:
            _, fetched = self._read_first(statement, (begin, end, few))
        else:
            fetched = view.fetch(statement, (begin, end, few))
        if len(fetched) > 1:
            check_order(fetched, reverse, self.storage.database_file)
        if limit == 1 or not fetched:  # the most frequent reads
            rows, more = fetched, bool(fetched)
        else:
            rows, more = _batch(fetched, limit, size)
            if len(fetched) == few and not more:
                with closing(self.view().rows(begin, end, reverse)) as remaining:
                    rows, more = _batch(remaining, limit, size)
        if not snapshot:
            if more:  # the read does not depend on the keys after its last row
                last = rows[-1][0]
                begin, end = (last, end) if reverse else (begin, last + b"\0")
            self.add_read_conflict(begin, end)
        return rows, more

    def _read_between(
        self,
        own: WriteMap | None,
        begin_at: bytes | KeySelector,
        end_at: bytes | KeySelector,
        limit: int,
        reverse: bool,
        snapshot: bool,
        size: int,
    ) -> tuple[Rows, bool]:
        """Read a range whose ends must be resolved first, or that must see own writes."""
        begin, end = self._normalized(begin_at), self._normalized(end_at)
        if begin[0] >= end[0] and begin[1] >= end[1]:
            return [], False
        self.has_read = True
        first, last = self._boundary(own, *begin), self._boundary(own, *end)
        rows: Rows = []
        more = False
        if first.found < last.found:
            # Keys without a value are read for the conflict range, as the selectors count them.
            with closing(self._rows(own, first.found, last.found, reverse)) as stored:
                rows, more = _batch(stored, limit, size)
        if not snapshot:
            self._add_range_conflict(first, last, rows, more, reverse)
        if own is not None:
            rows = [row for row in rows if row[1] is not NO_VALUE]
        return rows, more

    def _boundary(self, own: WriteMap | None, key: bytes, offset: int) -> _Boundary:
        return _Boundary(key, 1, key, 1) if offset == 1 else self._find(own, key, offset)

    def _add_range_conflict(
        self, begin: _Boundary, end: _Boundary, rows: Rows, more: bool, reverse: bool
    ) -> None:
        """Note the range that the result of a range read depends on.

        A read stopped by its limit does not depend on keys after its last row, nor on its far end.
        If the begin is not before the end, only a key between the keys of the two selectors can
        change that. The cases are those of `addConflictRange` in
        `fdbclient/ReadYourWrites.actor.cpp`.
        """
        low, high = min(begin.key, end.key), max(begin.key, end.key)
        if begin.key < end.key and more:
            if reverse and begin.offset <= 1:
                low = end.key
            elif not reverse and end.offset > 0:
                high = begin.key
        if begin.found < end.found or begin.left < end.left:
            if begin.left < 1 and not (more and reverse):
                low = b""
            if end.left > 1 and (reverse or not more):
                high = self.max_read_key
        if rows:
            lowest, highest = (rows[-1][0], rows[0][0]) if reverse else (rows[0][0], rows[-1][0])
            if reverse or begin.offset <= 0:
                low = min(low, lowest)
            if high <= highest and (not reverse or end.offset > 0):
                high = key_after(highest)
        self.add_read_conflict(low, high)

    # Writing

    def fail(self, code: int) -> None:
        """Keep an error, which the next read or the commit reports."""
        if not self.deferred:
            self.deferred = code
            self.is_unrestricted = False

    def trigger_watches(self, kind: int, key: bytes, param: bytes) -> None:
        """Make the watches ready whose keys a mutation changes."""
        if self.deferred:
            return  # FoundationDB ignores what a program does after a mistake
        pending: list[tuple[bytes, bytes | None, WatchFuture]] = []
        for watched, value, future in self.held.watches:
            if kind == MutationType.CLEAR_RANGE:
                changes = key <= watched < param and value is not None
            elif kind == MutationType.SET:
                changes = key == watched and value != param
            else:
                changes = key == watched  # the result is unknown
            if changes:
                future.finish()
            else:
                pending.append((watched, value, future))
        self.held.watches = tuple(pending)

    def may_write(self, key: bytes, value: bytes) -> bool:
        """Return whether a key can be written; keep the error if it cannot."""
        if self.deferred:
            return False  # FoundationDB ignores what a program does after a mistake
        if self.commit_started:
            self.end(2017)
            self.fail(2017)
        elif key >= self.max_write_key:
            self.fail(2004)
        elif len(key) > key_size_limit(key):
            self.fail(2102)
        elif len(value) > limits.VALUE_SIZE_LIMIT:
            self.fail(2103)
        else:
            return True
        return False

    def add_write_conflict(self, begin: bytes, end: bytes) -> None:
        """Make other transactions conflict as if the range had been written."""
        self.writes += (begin, end)
        self.size += len(begin) + len(end) + RANGE_OVERHEAD
        if self._write_map is None:
            self._write_map = WriteMap()
        self._write_map.add_conflict(begin, end)

    def is_too_large(self, limit: int) -> bool:
        """Return whether the commit exceeds a size limit, in bytes.

        FoundationDB judges what is left after merging, which can be much less than `size`. It can
        also be more, because a written key divides the ranges around it, but at most five times:
        it need not be called for less than a fifth of the limit.
        """
        if not (self.writes or self.mutations):
            return False  # a transaction that only reads is never too large
        if self.ryw_disabled:
            return self.size > limit  # nothing is merged
        has_cleared = any(kind == _CLEAR for kind, _, _ in self.mutations)
        if self.size <= limit and not has_cleared and self._write_map is None:
            return False  # nothing is divided
        writes = zip(self.writes[::2], self.writes[1::2])
        ranges = [*RangeSet(self.reads)]
        ranges += RangeSet((begin, end or key_after(begin)) for begin, end in writes)
        size = sum(RANGE_OVERHEAD + len(begin) + len(end) for begin, end in ranges)
        return size + self.own_writes().size() > limit


def _batch(rows: Iterable[tuple[bytes, bytes]], limit: int, size: int) -> tuple[Rows, bool]:
    """Return the first rows, and whether a limit of their number or their bytes stopped them.

    The limits do not count rows without a value, which are returned as well.
    """
    batch: Rows = []
    for row in rows:
        batch.append(row)
        if row[1] is NO_VALUE:
            continue
        limit -= 1
        size -= len(row[0]) + len(row[1]) + _ROW_OVERHEAD
        if limit <= 0 or size <= 0:
            return batch, True
    return batch, False
