"""The administration of queues: list, rename, drop, check, back up and copy them.

`fdbqueue.aio` has the same functions for asyncio.

    for name, numbers in fdbqueue.admin.overview(db).items():
        print(name, numbers.ready)
"""

from __future__ import annotations

from fdbqueue.layout.values import LAYOUT_VERSION
from fdbqueue.queue.backup import Copies, KeyExists, QueueCopy, backup, copy, restore
from fdbqueue.queue.check import CheckReport, check
from fdbqueue.queue.overview import drop, overview, queue_names, rename, rename_job
from fdbqueue.worker.presence import WorkerInfo, workers

__all__ = [
    "LAYOUT_VERSION",
    "CheckReport",
    "Copies",
    "KeyExists",
    "QueueCopy",
    "WorkerInfo",
    "backup",
    "check",
    "copy",
    "drop",
    "overview",
    "queue_names",
    "rename",
    "rename_job",
    "restore",
    "workers",
]
