"""The processes of a host that share transactions on one queue: one of them leads."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.following import Follower
from fdbqueue.coordination.contention.leading import Leader
from fdbqueue.coordination.contention.messages import FORMAT
from fdbqueue.coordination.contention.process import Kind, Process
from fdbqueue.coordination.contention.sockets import IS_AVAILABLE, LeadSocket, meet
from fdbqueue.database.binding import database_identity
from fdbqueue.layout.keys import Layout
from fdbqueue.types import Database

_log = logging.getLogger("fdbqueue")


class Host:
    """The host of this process, whose processes share batches of one queue while they contend.

    A process that meets contention looks for the leader of its host, and becomes the leader if
    there is none. The leader adds the requests of the other processes to its own batches. After a
    tenth of a second, or when its threads pause, it passes the lead on.

    A process leaves its requests with the leader until a deadline. The leader's transaction writes
    their results to a receipt of that process, and conflicts on it. A process without an answer
    reads its receipt after the deadline, or as soon as the leader is gone. If the receipt lacks the
    results, the process writes to it. The leader commits only if its transaction did its reads
    before the deadline, so that transaction conflicts with this write. Each request takes effect
    exactly once.

    Args:
        db: The database.
        layout: The keys of the queue.
        given: What the processes that share have to have in common, besides the queue.
        kinds: The kinds of requests.

    Attributes:
        process: This process.
        is_shared: Whether its processes can share transactions.

    Source: Hendler, Incze, Shavit and Tzafrir, Flat Combining (2010), here among processes.
    """

    def __init__(self, db: Database, layout: Layout, given: str, kinds: Iterable[Kind]) -> None:
        self.is_shared = IS_AVAILABLE and getattr(db, "commits_take_time", True)
        self.process = Process(db, kinds)
        self._queue = given.encode() + b" " + layout.subspace.key()
        self._name: str | None = None
        self._waits = 0
        self._leader: Leader | None = None
        self._follower = Follower(self.process, layout.receipts)

    def close(self) -> None:
        """Close the sockets; in a forked child, leave their names to the parent."""
        if self._leader is not None:
            self._leader.resign()
        self._follower.disconnect()

    @property
    def leads(self) -> bool:
        """True if this process is the leader."""
        return self._leader is not None and self._leader.leads

    def is_contended(self, db: Database, kind: Kind) -> bool:
        """Return whether to share: this process recently waited for others or worked with them."""
        if not self.is_shared:
            return False
        waits: int = getattr(db, "lock_waits", 0)
        if waits != self._waits:
            self._waits = waits
            self.process.note_contention()
        return self.process.is_contended(kind)

    def perform(self, kind: Kind, db: Database, batch: Batch[Any]) -> Sequence[Any]:
        """Perform a batch in this process, or together with others."""
        guard = self.process.guard
        # Another thread, or a call that a signal handler interrupted, may be sharing.
        if self.is_contended(db, kind) and not guard.locked():
            with guard:
                self.process.calls += 1
                if not self.leads and self._has_leader(db):
                    results = self._follower.perform(kind, db, batch)
                    if isinstance(results, LeadSocket):
                        self._leader = Leader(self.process, results)
                    elif results is not None:
                        return results
                if self._leader is not None and self._leader.leads:
                    return self._leader.perform(kind, db, batch)
        return self.process.performers[kind.name].perform(db, batch)

    def _has_leader(self, db: Database) -> bool:
        """Connect to the leader of the host, or become it; return whether there is another one."""
        if self._name is None:
            try:
                identity = database_identity(db)
            except OSError as error:
                _log.debug("this process cannot share transactions now: %r", error)
                self.process.rest()
                return False
            self.is_shared = identity is not None
            if identity is None:
                return False
            self._name = _name_of(identity, self._queue)
        if not self._follower.is_connected:
            found = meet(self._name)
            if isinstance(found, LeadSocket):
                self._leader = Leader(self.process, found)
            elif found is None:
                self.process.rest()
            else:
                self._follower.connect(found)
        return self._follower.is_connected and not self.leads


def _name_of(identity: str, queue: bytes) -> str:
    """Return the name of the leader's socket."""
    # Processes that compare their monotonic clocks must share them.
    boot = Path("/proc/sys/kernel/random/boot_id")
    clock = Path("/proc/self/ns/time")
    parts = [
        boot.read_text() if boot.exists() else "",
        clock.stat().st_ino if clock.exists() else 0,
    ]
    text = f"{FORMAT} {parts} {identity} ".encode() + queue
    return hashlib.sha256(text).hexdigest()[:32]
