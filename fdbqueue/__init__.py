"""fdbqueue: a transactional, durable priority queue in FoundationDB, or on one machine without it.

    import fdbqueue

    db = fdbqueue.open("embedded:jobs")
    jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    jobs.push(db, {"send": "ada@example.com"}, priority=1)
    item = jobs.pop(db)

Every method takes a transaction as well: pop a job, write its result and push what follows from it
in one transaction, decorated with `fdbqueue.transactional`.

The logger "fdbqueue" has a line at the level DEBUG for each item that a call with a database pushed
to a priority queue or popped from it. The logger "fdbqueue.counts" also says how many items of each
priority are left, which takes another read. It inherits no level: `setLevel(logging.INFO)` switches
it on.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import error_classes
from fdbqueue.database.decorator import transactional
from fdbqueue.database.opening import open
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.queue.check import CheckReport, check
from fdbqueue.queue.fifo import Queue
from fdbqueue.queue.overview import overview
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.queue.registry import (
    drop_queue,
    existing_queue,
    migrate_queue,
    queue_names,
    queues,
    rename_queue,
)
from fdbqueue.queue.task import TaskQueue
from fdbqueue.types import (
    Claim,
    Codec,
    Database,
    FailedAttempt,
    HistoryBucket,
    HistoryWindow,
    Item,
    ItemInfo,
    MatchCount,
    Options,
    QueueStats,
    ReadTransactor,
    SearchPage,
    Task,
    TaskPriority,
    TaskStats,
    Transaction,
    Transactor,
    create_deadline,
)

if TYPE_CHECKING:
    from fdbqueue import aio as aio
    from fdbqueue.database.directory import DirectoryLayer, directory
    from fdbqueue.queue.presence import WorkerInfo, workers
    from fdbqueue.queue.transfer.backup import backup, restore
    from fdbqueue.queue.transfer.copying import copy_queue
    from fdbqueue.queue.transfer.rows import QueueCopy
    from fdbqueue.worker.worker import Worker, WorkerReport

__all__ = [
    "CheckReport",
    "Claim",
    "Codec",
    "Database",
    "DirectoryLayer",
    "FDBError",
    "FailedAttempt",
    "FdbqueueError",
    "HistoryBucket",
    "HistoryWindow",
    "Item",
    "ItemInfo",
    "MatchCount",
    "Options",
    "PriorityQueue",
    "Queue",
    "QueueCopy",
    "QueueStats",
    "ReadTransactor",
    "SearchPage",
    "Subspace",
    "Task",
    "TaskPriority",
    "TaskQueue",
    "TaskStats",
    "Transaction",
    "Transactor",
    "Worker",
    "WorkerInfo",
    "WorkerReport",
    "backup",
    "check",
    "copy_queue",
    "create_deadline",
    "directory",
    "drop_queue",
    "error_classes",
    "existing_queue",
    "migrate_queue",
    "open",
    "overview",
    "queue_names",
    "queues",
    "rename_queue",
    "restore",
    "transactional",
    "workers",
]


def __dir__() -> list[str]:
    return sorted(__all__)


# Imported when they are asked for: a process that pushes and pops needs neither them nor asyncio.
_ON_DEMAND = {
    "DirectoryLayer": "fdbqueue.database.directory",
    "QueueCopy": "fdbqueue.queue.transfer.rows",
    "Worker": "fdbqueue.worker.worker",
    "WorkerInfo": "fdbqueue.queue.presence",
    "WorkerReport": "fdbqueue.worker.worker",
    "backup": "fdbqueue.queue.transfer.backup",
    "copy_queue": "fdbqueue.queue.transfer.copying",
    "directory": "fdbqueue.database.directory",
    "restore": "fdbqueue.queue.transfer.backup",
    "workers": "fdbqueue.queue.presence",
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("fdbqueue.aio")
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
