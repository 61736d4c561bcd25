"""Transactions of the embedded engine: reads, writes, conflicts and retries.

Names and rules are those of the official Python binding; its documentation (`api-python.rst`) has
the details. Reads return futures that are ready. Writes return immediately and report an invalid
key or value at the next read or at the commit, as FoundationDB does.
"""

from __future__ import annotations

import random
import time
from copy import copy
from typing import Protocol

from fdbqueue import types
from fdbqueue.embedded import limits
from fdbqueue.embedded.arguments import (
    as_conflict_end,
    as_key,
    as_value,
    is_selector,
    key_size_limit,
)
from fdbqueue.embedded.mutations import MutationType
from fdbqueue.embedded.ranges import Range, key_after
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.transaction.attempt import RANGE_OVERHEAD, Attempt, Held
from fdbqueue.embedded.transaction.futures import (
    CommitFuture,
    Future,
    Key,
    Pause,
    VersionstampFuture,
    WatchFuture,
    fresh,
)
from fdbqueue.embedded.transaction.options import Settings, TransactionOptions
from fdbqueue.embedded.transaction.reads import SnapshotRead, TransactionRead
from fdbqueue.embedded.transaction.watcher import Watcher
from fdbqueue.embedded.transaction.write_map import MUTATION_OVERHEAD
from fdbqueue.embedded.transaction.writes import Writes
from fdbqueue.errors import CommitUnknownResult, FDBError, FdbqueueError
from fdbqueue.types import KeyLike, KeyOrSelector, ValueLike

# Errors that FoundationDB's onError retries; after the first two the delay does not grow.
_RETRYABLE_VERSIONS = frozenset({1007, 1009})
_RETRYABLE = frozenset({1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223})

_CLEAR_RANGE = int(MutationType.CLEAR_RANGE)
_DONE = Future(None)

# A transaction that conflicted holds the writers' lock for its whole next attempt if its last one
# was short, or if it conflicted so often. Then it cannot conflict again.
_SHORT = 0.005  # seconds
_STARVED = 3


class _Database(types.Database, Protocol):
    """The part of a database that a transaction uses."""

    storage: Storage
    defaults: Settings
    """The options of new transactions."""

    @property
    def watcher(self) -> Watcher:
        """The watches of this process."""
        ...


class Transaction(TransactionRead, Writes):
    """A transaction on an embedded database, created by `Database.create_transaction`.

    It reads at the version of its first read and sees its own writes. It commits only if no other
    transaction has since written a key that it read (1020 otherwise). Conflicts are detected at
    commit; reads and writes do not block.
    """

    # Class attributes, because most transactions never change them.
    _retries = 0
    _conflicts = 0
    _is_starved = False
    _backoff = limits.INITIAL_BACKOFF
    _committed_version = -1
    _snapshot: SnapshotRead | None = None

    def __init__(self, database: _Database) -> None:
        self.db = self._database = database
        self._settings = database.defaults
        self._attempt = Attempt(Held(database.storage), self._settings.snapshot_ryw)
        self._created = time.monotonic()
        if self._settings.timeout:
            self._apply_timeout()

    @property
    def snapshot(self) -> TransactionRead:
        """Reads of the same transaction without read conflicts."""
        snapshot = self._snapshot
        if snapshot is None:
            snapshot = self._snapshot = SnapshotRead(self.db, self._attempt)
        return snapshot

    @property
    def options(self) -> TransactionOptions:
        """Options of this transaction, set by `set_...` methods."""
        return TransactionOptions(self._attempt, self._own_settings, self._apply_timeout)

    # Writing

    def mutate(self, kind: int, key: KeyLike, param: ValueLike, end: bytes | None = None) -> None:
        """Buffer a mutation of a key, or of a range that the caller has checked.

        An error in the key or the parameter is reported by the next read or the commit.

        Args:
            kind: The type of the mutation.
            key: The key, or the first key of a range.
            param: The parameter; for a range, its end.
            end: The end of the conflict range; `None` for a single key.
        """
        attempt = self._attempt
        if type(key) is not bytes:
            key = as_key(key)
        if type(param) is not bytes:
            param = as_value(param)
        if (
            end is None
            and (
                attempt.commit_started
                or key >= attempt.max_write_key
                or len(key) > limits.KEY_SIZE_LIMIT
                or len(param) > limits.VALUE_SIZE_LIMIT
            )
            and not attempt.may_write(key, param)
        ):
            return
        attempt.mutations.append((kind, key, param))
        if attempt.held.watches:
            attempt.trigger_watches(kind, key, param)
        size = len(key) + len(param)
        size += RANGE_OVERHEAD if kind == _CLEAR_RANGE and end is None else MUTATION_OVERHEAD
        if attempt.skip_next_write_conflict:
            attempt.skip_next_write_conflict = False
        else:
            attempt.writes += (key, end or b"")
            size += 2 * len(key) + 1 if end is None else len(key) + len(end)
            size += RANGE_OVERHEAD
        attempt.size += size

    def clear(self, key: KeyOrSelector) -> None:
        """Clear a key."""
        if type(key) is not bytes:
            key = self._resolved(key)
        attempt = self._attempt
        if len(key) <= limits.KEY_SIZE_LIMIT or len(key) <= key_size_limit(key):
            before = attempt.size
            self.mutate(_CLEAR_RANGE, key, key + b"\0")
            if attempt.ryw_disabled:  # the approximate size leaves it out
                attempt.size += MUTATION_OVERHEAD - RANGE_OVERHEAD
                attempt.uncounted += attempt.size - before
        elif attempt.commit_started or key >= attempt.max_write_key:
            attempt.may_write(key, b"")
        # A longer key than the limit cannot exist, so there is nothing to clear.

    def clear_range(self, begin: KeyOrSelector | None, end: KeyOrSelector | None) -> None:
        """Clear all keys from `begin` up to, but not including, `end`."""
        begin = b"" if begin is None else self._resolved(begin)
        end = b"\xff" if end is None else self._resolved(end)
        attempt = self._attempt
        if begin > end:
            attempt.fail(2005)
        elif attempt.commit_started:
            attempt.may_write(begin, b"")
        elif begin > attempt.max_write_key or end > attempt.max_write_key:
            attempt.fail(2004)
        elif begin < end:
            self.mutate(_CLEAR_RANGE, begin, end, end)
        else:  # only the approximate size counts an empty range
            attempt.uncounted -= MUTATION_OVERHEAD + 2 * len(begin)
            if not attempt.skip_next_write_conflict:
                attempt.uncounted -= RANGE_OVERHEAD + 2 * len(begin)
            attempt.skip_next_write_conflict = False

    def _resolved(self, key: KeyOrSelector) -> bytes:
        return as_key(self.get_key(key) if is_selector(key) else key)

    def set_versionstamped_key(self, key: KeyLike, param: ValueLike) -> None:
        """Set a key with the commit's versionstamp at the offset in its last four bytes."""
        key, param = as_key(key), as_value(param)
        attempt = self._attempt
        if self._may_write(key, param, template=key):
            # The conflict range is the final key, which only the commit knows.
            attempt.skip_next_write_conflict = True
            self.mutate(MutationType.SET_VERSIONSTAMPED_KEY, key, param)
            if not attempt.ryw_disabled:
                attempt.own_writes()  # now, because the unreadable keys depend on the read version

    def set_versionstamped_value(self, key: KeyLike, param: ValueLike) -> None:
        """Set a value with the commit's versionstamp at the offset in its last four bytes."""
        key, param = as_key(key), as_value(param)
        if self._may_write(key, param, template=param):
            self.mutate(MutationType.SET_VERSIONSTAMPED_VALUE, key, param)

    def _may_write(self, key: bytes, param: bytes, template: bytes) -> bool:
        """Return whether a versionstamped key or value can be written; else keep the error."""
        if not self._attempt.may_write(key, param):
            return False
        if not _stamp_fits(template):
            self._attempt.fail(2000)
            return False
        return True

    # Conflict ranges

    def add_read_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Conflict as if the range had been read."""
        begin, end = self._conflict_range(begin, end, self._attempt.max_read_key)
        if begin < end and not self._attempt.deferred:
            self._attempt.add_read_conflict(begin, end, is_read=False)

    def add_read_conflict_key(self, key: KeyLike) -> None:
        """Conflict as if the key had been read."""
        attempt = self._attempt
        if type(key) is not bytes:
            key = as_key(key)
        elif (
            attempt.is_unrestricted
            and len(key) < limits.KEY_SIZE_LIMIT
            and key < attempt.max_read_key
        ):  # as almost always
            attempt.add_read_conflict(key, key + b"\0", is_read=False)
            return
        begin, end = self._conflict_range(key, key + b"\0", self._attempt.max_read_key)
        if not self._attempt.deferred:
            self._attempt.add_read_conflict(begin, end, is_read=False)

    def add_write_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Make other transactions conflict as if the range had been written."""
        begin, end = self._conflict_range(begin, end, self._attempt.max_write_key)
        if begin < end and not self._attempt.deferred:
            self._attempt.add_write_conflict(begin, end)

    def add_write_conflict_key(self, key: KeyLike) -> None:
        """Make other transactions conflict as if the key had been written."""
        key = as_key(key)
        self.add_write_conflict_range(key, key_after(key))

    def _conflict_range(self, begin: KeyLike, end: KeyLike, greatest: bytes) -> Range:
        if type(begin) is not bytes or type(end) is not bytes:
            begin, end = as_key(begin), as_key(end)
        if begin > end:
            raise FDBError(2005)
        if self._attempt.commit_started:
            self._attempt.may_write(begin, b"")
        elif begin > greatest or end > greatest:
            self._attempt.fail(2004)
        if len(begin) > limits.KEY_SIZE_LIMIT or len(end) > limits.KEY_SIZE_LIMIT:
            return as_conflict_end(begin), as_conflict_end(end)
        return begin, end

    # Versions

    def set_read_version(self, version: int) -> None:
        """Read at this version, for example the committed version of another transaction.

        The embedded engine keeps no history: reads at a version before the last commit fail with
        1007.
        """
        if self._attempt.version is not None or self._attempt.held.snapshot is not None:
            self._attempt.fail(2010)
        elif version <= 0:
            self._attempt.fail(2011)
        else:
            self._attempt.version = version

    def get_committed_version(self) -> int:
        """Return the version of the last commit; -1 before it, and if nothing was written.

        `reset` and `on_error` keep it. A durable commit is on disk once its future is ready.
        """
        return self._committed_version

    def get_versionstamp(self) -> Key:
        """Return a future for the versionstamp, ready after the commit. Call before the commit."""
        try:
            self._attempt.check()
        except FDBError as error:
            return Key(None, error)
        held = self._attempt.held
        held.storage.attempts.add(self._attempt, held)
        if held.versionstamp is None:
            held.versionstamp = VersionstampFuture()
            held.storage.begin_to_look()  # ends the future if the transaction is dropped
        return held.versionstamp

    def get_approximate_size(self) -> Future[int]:
        """Return the approximate size so far, in bytes.

        The commit judges what is left after merging: several writes of one key count once.
        """
        attempt = self._attempt
        if attempt.deferred:
            return Future(0, FDBError(attempt.deferred))
        return Future(attempt.size - attempt.uncounted)

    # Watching, committing and retrying

    def read_ahead(self) -> None:
        """Let reads return before what they saw is on disk.

        Only for code that tells nobody what it has read until the future of the commit, or
        `confirm_reads`, has waited for the disk.
        """
        self._attempt.reads_ahead = True

    def confirm_reads(self) -> None:
        """Return once everything that was read is on disk.

        Raises:
            SyncFailed: The disk did not confirm it.
            FDBError: 1031, the disk did not confirm it before the timeout.
        """
        held = self._attempt.held
        if held.snapshot is not None:
            held.storage.confirm(held.snapshot, self._attempt.deadline)

    def watch(self, key: KeyLike) -> WatchFuture:
        """Return a future that is ready once the key's value differs from what was seen here.

        Setting the watch reads the key, and that read can conflict. A later write of this
        transaction that changes the value, or is atomic, makes the future ready. Changes by others
        do so after the commit. If the commit fails, the watch ends with the error.
        """
        future = WatchFuture()
        try:
            attempt = self._attempt
            attempt.check()
            if attempt.ryw_disabled:
                raise FDBError(1034)
            key = as_key(key)
            if len(key) > key_size_limit(key):
                raise FDBError(2102)
            value = attempt.read_value(key, snapshot=False)
            limit = self._database.defaults.max_watches
            self._database.watcher.reserve(len(attempt.held.watches) + 1, limit)
            attempt.held.watches += ((key, value, future),)
        except FdbqueueError as error:
            future.finish(error.with_traceback(None))
        return future

    def watch_ahead(self, key: KeyLike) -> WatchFuture:
        """Return a watch that may be ready before the change is on disk.

        Only for code that then reads what has changed: that read waits for the disk.
        """
        future = self.watch(key)
        future.is_ahead = True
        return future

    def commit(self) -> Future[None]:
        """Apply all writes atomically, unless a key that was read has changed (1020).

        The writes are visible when this returns. If the database is durable, they are on disk once
        the future is ready, and so is everything that the transaction has read. The first call that
        asks for its result waits for the disk, and one wait covers all commits before it. The
        result is known unless the disk fails, or is slower than the timeout
        (`CommitUnknownResult`, 1021). Such a transaction is not retried.
        """
        attempt = self._attempt
        try:
            if not attempt.is_unrestricted:
                attempt.check()
            attempt.commit_started = True
            attempt.is_unrestricted = False
            if attempt.read_error:
                raise FDBError(attempt.read_error)
            try:
                size_limit = self._settings.size_limit
                if 5 * attempt.size > size_limit and attempt.is_too_large(size_limit):
                    raise FDBError(2101)
                self._committed_version, wait_for_disk = attempt.commit()
                tells_of_commit = attempt.held.versionstamp is not None or attempt.held.watches
                if wait_for_disk is not None and tells_of_commit:
                    wait_for_disk()
                    wait_for_disk = None
            except BaseException as error:
                attempt.held.release()
                if isinstance(error, CommitUnknownResult):
                    attempt.end(1021)
                if isinstance(error, FdbqueueError):
                    attempt.held.end_watches(fresh(error))
                if attempt.held.versionstamp is not None and isinstance(error, FDBError):
                    attempt.held.versionstamp.finish(FDBError(2020))
                raise
            if attempt.held.versionstamp is not None:
                self._finish_versionstamp(attempt.held.versionstamp)
            if attempt.held.watches:
                self._set_watches()
        except FdbqueueError as error:
            return Future(None, error)
        return _DONE if wait_for_disk is None else CommitFuture(wait_for_disk, self._end_unknown)

    def _end_unknown(self) -> None:
        """Make every further operation fail: the result of the commit is unknown."""
        self._attempt.end(1021)

    def _finish_versionstamp(self, future: VersionstampFuture) -> None:
        if self._committed_version < 0:
            future.finish(FDBError(2021))
        else:
            future.value = self._committed_version.to_bytes(8, "big") + b"\0\0"
            future.finish()

    def _set_watches(self) -> None:
        held = self._attempt.held
        watches, held.watches = held.watches, ()
        for key, value, future in watches:
            future.database = self._database
            self._database.watcher.watch(key, value, future)

    def on_error(self, error: BaseException | int) -> Future[None]:
        """Prepare the next attempt after a retryable error, or fail with the error.

        The future is the delay before the attempt: FoundationDB's, growing from 10 ms to a second.
        There is none after the conflict of a short transaction, which holds the lock next time.
        """
        if isinstance(error, int):
            error = FDBError(error)
        code: int | None = getattr(error, "code", None)
        if code is None:
            raise error
        if (reported := _reported(code)) != code:
            error = FDBError(reported)
        if over := self._attempt.ended():
            return Future(None, error if over == code else FDBError(over))
        settings = self._settings
        limited = settings.retry_limit != -1 and self._retries >= settings.retry_limit
        self._retries += 1
        if limited and code == 0:
            error = FDBError(4100)  # FoundationDB fails to throw an error that is none
        if limited or code not in _RETRYABLE | _RETRYABLE_VERSIONS:
            self._attempt.finish(1025)
            return Future(None, error)
        is_short = code == 1020 and self._attempt.duration < _SHORT
        if code == 1020:
            self._conflicts += 1
            self._is_starved = is_short or self._conflicts >= _STARVED
        longest = settings.max_retry_delay / 1000
        if is_short:
            pause = 0.0
        elif code in _RETRYABLE_VERSIONS:
            pause = min(limits.FUTURE_VERSION_DELAY, longest)
        else:
            pause = self._backoff * random.random()
            self._backoff = min(self._backoff * limits.BACKOFF_GROWTH, longest)
        deadline = self._attempt.deadline
        if deadline is not None and time.monotonic() + pause >= deadline:
            self._attempt.finish(1031)
            return Future(None, FDBError(1031))
        if settings is not self._database.defaults:
            settings.size_limit = self._database.defaults.size_limit
        self._attempt.restart(self._database.defaults.snapshot_ryw, self._is_starved)
        return Pause(pause)

    def reset(self) -> None:
        """Restore the state of a new transaction."""
        self._settings = self._database.defaults
        self._retries = self._conflicts = 0
        self._is_starved = False
        self._attempt.set_deadline(None)
        self._attempt.restart(self._settings.snapshot_ryw, self._is_starved)
        self._backoff = limits.INITIAL_BACKOFF
        self._created = time.monotonic()
        if self._settings.timeout:
            self._apply_timeout()

    def cancel(self) -> None:
        """Cancel the transaction. Every further operation fails with 1025."""
        self._attempt.ended()  # 1031 stays if the timeout has expired
        self._attempt.finish(1025)

    # Options

    def _own_settings(self) -> Settings:
        """Return settings for this transaction alone, which may be changed."""
        if self._settings is self._database.defaults:
            self._settings = copy(self._database.defaults)
        return self._settings

    def _apply_timeout(self) -> None:
        """Set the deadline. The timeout counts from the creation of the transaction."""
        self._attempt.ended()  # a timeout that has expired stays expired
        timeout = self._settings.timeout
        self._attempt.set_deadline(self._created + timeout / 1000 if timeout else None)


def _reported(code: int) -> int:
    """Return the code of the error that FoundationDB reports for a code given to `on_error`."""
    if not 0 <= code < 0xFFFF:
        return 4000
    return {0: 2000, 1100: 1025}.get(code, code)


def _stamp_fits(template: bytes) -> bool:
    """Return whether the last four bytes are the offset of room for a ten-byte versionstamp."""
    if len(template) < 4:
        return False
    at = int.from_bytes(template[-4:], "little", signed=True)
    return at >= 0 and at + 10 <= len(template) - 4
