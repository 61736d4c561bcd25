"""The job of `tests.benchmarks.workers`, for a worker of this library and for huey's.

A job is a number. When it is done, it writes the record of that number in a file that all workers
map into their memory.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from importlib.util import find_spec
from pathlib import Path

from fdbqueue import Item

RECORD = struct.Struct("=qii")
"""When a job was done (monotonic, in nanoseconds), by which process, and how many times."""
SECONDS, RECORDS, WORKERS, HUEY = (
    f"FDBQ_BENCHMARK_{name}" for name in ("SECONDS", "RECORDS", "WORKERS", "HUEY")
)
"""Environment variables: the seconds that a job waits, the file of the records, the directory in
which each process makes a file at its first job, and huey's database."""

_wait = float(os.environ.get(SECONDS, "0"))
_known = 0  # the process that has made its file; huey forks processes that have this module
if RECORDS in os.environ:
    with open(os.environ[RECORDS], "r+b") as file:
        _records = mmap.mmap(file.fileno(), 0)


def do(number: int) -> None:
    """Do a job: wait, and write its record."""
    global _known
    if _wait:
        time.sleep(_wait)
    process = os.getpid()
    _, _, times = RECORD.unpack_from(_records, number * RECORD.size)
    RECORD.pack_into(_records, number * RECORD.size, time.monotonic_ns(), process, times + 1)
    if process != _known:
        _known = process
        Path(os.environ[WORKERS], str(process)).touch()


def handle(item: Item) -> None:
    """Handle an item of this library."""
    do(item.value)


if HUEY in os.environ and find_spec("huey"):
    from huey import SqliteHuey

    huey = SqliteHuey(filename=os.environ[HUEY], fsync=True, timeout=60)
    huey_task = huey.task()(do)
