"""The reads of a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, overload

from fdb import fdboptions

from fdbqueue import types
from fdbqueue.embedded.arguments import END_OF_KEYS, KEY_SIZE_LIMIT, as_key, is_selector, strinc
from fdbqueue.embedded.ranges import Range
from fdbqueue.embedded.storage.tables import BACKWARD, FORWARD, GET
from fdbqueue.embedded.transaction.attempt import MOST_ROWS, RANGE_SIZE, Attempt
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
"""The rows of the first batch, by streaming mode."""


class FDBRange:
    """The rows of a range read. The call fetches the first batch, iteration the others."""

    __slots__ = ("_arguments", "_error", "_reads", "_rest", "_rows")

    def __init__(
        self,
        reads: TransactionRead,
        attempt: Attempt,
        begin: bytes | types.KeySelector,
        end: bytes | types.KeySelector,
        limit: int,
        reverse: bool,
        mode: int,
        count: int = 0,
    ) -> None:
        self._reads = reads  # keeps the database open until all rows are read
        self._rows: Rows = []
        self._rest: Range | None = None
        self._error: FdbqueueError | None = None
        self._arguments = attempt, limit, reverse, mode
        is_snapshot = reads.is_snapshot
        try:
            if mode not in _FIRST_ROWS:
                raise FDBError(2000)
            if mode == _EXACT and limit in (0, -1):
                raise FDBError(2210)
            if not attempt.is_unrestricted:
                attempt.check()
            if not -1 <= limit < 1 << 31:
                raise FDBError(2012)
            count = count or _FIRST_ROWS[mode]
            if 0 < limit < count:
                count = limit
            own = attempt.visible_writes(is_snapshot) if attempt.mutations else None
            low = begin if isinstance(begin, bytes) else attempt.resolved(own, begin, is_snapshot)
            high = end if isinstance(end, bytes) else attempt.resolved(own, end, is_snapshot)
            if low > END_OF_KEYS or high > END_OF_KEYS:
                raise FDBError(2004)
            if low >= high:
                return
            attempt.has_read = True
            if own is None:
                view = attempt.snapshot or attempt.view()
                rows = view.fetch(BACKWARD if reverse else FORWARD, (low, high, count))
            else:
                seen = attempt.rows(own, low, high, reverse, count)
                found = ((key, value) for key, value in seen if value is not None)
                rows = list(islice(found, count))
            self._rows = rows
            if len(rows) == count:  # the read does not depend on the keys after its last row
                last = rows[-1][0]
                if reverse:
                    rest, low = (low, last), last
                else:
                    rest, high = (last + b"\0", high), last + b"\0"
                self._rest = None if count == limit else rest
            if not is_snapshot:
                attempt.add_read_conflict(low, high)
        except FDBError as error:
            self._error = attempt.failed_read(error)

    def to_list(self) -> list[KeyValue]:
        """Return all rows as a list."""
        return list(self)

    def __iter__(self) -> Iterator[KeyValue]:
        if self._error is None and self._rest is None:
            return map(as_row, self._rows)
        return self._batches()

    def _batches(self) -> Iterator[KeyValue]:
        batch = self
        attempt, left, reverse, mode = self._arguments
        while True:
            if batch._error is not None:
                raise fresh(batch._error)
            yield from map(as_row, batch._rows)
            if batch._rest is None:
                return
            count = len(batch._rows)
            left = left - count if left > 0 else left
            count = min(4 * count, MOST_ROWS)
            batch = FDBRange(self._reads, attempt, *batch._rest, left, reverse, mode, count)


class TransactionRead:
    """Reads. `tr.snapshot` offers the same without read conflicts."""

    is_snapshot = False

    db: types.Database
    _attempt: Attempt

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # The binding's decorator takes whatever is not its own transaction for a database.
            if name == "create_transaction":
                raise AttributeError(BINDING_REFUSED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get(self, key: KeyLike) -> Value:
        """Return the value of a key."""
        attempt = self._attempt
        try:
            if type(key) is not bytes:
                key = as_key(key)
            if not attempt.is_unrestricted:
                attempt.check()
            attempt.has_read = True
            if key >= END_OF_KEYS:
                raise FDBError(2004)
            if len(key) > KEY_SIZE_LIMIT:
                return Value(None)
            own = attempt.visible_writes(self.is_snapshot) if attempt.mutations else None
            is_known = own is not None and key in own.known
            rows = [] if is_known else (attempt.snapshot or attempt.view()).fetch(GET, (key,))
            value: bytes | None = rows[0][0] if rows else None
            if own is not None:
                value = own.get(key, value)
            if not is_known and not self.is_snapshot:
                attempt.reads.append((key, key + b"\0"))
                attempt.size += RANGE_SIZE + 2 * len(key)
            return Value(value)
        except FdbqueueError as error:
            return Value(None, attempt.failed_read(error))

    def get_key(self, key_selector: types.KeySelector) -> Key:
        r"""Return the key of a selector; `b""` before the first key, `b"\xff"` after the last."""
        attempt, is_snapshot = self._attempt, self.is_snapshot
        try:
            attempt.check()
            own = attempt.visible_writes(is_snapshot)
            return Key(attempt.resolved(own, key_selector, is_snapshot, with_value=True))
        except FdbqueueError as error:
            return Key(None, attempt.failed_read(error))

    def get_range(
        self,
        begin: KeyOrSelector | None,
        end: KeyOrSelector | None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = _ITERATOR,
    ) -> FDBRange:
        """Return the rows from `begin` (inclusive) to `end` (exclusive).

        Both are keys or key selectors; a `limit` of 0 or -1 is none. The transaction conflicts with
        all rows read, even if the caller has not reached them; `streaming_mode` says how many are
        read first.
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
        """Return the version of the reads, also after the commit."""
        attempt = self._attempt
        try:
            if not attempt.is_unrestricted and (code := attempt.deferred or attempt.ended()):
                raise FDBError(code)
            if attempt.version is None:
                view = attempt.snapshot or attempt.view()
                attempt.version = attempt.storage.read_version(view)
            return Future(attempt.version)
        except FdbqueueError as error:
            return Future(0, error)


class SnapshotRead(TransactionRead):
    """Reads that do not conflict."""

    is_snapshot = True


def _as_end(key_or_selector: KeyOrSelector | None, default: bytes) -> bytes | types.KeySelector:
    if key_or_selector is None:
        return default
    return key_or_selector if is_selector(key_or_selector) else as_key(key_or_selector)
