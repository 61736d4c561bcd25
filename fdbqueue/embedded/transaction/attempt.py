"""One attempt of a transaction: its snapshot, its buffered writes and its conflict ranges."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice

from fdbqueue.embedded.arguments import (
    END_OF_KEYS,
    INITIAL_BACKOFF,
    KEY_SIZE_LIMIT,
    TRANSACTION_LIFETIME,
    VALUE_SIZE_LIMIT,
    as_key,
)
from fdbqueue.embedded.mutations import CLEAR_RANGE, SET, Mutation
from fdbqueue.embedded.ranges import Range, key_after
from fdbqueue.embedded.storage.connection import Connection
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.storage.tables import BACKWARD, FORWARD, GET
from fdbqueue.embedded.transaction.futures import VersionstampFuture, WatchFuture
from fdbqueue.embedded.transaction.options import Settings
from fdbqueue.embedded.transaction.write_map import Rows, SeenRow, WriteMap
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.types import KeySelector

MOST_ROWS = 256
"""The most rows of the database that are fetched at once."""

# Bytes that count in addition to the contents, for a mutation with its conflict range, and for a
# range that was read.
_MUTATION_SIZE, _RANGE_SIZE = 68, 24

# Errors of a read that was performed. Other errors say that its arguments are wrong, or that the
# transaction is over.
_FAILED_READS = (1007, 1009, 1036)


class Attempt:
    """The reads and writes of a transaction since it was created or last restarted.

    Errors are kept as codes: the traceback of an error would keep the transaction alive.

    Attributes:
        snapshot: The connection that it reads with; `None` before its first read.
        mutations: Its writes, in order.
        reads: Its read conflict ranges.
        writes: Its write conflict ranges, as `pack_ranges` takes them.
        watches: Keys, the values that it sees, and the futures of watches set by its commit.
        stamp: The future of its versionstamp, if it was asked for.
        version: The read version, once it is known to the program.
        is_unrestricted: False once `check` may raise.
        deferred: The error of a write, which the next read or the commit raises.
        over: The error that every further operation raises.
        read_error: The error of the first read that failed. The commit fails with it, too.
        deadline: When to stop waiting for the lock or the disk, by `time.monotonic()`.
        duration: The seconds from the first read to the commit.
        reads_ahead: Whether reads return before what they saw is on disk; the commit then waits.
    """

    def __init__(
        self, storage: Storage, settings: Settings, created: float, reads_ahead: bool
    ) -> None:
        self.storage = storage
        self.snapshot: Connection | None = None
        self.mutations: list[Mutation] = []
        self.reads: list[Range] = []
        self.writes: list[bytes] = []
        self.watches: list[tuple[bytes, bytes | None, WatchFuture]] = []
        self.stamp: VersionstampFuture | None = None
        self.version: int | None = None
        self.has_read = self.commit_started = False
        self.deferred = self.over = self.read_error = 0
        self.deadline = settings.deadline(created)
        self.is_unrestricted = self.deadline is None
        self.reads_ahead = reads_ahead
        self.duration = INITIAL_BACKOFF
        self.snapshot_ryw = settings.snapshot_ryw
        self.ryw_disabled = self.skip_next_write_conflict = False
        self._own: WriteMap | None = None
        self._owned = 0  # the mutations that the map has

    # Its state

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

    def fail(self, code: int) -> None:
        """Keep the error of a write, which the next read or the commit reports."""
        self.deferred = self.deferred or code
        self.is_unrestricted = False

    def failed_read(self, error: FdbqueueError) -> FdbqueueError:
        """Note the error of a read, and return it without its traceback, to be stored."""
        if isinstance(error, FDBError) and error.code in _FAILED_READS:
            self.read_error = self.read_error or error.code
        return error.with_traceback(None)

    def release(self) -> None:
        """Release the snapshot."""
        snapshot, self.snapshot = self.snapshot, None
        self.storage.end(snapshot)

    def finish(self, code: int) -> None:
        """Make every further operation fail, and release everything but the watches."""
        self.end(code)
        self.release()
        if self.stamp is not None:
            self.stamp.finish(FDBError(code))

    def end_watches(self, error: BaseException) -> None:
        """Fail the watches that were not set by a commit."""
        watches, self.watches = self.watches, []
        for _, _, future in watches:
            future.finish(error)

    # Reading

    def view(self) -> Connection:
        """Return the snapshot of this attempt. The first call takes it."""
        if self.snapshot is None:
            self.snapshot = self.storage.begin(self.deadline, self.reads_ahead, self.version)
        return self.snapshot

    def read_version(self) -> int:
        """Return the version that the attempt reads at, also after its commit."""
        if not self.is_unrestricted and (code := self.deferred or self.ended()):
            raise FDBError(code)
        if self.version is None:
            self.version = self.storage.read_version(self.snapshot or self.view())
        return self.version

    def read_value(self, key: bytes, snapshot: bool) -> bytes | None:
        """Return the value of a key as this transaction sees it."""
        if not self.is_unrestricted:
            self.check()
        self.has_read = True
        if key >= END_OF_KEYS:
            raise FDBError(2004)
        if len(key) > KEY_SIZE_LIMIT:
            return None
        own = self._visible_writes(snapshot) if self.mutations else None
        is_known = own is not None and key in own.known
        rows = [] if is_known else (self.snapshot or self.view()).fetch(GET, (key,))
        value: bytes | None = rows[0][0] if rows else None
        if own is not None:
            value = own.get(key, value)
        if not snapshot and not is_known:
            self.reads.append((key, key + b"\0"))
        return value

    def read_key(self, selector: KeySelector, snapshot: bool) -> bytes:
        """Return the key that a selector describes, as this transaction sees it."""
        if not self.is_unrestricted:
            self.check()
        return self._resolved(self._visible_writes(snapshot), selector, snapshot, with_value=True)

    def _resolved(
        self, own: WriteMap | None, selector: KeySelector, snapshot: bool, with_value: bool = False
    ) -> bytes:
        """Return the key to which a selector leads by counting keys, or an end of the key space.

        As in FoundationDB, a key that the transaction's own `compare_and_clear` left without a
        value counts. With `with_value`, the result is the next key that has a value. Without, the
        first key at or after another one need not be read: any key is an end of a range.
        """
        key, offset = as_key(selector.key), selector.offset
        if key > END_OF_KEYS:
            raise FDBError(2004)
        if selector.or_equal:
            key = key_after(key)
        if offset == 1 and not with_value:
            return key
        self.has_read = True
        reverse = offset <= 0
        begin, end = (b"", key) if reverse else (key, END_OF_KEYS)
        passed = -offset if reverse else offset - 1
        rows = self._rows(own, begin, end, reverse, min(passed + 1, MOST_ROWS))
        keys = (
            row[0] for row in islice(rows, passed, None) if row[1] is not None or not with_value
        )
        found = next(keys, begin if reverse else end)
        if not snapshot:
            begin, end = (found, key) if reverse else (key, key_after(found))
            self.add_read_conflict(begin, end)
        return found

    def _rows(
        self, own: WriteMap | None, begin: bytes, end: bytes, reverse: bool, count: int
    ) -> Iterator[SeenRow]:
        """Yield the rows of a range, as own writes change them. Fetch `count` of them at first."""
        low, high = (begin, end) if own is None else own.readable(begin, end, reverse)
        passes_unreadable = (low, high) != (begin, end)
        more = low < high
        while more:
            rows = self.view().fetch(BACKWARD if reverse else FORWARD, (low, high, count))
            begin, end, more = low, high, len(rows) == count
            if more and reverse:
                begin = high = rows[-1][0]
            elif more:
                end = low = key_after(rows[-1][0])
            yield from rows if own is None else own.merge(rows, begin, end, reverse)
            count = min(4 * count, MOST_ROWS)
        if passes_unreadable:
            raise FDBError(1036)

    def read_range(
        self,
        begin: bytes | KeySelector,
        end: bytes | KeySelector,
        limit: int,
        reverse: bool,
        snapshot: bool,
        count: int,
    ) -> tuple[Rows, Range | None]:
        """Return the next rows between two ends, and the range of those that are left.

        There is no such range if the end or the limit was reached.

        Args:
            begin: The first key, or its selector.
            end: The key after the last one, or its selector.
            limit: The most rows; 0 or -1 for no limit.
            reverse: Whether to return the last row first.
            snapshot: Whether to read without a conflict.
            count: The most rows to return now.
        """
        if not self.is_unrestricted:
            self.check()
        if not -1 <= limit < 1 << 31:
            raise FDBError(2012)
        if 0 < limit < count:
            count = limit
        own = self._visible_writes(snapshot) if self.mutations else None
        if not isinstance(begin, bytes):
            begin = self._resolved(own, begin, snapshot)
        if not isinstance(end, bytes):
            end = self._resolved(own, end, snapshot)
        if begin > END_OF_KEYS or end > END_OF_KEYS:
            raise FDBError(2004)
        if begin >= end:
            return [], None
        self.has_read = True
        rows: Rows
        if own is None:
            view = self.snapshot or self.view()
            rows = view.fetch(BACKWARD if reverse else FORWARD, (begin, end, count))
        else:
            seen = self._rows(own, begin, end, reverse, count)
            found = ((key, value) for key, value in seen if value is not None)
            rows = list(islice(found, count))
        rest: Range | None = None
        if len(rows) == count:  # the read does not depend on the keys after its last row
            last = rows[-1][0]
            if reverse:
                rest, begin = (begin, last), last
            else:
                after = key_after(last)
                rest, end = (after, end), after
        if not snapshot:
            self.add_read_conflict(begin, end)
        return rows, None if count == limit else rest

    def add_read_conflict(self, begin: bytes, end: bytes) -> None:
        """Note that the transaction depends on the database's contents in a range."""
        if begin >= end:
            return
        if self.mutations and not self.ryw_disabled:
            self.reads += self.own_writes().known.gaps(begin, end)
        else:
            self.reads.append((begin, end))

    # Own writes

    def _visible_writes(self, snapshot: bool) -> WriteMap | None:
        """Return the transaction's own writes that a read must see; `None` if there are none."""
        if not self.mutations or self.ryw_disabled or (snapshot and self.snapshot_ryw <= 0):
            return None
        return self.own_writes()

    def own_writes(self) -> WriteMap:
        """Return the map of this transaction's writes, brought up to date."""
        if self._own is None:
            self._own = WriteMap()
        version = self.version or (0 if self.snapshot is None else self.snapshot.version)
        for mutation in self.mutations[self._owned :]:
            self._own.add(*mutation, version)
        self._owned = len(self.mutations)
        return self._own

    def may_write(self, key: bytes, value: bytes) -> bool:
        """Return whether a key can be written; keep the error if it cannot."""
        if self.deferred:
            return False  # FoundationDB ignores what a program does after a mistake
        if self.commit_started:
            self.end(2017)
            self.fail(2017)
        elif key >= END_OF_KEYS:
            self.fail(2004)
        elif len(key) > KEY_SIZE_LIMIT:
            self.fail(2102)
        elif len(value) > VALUE_SIZE_LIMIT:
            self.fail(2103)
        else:
            return True
        return False

    def trigger_watches(self, kind: int, key: bytes, param: bytes) -> None:
        """Make the watches ready whose keys a mutation of this transaction changes."""
        for watch in self.watches.copy():
            watched, value, future = watch
            if kind == CLEAR_RANGE:
                changes = key <= watched < param and value is not None
            else:  # the result of an atomic operation is unknown
                changes = key == watched and (kind != SET or value != param)
            if changes:
                future.finish()
                self.watches.remove(watch)

    # Committing

    @property
    def size(self) -> int:
        """The approximate size of all operations so far, in bytes."""
        size = _RANGE_SIZE * len(self.reads) + _MUTATION_SIZE * len(self.mutations)
        for begin, end in self.reads:
            size += len(begin) + len(end)
        for _, key, param in self.mutations:
            size += len(key) + len(param)
        for begin, end in zip(self.writes[::2], self.writes[1::2]):
            size += len(begin) + len(end or begin)
        return size

    def commit(self) -> tuple[int, int]:
        """Commit the writes; return the version, which is -1 if there are none.

        Also return the version of the newest commit that has to be on disk before anybody is told.
        """
        storage = self.storage
        snapshot = self.snapshot
        if not self.mutations and not self.writes:
            seen = 0 if snapshot is None else snapshot.version
            self.release()
            return -1, seen
        if snapshot is None:
            if self.version is not None:
                storage.check_age(self.version)
            # Conflict ranges added without a read count from now, or from the version that was set.
            snapshot = storage.begin(self.deadline, True, self.version if self.reads else None)
        self.duration = time.monotonic() - snapshot.expires + TRANSACTION_LIFETIME
        if self.snapshot is None and not self.reads:
            snapshot.expires = sys.float_info.max  # however long it waits, nothing can conflict
        self.snapshot = None
        changes = self.reads, self.mutations, self.writes
        version = storage.commit(snapshot, changes, self.deadline)
        return version, version
