"""fdbqueue: a transactional, durable priority queue in FoundationDB, or on one machine without it.

    import fdbqueue

    db = fdbqueue.open("embedded:jobs")
    jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    jobs.push(db, {"send": "ada@example.com"}, priority=1)
    item = jobs.pop(db)

Every method also takes a transaction: a function decorated with `fdbqueue.transactional` can pop a
job, write its result and push follow-ups in one.

`fdbqueue.types` has the records that methods return, `fdbqueue.errors` all errors. `fdbqueue.admin`
renames, drops, checks, copies and backs up queues. `fdbqueue.aio` has queues and workers for
asyncio.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fdb.subspace_impl import Subspace

from fdbqueue.database.decorator import transactional
from fdbqueue.database.opening import open
from fdbqueue.errors import FDBError, FdbqueueError, error_classes
from fdbqueue.queue.overview import existing_queue
from fdbqueue.queue.priority import PriorityQueue, Queue
from fdbqueue.queue.task import TaskQueue, create_deadline
from fdbqueue.types import Claim, Database, Item, Task, TaskPriority, Transaction

if TYPE_CHECKING:
    from fdbqueue import admin as admin
    from fdbqueue import aio as aio
    from fdbqueue import errors as errors
    from fdbqueue import jobs as jobs
    from fdbqueue import testing as testing
    from fdbqueue import types as types
    from fdbqueue.database.directory import DirectoryLayer, directory
    from fdbqueue.jobs import App
    from fdbqueue.worker.endings import WorkerReport
    from fdbqueue.worker.worker import Worker

    __version__: str

__all__ = [
    "App",
    "Claim",
    "Database",
    "DirectoryLayer",
    "FDBError",
    "FdbqueueError",
    "Item",
    "PriorityQueue",
    "Queue",
    "Subspace",
    "Task",
    "TaskPriority",
    "TaskQueue",
    "Transaction",
    "Worker",
    "WorkerReport",
    "create_deadline",
    "directory",
    "error_classes",
    "existing_queue",
    "open",
    "transactional",
]

_MODULES = ("admin", "aio", "errors", "jobs", "testing", "types")

# Imported when they are asked for: a process that pushes and pops needs neither them nor asyncio.
_ON_DEMAND = {
    "App": "fdbqueue.jobs",
    "DirectoryLayer": "fdbqueue.database.directory",
    "Worker": "fdbqueue.worker.worker",
    "WorkerReport": "fdbqueue.worker.endings",
    "directory": "fdbqueue.database.directory",
}


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fdbqueue.{name}")
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(_ON_DEMAND[name]), name)
    if name == "__version__":
        # Imported here, because it would take an eighth of the time of `import fdbqueue`.
        from importlib.metadata import version

        return version("fdbqueue")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
