"""One attempt of a transaction."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice

from fdbqueue.embedded.arguments import (
    END_OF_KEYS,
    INITIAL_BACKOFF,
    TRANSACTION_LIFETIME,
    as_key,
)
from fdbqueue.embedded.mutations import CLEAR_RANGE, SET, Mutation
from fdbqueue.embedded.ranges import Range, key_after
from fdbqueue.embedded.storage.connection import Connection
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.storage.tables import BACKWARD, FORWARD
from fdbqueue.embedded.transaction.futures import VersionstampFuture, WatchFuture
from fdbqueue.embedded.transaction.options import Settings
from fdbqueue.embedded.transaction.write_map import SeenRow, WriteMap
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.types import KeySelector

MOST_ROWS = 256
"""Maximum rows to fetch at once."""

RANGE_SIZE = 24
"""Bytes that a conflict range counts beside its ends."""

# Errors of a read that was performed. Other errors say that its arguments are wrong, or that the
# transaction is over.
_FAILED_READS = (1007, 1009, 1036)


class Attempt:
    """The reads and writes of a transaction since it was created or last restarted.

    Errors are kept as codes: an error's traceback would keep the transaction alive.

    Attributes:
        watches: The watches to set by the commit.
        version: The read version, once the program knows it.
        is_unrestricted: False once `check` may raise.
        deferred: The error of a write, which the next read or the commit raises.
        over: The error of every further operation.
        read_error: The error of the first failed read, and of the commit.
        deadline: When to stop waiting for the lock or the disk, by `time.monotonic()`.
        reads_ahead: Whether only the commit waits until what was read is on disk.
    """

    def __init__(
        self, storage: Storage, settings: Settings, created: float, reads_ahead: bool
    ) -> None:
        self.storage = storage
        self.snapshot: Connection | None = None
        self.mutations: list[Mutation] = []
        self.reads: list[Range] = []
        self.writes: list[bytes] = []
        self.size = 0
        self.watches: list[tuple[bytes, bytes | None, WatchFuture]] = []
        self.stamp: VersionstampFuture | None = None
        self.version: int | None = None
        self.has_read = self.commit_started = False
        self.deferred = self.over = self.read_error = 0
        self.deadline = settings.deadline(created) if settings.timeout else None
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
        """Return the error of every further operation, or 0."""
        if not self.over and self.deadline is not None and time.monotonic() >= self.deadline:
            self.end(1031)
        return self.over

    def end(self, code: int) -> None:
        """Fail every further operation, with the first error."""
        self.over = self.over or code
        self.is_unrestricted = False

    def fail(self, code: int) -> None:
        """Keep the error of a write for the next read or the commit."""
        if code == 2017 and not self.deferred:
            self.end(code)  # also for operations that would not report it
        self.deferred = self.deferred or code
        self.is_unrestricted = False

    def failed_read(self, error: FdbqueueError) -> FdbqueueError:
        """Record the error of a read; return it without its traceback."""
        if isinstance(error, FDBError) and error.code in _FAILED_READS:
            self.read_error = self.read_error or error.code
        return error.with_traceback(None)

    def release(self) -> None:
        """Release the snapshot."""
        snapshot, self.snapshot = self.snapshot, None
        self.storage.end(snapshot)

    def finish(self, code: int) -> None:
        """End the attempt and release all but the watches."""
        self.end(code)
        self.release()
        if self.stamp is not None:
            self.stamp.finish(FDBError(code))

    def end_watches(self, error: BaseException) -> None:
        """Fail the watches that no commit has set."""
        watches, self.watches = self.watches, []
        for _, _, future in watches:
            future.finish(error)

    # Reading

    def view(self) -> Connection:
        """Return the snapshot, taken by the first call."""
        if self.snapshot is None:
            self.snapshot = self.storage.begin(self.deadline, self.reads_ahead, self.version)
        return self.snapshot

    def resolved(
        self, own: WriteMap | None, selector: KeySelector, snapshot: bool, with_value: bool = False
    ) -> bytes:
        """Return a selector's key, or an end of the key space.

        A key that an own `compare_and_clear` left without a value counts, unless `with_value`.
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
        rows = self.rows(own, begin, end, reverse, min(passed + 1, MOST_ROWS))
        keys = (
            row[0] for row in islice(rows, passed, None) if row[1] is not None or not with_value
        )
        found = next(keys, begin if reverse else end)
        if not snapshot:
            begin, end = (found, key) if reverse else (key, key_after(found))
            self.add_read_conflict(begin, end)
        return found

    def rows(
        self, own: WriteMap | None, begin: bytes, end: bytes, reverse: bool, count: int
    ) -> Iterator[SeenRow]:
        """Yield the rows of a range with own writes; fetch `count` at first."""
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

    def add_read_conflict(self, begin: bytes, end: bytes) -> None:
        """Conflict with later writes of a range."""
        if begin >= end:
            return
        if self.mutations and not self.ryw_disabled:
            self.reads += self.own_writes().known.gaps(begin, end)
        else:
            self.reads.append((begin, end))
        self.size += RANGE_SIZE + len(begin) + len(end)

    # Own writes

    def visible_writes(self, snapshot: bool) -> WriteMap | None:
        """Return the own writes that a read sees."""
        if not self.mutations or self.ryw_disabled or (snapshot and self.snapshot_ryw <= 0):
            return None
        return self.own_writes()

    def own_writes(self) -> WriteMap:
        """Bring the map of own writes up to date and return it."""
        if self._own is None:
            self._own = WriteMap()
        version = self.version or (0 if self.snapshot is None else self.snapshot.version)
        for mutation in self.mutations[self._owned :]:
            self._own.add(*mutation, version)
        self._owned = len(self.mutations)
        return self._own

    def trigger_watches(self, kind: int, key: bytes, param: bytes) -> None:
        """Finish watches whose keys an own mutation changes."""
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

    def commit(self, size_limit: int) -> tuple[int, int]:
        """Commit; return the version (-1 without writes) and the newest commit to wait for."""
        storage, snapshot = self.storage, self.snapshot
        if not self.mutations and not self.writes:
            seen = 0 if snapshot is None else snapshot.version
            self.release()
            return -1, seen
        if self.size > size_limit:
            raise FDBError(2101)
        if snapshot is None:
            # Conflict ranges added without a read count from now, or from the version that was set.
            snapshot = storage.begin(self.deadline, True, self.version)
        self.duration = time.monotonic() - snapshot.expires + TRANSACTION_LIFETIME
        if self.snapshot is None and not self.reads:
            snapshot.expires = sys.float_info.max  # however long it waits, nothing can conflict
        self.snapshot = None
        section = partial(storage.commit, snapshot, (self.reads, self.mutations, self.writes))
        try:
            # Other transactions commit during a wait, so it cannot continue on its connection.
            version = storage.lock.run(section, self.deadline, snapshot.pause)
        finally:  # once, even if an interrupt follows the commit: others may use it from then on
            storage.end(snapshot)
        return version, version
