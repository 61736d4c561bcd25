"""The list of running workers. Each worker renews its row along with the leases of its jobs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from fdbqueue.database.clock import Since, client_name, milliseconds, uuids
from fdbqueue.database.retrying import read, run
from fdbqueue.layout.names import worker_key, workers_range
from fdbqueue.layout.records import decode_worker
from fdbqueue.layout.values import StoredWorker, encode_worker, time_as_json, utc_time
from fdbqueue.types import Database, ReadTransaction, ReadTransactor, Transaction

LOOK = 1.0
"""Seconds after which a worker looks, at the latest, whether to renew its row."""

_CHANGED = 20.0  # seconds after which a worker whose number of jobs has changed renews its row
_IDLE = 60.0  # seconds after which a worker without jobs does so in any case
_MAX_ROWS = 10_000  # of workers, among which the start of another one looks for dead ones
_IDLE_LIFE = 150.0  # seconds for which that row counts


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that runs, or was killed a moment ago.

    A worker of several queues has one of these for each of them.

    Attributes:
        name: Its name, which is also the `ItemInfo.claimed_by` of the items that it has claimed.
        host: The name of its host.
        pid: The id of its process on that host.
        queue: The name of its queue, or the key of the queue's subspace as text.
        concurrency: The number of jobs that it runs at a time, of all its queues.
        at_most: The number of jobs of this queue that it runs at a time: `concurrency` or less.
        jobs: The number of jobs that it held when it was last seen. It may be 20 seconds old, but a
            worker that gets its first jobs says so after a second.
        since: When it started, by its clock.
        seen: When it last renewed its entry, by its clock.
    """

    name: str
    host: str
    pid: int
    queue: str
    concurrency: int
    at_most: int
    jobs: int
    since: datetime
    seen: datetime = field(compare=False)


def workers(tr: ReadTransactor) -> list[WorkerInfo]:
    """Return the workers of all queues of a database, in the order in which they started.

    A worker updates its entry in the transaction that extends the leases of its jobs, when it gets
    its first job, up to three times a minute if their number changes, and once a minute while it
    has none. It deletes the entry when it stops. If it was killed, it stays listed until the leases
    of its jobs are over, or for up to two and a half minutes if it had none.

    Only `Worker` and `fdbq work` are listed, not other clients that claim items. Cost: one read.

    Args:
        tr: A transaction or a database.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "job")
        >>> def look(item):
        ...     while not (found := workers(db)):
        ...         pass  # a worker is listed a moment after its start
        ...     print(found[0].queue, found[0].concurrency)
        >>> _ = fdbqueue.Worker(db, jobs, look, concurrency=2).run(drain=True)
        jobs 2
        >>> workers(db)
        []
    """
    now = milliseconds()

    def body(tr: ReadTransaction) -> list[WorkerInfo]:
        rows = [decode_worker(row.value) for row in tr.get_range(*workers_range())]
        return [
            WorkerInfo(name, host, pid, queue, n, most, jobs, utc_time(since), utc_time(seen))
            for name, host, pid, queue, n, jobs, since, seen, end, most in filter(None, rows)
            if end > now
        ]

    return read(tr, body)


def worker_as_json(worker: WorkerInfo) -> dict[str, Any]:
    """Return a worker as a JSON object."""
    times = {"since": time_as_json(worker.since), "seen": time_as_json(worker.seen)}
    return {**asdict(worker), **times}


class Presence:
    """The row of one worker, which says that it is there.

    Args:
        name: The name of the worker; `None` for that of its client.
        queue: The name of its queue.
        at_most: The number of jobs of this queue that it runs at a time.
        lease: The lease of its jobs in seconds.

    Attributes:
        concurrency: The number of jobs that it runs at a time, of all its queues.
    """

    def __init__(self, name: str | None, queue: str, at_most: int, lease: float) -> None:
        self.name = name
        self._lease = lease
        self.queue = queue
        self.concurrency = self._at_most = at_most
        self._since = milliseconds()
        self._key = worker_key(*uuids(1))
        self._jobs: int | None = None
        self._renewed = Since()

    def is_due(self, jobs: int) -> bool:
        """Return whether to renew the row now, apart from the transactions that extend leases."""
        age = self._renewed.seconds()
        if jobs == self._jobs:
            return jobs == 0 and age >= _IDLE
        return not self._jobs or age >= _CHANGED

    def renewal(self, jobs: int) -> Callable[[Transaction], None]:
        """Return the change that renews the row, for a transaction that extends leases."""
        self._jobs, self._renewed = jobs, Since()
        now = milliseconds()
        life = self._lease if jobs else _IDLE_LIFE
        row = StoredWorker(
            self.name or client_name(),
            socket.gethostname(),
            os.getpid(),
            self.queue,
            self.concurrency,
            jobs,
            self._since,
            now,
            now + int(1000 * life),
            self._at_most,
        )
        value = encode_worker(row)

        def renew(tr: Transaction) -> None:
            tr[self._key] = value

        return renew

    def write(self, db: Database, jobs: int) -> None:
        """Write the row, and delete those of workers that were killed."""
        renew, now = self.renewal(jobs), milliseconds()

        def body(tr: Transaction) -> None:
            renew(tr)
            for row in tr.snapshot.get_range(*workers_range(), limit=_MAX_ROWS):
                worker = decode_worker(row.value)
                if worker is None or worker.end <= now:
                    tr.clear(row.key)

        run(db, body)

    def end(self, db: Database) -> None:
        """Delete the row."""
        run(db, lambda tr: tr.clear(self._key))
