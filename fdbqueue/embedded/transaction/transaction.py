"""Transactions, with the official Python binding's names and rules; see its `api-python.rst`."""

from __future__ import annotations

import random
import time
import weakref
from dataclasses import replace
from functools import partial
from typing import Protocol

from fdbqueue import types
from fdbqueue.embedded.arguments import (
    BACKOFF_GROWTH,
    END_OF_KEYS,
    INITIAL_BACKOFF,
    KEY_SIZE_LIMIT,
    VALUE_SIZE_LIMIT,
    as_key,
    as_value,
    is_selector,
)
from fdbqueue.embedded.mutations import CLEAR_RANGE, STAMPED_KEY, STAMPED_VALUE
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.transaction.attempt import RANGE_SIZE, Attempt
from fdbqueue.embedded.transaction.futures import (
    Blocking,
    Future,
    Key,
    VersionstampFuture,
    WatchFuture,
    fresh,
)
from fdbqueue.embedded.transaction.options import Settings, TransactionOptions
from fdbqueue.embedded.transaction.reads import SnapshotRead, TransactionRead
from fdbqueue.embedded.transaction.watcher import Watcher
from fdbqueue.embedded.transaction.writes import Writes
from fdbqueue.errors import CommitUnknownResult, FDBError, FdbqueueError
from fdbqueue.types import KeyLike, KeyOrSelector, ValueLike

# Errors that FoundationDB's onError retries.
_RETRYABLE = frozenset({1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223})

_MUTATION_SIZE = 68
"""Bytes that a mutation counts beside its key and parameter."""

_DONE = Future(None)


class _Database(types.Database, Protocol):
    storage: Storage
    defaults: Settings
    watcher: Watcher


class Transaction(TransactionRead, Writes):
    """A transaction on an embedded database.

    It reads at the version of its first read and sees its own writes. The next read or the commit
    reports a write's invalid key or value.
    """

    def __init__(self, database: _Database) -> None:
        self.db = self._database = database
        self.snapshot: TransactionRead = SnapshotRead()
        """Reads of the same transaction without read conflicts."""
        self.snapshot.db = database
        self._committed_version = -1
        self._reads_ahead = False
        self._begin()

    def _begin(self) -> None:
        self._settings = self._database.defaults
        self._retries = 0
        self._backoff = INITIAL_BACKOFF
        self._created = time.monotonic()
        self._attempt = self.snapshot._attempt = Attempt(
            self._database.storage, self._settings, self._created, self._reads_ahead
        )

    @property
    def options(self) -> TransactionOptions:
        """Options of this transaction, set by `set_...` methods."""
        return TransactionOptions(self, self._attempt)

    # Writing

    def mutate(self, kind: int, key: KeyLike, param: ValueLike, end: bytes | None = None) -> None:
        """Buffer a mutation. A range ends at `param` and, checked by the caller, `end`."""
        attempt = self._attempt
        if type(key) is not bytes:
            key = as_key(key)
        if type(param) is not bytes:
            param = as_value(param)
        if attempt.deferred:
            return  # FoundationDB ignores what a program does after a mistake
        code = 0
        if attempt.commit_started:
            code = 2017
        elif key >= END_OF_KEYS:
            code = 2004
        elif len(key) > KEY_SIZE_LIMIT and end is None:
            code = 2102
        elif len(param) > VALUE_SIZE_LIMIT and end is None:
            code = 2103
        elif (kind == STAMPED_KEY and not _has_room(key)) or (
            kind == STAMPED_VALUE and not _has_room(param)
        ):
            code = 2000
        if code:
            attempt.fail(code)
            return
        attempt.mutations.append((kind, key, param))
        attempt.size += _MUTATION_SIZE + len(key) + len(param)
        if attempt.watches:
            attempt.trigger_watches(kind, key, param)
        # The conflict range of a versionstamped key is the final key, which only the commit knows.
        if kind != STAMPED_KEY and not attempt.skip_next_write_conflict:
            attempt.writes += (key, end or b"")
            attempt.size += len(key) + len(end or key)
        attempt.skip_next_write_conflict = False

    def clear(self, key: KeyOrSelector) -> None:
        """Clear a key."""
        if type(key) is not bytes:
            key = self._resolved(key)
        if len(key) > KEY_SIZE_LIMIT:
            self.clear_range(key, key)  # such a key cannot exist
        else:
            self.mutate(CLEAR_RANGE, key, key + b"\0")

    def clear_range(self, begin: KeyOrSelector | None, end: KeyOrSelector | None) -> None:
        """Clear all keys from `begin` (inclusive) to `end` (exclusive)."""
        begin = b"" if begin is None else self._resolved(begin)
        end = b"\xff" if end is None else self._resolved(end)
        attempt = self._attempt
        if begin > end:
            attempt.fail(2005)
        elif self._is_within(begin, end) and begin < end:
            self.mutate(CLEAR_RANGE, begin, end, end)
        else:
            attempt.skip_next_write_conflict = False

    def _is_within(self, begin: bytes, end: bytes) -> bool:
        attempt = self._attempt
        if attempt.commit_started:
            attempt.fail(2017)
        elif begin > END_OF_KEYS or end > END_OF_KEYS:
            attempt.fail(2004)
        return not attempt.deferred

    def _resolved(self, key: KeyOrSelector) -> bytes:
        return as_key(self.get_key(key) if is_selector(key) else key)

    def set_versionstamped_key(self, key: KeyLike, param: ValueLike) -> None:
        """Set a key with the versionstamp; hide the keys that it may become."""
        super().set_versionstamped_key(key, param)
        if not self._attempt.ryw_disabled:
            self._attempt.own_writes()  # now: the unreadable keys depend on the read version

    # Conflict ranges

    def add_read_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Conflict as if the range had been read."""
        begin, end = as_key(begin), as_key(end)
        if begin > end:
            raise FDBError(2005)
        if self._is_within(begin, end):
            self._attempt.add_read_conflict(begin, end)

    def add_read_conflict_key(self, key: KeyLike) -> None:
        """Conflict as if the key had been read."""
        begin = key if type(key) is bytes else as_key(key)
        end = begin + b"\0"
        if self._is_within(begin, end):
            self._attempt.add_read_conflict(begin, end)

    def add_write_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Conflict as if the range had been written."""
        begin, end = as_key(begin), as_key(end)
        if begin > end:
            raise FDBError(2005)
        if self._is_within(begin, end) and begin < end:
            self._attempt.writes += (begin, end)
            self._attempt.size += RANGE_SIZE + len(begin) + len(end)

    def add_write_conflict_key(self, key: KeyLike) -> None:
        """Conflict as if the key had been written."""
        key = as_key(key)
        self.add_write_conflict_range(key, key + b"\0")

    # Versions

    def set_read_version(self, version: int) -> None:
        """Read at this version; 1007 before the last commit: the engine keeps no history."""
        if self._attempt.version is not None or self._attempt.snapshot is not None:
            self._attempt.fail(2010)
        elif version <= 0:
            self._attempt.fail(2011)
        else:
            self._attempt.version = version

    def get_committed_version(self) -> int:
        """Return the version of the last commit; -1 before it, and if nothing was written."""
        return self._committed_version

    def get_versionstamp(self) -> Key:
        """Return a future for the versionstamp; call this before the commit."""
        try:
            self._attempt.check()
        except FDBError as error:
            return Key(None, error)
        if self._attempt.stamp is None:
            stamp = self._attempt.stamp = VersionstampFuture()
            weakref.finalize(self._attempt, stamp.finish, FDBError(1025)).atexit = False
        return self._attempt.stamp

    def get_approximate_size(self) -> Future[int]:
        """Return the approximate size of all operations, in bytes."""
        return Future(self._attempt.size)

    # Watching, committing and retrying

    def read_ahead(self) -> None:
        """Let reads return before what they saw is on disk.

        The caller must tell nobody of it until the commit's future or `confirm_reads` is done.
        """
        self._reads_ahead = self._attempt.reads_ahead = True

    def confirm_reads(self) -> None:
        """Wait until everything that was read is on disk.

        Raises `SyncFailed`, or 1031 once the timeout is over.
        """
        attempt = self._attempt
        if attempt.snapshot is not None:
            attempt.storage.sync.wait(attempt.snapshot.version, attempt.deadline)

    def watch(self, key: KeyLike) -> WatchFuture:
        """Return a future that is ready once the key's value differs from the value seen here.

        This read can conflict. A later write of this transaction that changes the value, or is
        atomic, makes the future ready. If the commit fails, so does the watch.
        """
        future = WatchFuture(self._database)
        try:
            attempt = self._attempt
            attempt.check()
            if attempt.ryw_disabled:
                raise FDBError(1034)
            key = as_key(key)
            if len(key) > KEY_SIZE_LIMIT:
                raise FDBError(2102)
            failed = attempt.read_error
            read = self.get(key)
            attempt.read_error = failed  # an error is the watch's alone
            value = read.value
            limit = self._database.defaults.max_watches
            self._database.watcher.reserve(len(attempt.watches) + 1, limit)
            attempt.watches.append((key, value, future))
        except FdbqueueError as error:
            future.finish(error.with_traceback(None))
        return future

    def commit(self) -> Future[None]:
        """Apply all writes atomically, unless a key that was read has changed (1020).

        The writes are visible when this returns. If the database is durable, they and everything
        read are on disk once the future is ready. If the disk fails or is slower than the timeout,
        the result is unknown (`CommitUnknownResult`, 1021), and the transaction is not retried.
        """
        attempt = self._attempt
        try:
            if not attempt.is_unrestricted:
                attempt.check()
            attempt.commit_started = True
            attempt.is_unrestricted = False
            if attempt.read_error:
                raise FDBError(attempt.read_error)
        except FDBError as error:
            return Future(None, error)  # as in FoundationDB, this leaves the watches alone
        try:
            self._committed_version, seen = attempt.commit(self._settings.size_limit)
            if attempt.stamp is not None:
                self._confirm(attempt, seen)  # the versionstamp tells of the commit
        except FdbqueueError as error:
            attempt.release()
            attempt.end_watches(fresh(error))
            if attempt.stamp is not None:
                attempt.stamp.finish(FDBError(2020))
            return Future(None, error)
        if attempt.stamp is not None:
            attempt.stamp.finish_with(self._committed_version)
        watches, attempt.watches = attempt.watches, []
        for key, value, future in watches:
            self._database.watcher.watch(key, value, future)
        is_on_disk = seen <= attempt.storage.sync.covered
        return _DONE if is_on_disk else Blocking(partial(self._confirm, attempt, seen))

    def _confirm(self, attempt: Attempt, seen: int) -> None:
        """Wait until a commit is on disk. An unknown result ends the transaction."""
        try:
            attempt.storage.sync.wait(seen, attempt.deadline)
        except FdbqueueError as error:
            if not attempt.mutations and not attempt.writes:
                raise
            self._attempt.end(1021)
            raise CommitUnknownResult(str(attempt.storage.path), str(error)) from error

    def on_error(self, error: BaseException | int) -> Future[None]:
        """Prepare the next attempt after a retryable error, or fail with the error.

        The first call that asks for the result sleeps: from 10 ms to a second, or after a conflict
        from the attempt's duration, if shorter.
        """
        if isinstance(error, int):
            error = FDBError(error)
        code: int | None = getattr(error, "code", None)
        if code is None:
            raise error
        attempt = self._attempt
        if over := attempt.ended():
            return Future(None, error if over == code else FDBError(over))
        settings = self._settings
        limited = 0 <= settings.retry_limit <= self._retries
        self._retries += 1
        if limited or code not in _RETRYABLE:
            attempt.finish(1025)
            return Future(None, error)
        if code == 1020 and self._retries == 1:
            self._backoff = min(self._backoff, attempt.duration)
        pause = self._backoff * random.random()
        self._backoff = min(self._backoff * BACKOFF_GROWTH, settings.max_retry_delay / 1000)
        if attempt.deadline is not None and time.monotonic() + pause >= attempt.deadline:
            attempt.finish(1031)
            return Future(None, FDBError(1031))
        defaults = self._database.defaults
        self._settings = replace(
            settings, size_limit=defaults.size_limit, snapshot_ryw=defaults.snapshot_ryw
        )
        self._drop()
        self._attempt = self.snapshot._attempt = Attempt(
            self._database.storage, self._settings, self._created, self._reads_ahead
        )
        return Blocking(partial(time.sleep, pause))

    def _drop(self) -> None:
        self._attempt.finish(1025)
        self._attempt.end_watches(FDBError(1025))

    def reset(self) -> None:
        """Restore the state of a new transaction."""
        self._drop()
        self._begin()

    def cancel(self) -> None:
        """Cancel the transaction. Further operations fail with 1025."""
        self._attempt.ended()  # 1031 stays if the timeout has expired
        self._attempt.finish(1025)

    # Options

    def change_settings(self, **changed: int) -> None:
        """Change options."""
        self._settings = replace(self._settings, **changed)
        attempt = self._attempt
        attempt.ended()  # a timeout that has expired stays expired
        timeout = self._settings.timeout
        attempt.deadline = self._settings.deadline(self._created) if timeout else None
        attempt.is_unrestricted &= attempt.deadline is None


def _has_room(template: bytes) -> bool:
    return 0 <= int.from_bytes(template[-4:], "little", signed=True) <= len(template) - 14
