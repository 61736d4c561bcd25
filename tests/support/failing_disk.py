"""A disk whose syncs fail or hang, as the embedded engine of this process sees it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from fdbqueue.embedded.disk import generations

EIO = OSError(errno.EIO, "Input/output error")


class Disk:
    """The disk as the engine sees it: its syncs can be counted, fail, or hang.

    Attributes:
        syncs: The number of syncs of a write-ahead log that have ended.
        failures: How many of the next ones fail; -1 for all.
        is_broken: Whether the syncs of new files fail, too.
        flows: Cleared while syncs hang.
        hanging: Released by each sync that hangs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.failures = 0
        self.is_broken = False
        self.flows = threading.Event()
        self.flows.set()
        self.hanging = threading.Semaphore(0)
        self._sync_file = generations.sync_path
        monkeypatch.setattr("fdbqueue.embedded.disk.sync._data_sync", self.data_sync)
        monkeypatch.setattr(generations, "sync_path", self.sync_file)

    def data_sync(self, descriptor: int) -> None:
        if not self.flows.is_set():
            self.hanging.release()
            assert self.flows.wait(60)
        if self.failures:
            self.failures -= 1
            raise EIO
        os.fdatasync(descriptor)
        self.syncs += 1

    def sync_file(self, path: Path) -> None:
        if self.is_broken and path.is_file():
            raise EIO
        self._sync_file(path)

    def breaks(self) -> None:
        self.failures, self.is_broken = -1, True

    def is_repaired(self) -> None:
        self.failures, self.is_broken = 0, False
