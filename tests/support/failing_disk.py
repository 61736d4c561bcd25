"""A disk whose syncs fail or hang, as the embedded engine of this process sees it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import pytest

EIO = OSError(errno.EIO, "Input/output error")


class Disk:
    """The disk as the engine sees it: its syncs can be counted, fail, or hang.

    Attributes:
        syncs: The number of syncs of a write-ahead log that have ended.
        failures: How many of the next ones fail; -1 for all.
        flows: Cleared while syncs hang.
        hanging: Released by each sync that hangs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.failures = 0
        self.flows = threading.Event()
        self.flows.set()
        self.hanging = threading.Semaphore(0)
        monkeypatch.setattr("fdbqueue.embedded.storage.sync._data_sync", self.data_sync)

    def data_sync(self, descriptor: int) -> None:
        if not self.flows.is_set():
            self.hanging.release()
            assert self.flows.wait(60)
        if self.failures:
            self.failures -= 1
            raise EIO
        os.fdatasync(descriptor)
        self.syncs += 1

    def breaks(self) -> None:
        self.failures = -1

    def is_repaired(self) -> None:
        self.failures = 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Return the disk of the embedded engine in this process, whose syncs can fail or hang."""
    disk = Disk(monkeypatch)
    yield disk
    disk.is_repaired()
    disk.flows.set()
