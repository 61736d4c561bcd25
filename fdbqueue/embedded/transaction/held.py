"""The resources of a transaction, which are released if the program drops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fdbqueue.embedded.disk.locks import WriteLockHold
from fdbqueue.embedded.storage.owners import Reference
from fdbqueue.embedded.storage.snapshot import Snapshot
from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.transaction.futures import WatchFuture
from fdbqueue.errors import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.transaction.reads import VersionstampFuture

__all__ = ["Held", "Watches"]

Watches: TypeAlias = tuple[tuple[bytes, "bytes | None", WatchFuture], ...]
"""Keys, the values that a transaction sees, and the futures of watches set by its commit."""


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
            hold.end()
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
            stamp.finish(None, FDBError(code))

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
