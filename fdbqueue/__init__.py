"""fdbqueue: a transactional, durable priority queue in FoundationDB, or on one machine without it.

    import fdbqueue

    db = fdbqueue.open("embedded:jobs")
    jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    jobs.push(db, {"send": "ada@example.com"}, priority=1)
    item = jobs.pop(db)

Every method takes a transaction as well: pop a job, write its result and push what follows from it
in one transaction, decorated with `fdbqueue.transactional`.

The logger "fdbqueue" has a line, at the level INFO, for each item that a priority queue was given
or gave out by a call with a database, and how many are left of each priority. That takes another
read.
"""

from fdb.subspace_impl import Subspace

from fdbqueue.database import error_classes, open, transactional
from fdbqueue.directory import drop_queue, queue_names, queues, rename_queue
from fdbqueue.errors import FDBError, FdbqueueError
from fdbqueue.existing import existing_queue
from fdbqueue.fifo import Queue
from fdbqueue.invariants import CheckReport, check
from fdbqueue.overview import QueueStatus, overview
from fdbqueue.priority_queue import PriorityQueue
from fdbqueue.task import Task, TaskPriority, TaskStats, create_deadline
from fdbqueue.task_queue import TaskQueue
from fdbqueue.types import Claim, Codec, DeadLetter, Item, Options
from fdbqueue.worker import Worker, WorkerReport

__all__ = [
    "CheckReport",
    "Claim",
    "Codec",
    "DeadLetter",
    "FDBError",
    "FdbqueueError",
    "Item",
    "Options",
    "PriorityQueue",
    "Queue",
    "QueueStatus",
    "Subspace",
    "Task",
    "TaskPriority",
    "TaskQueue",
    "TaskStats",
    "Worker",
    "WorkerReport",
    "check",
    "create_deadline",
    "drop_queue",
    "error_classes",
    "existing_queue",
    "open",
    "overview",
    "queue_names",
    "queues",
    "rename_queue",
    "transactional",
]
