"""Whether clients of this process sleep until there are items."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fdbqueue.coordination import event_loop, sans_io, waiting


class Asleep(threading.Event):
    """An event that is set once a client sleeps, in a thread or in a coroutine.

    Attributes:
        count: How often a client began to sleep so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        self._guard = threading.Lock()
        self._replace(monkeypatch, sans_io, "sleep_on")
        self._replace(monkeypatch, event_loop, "_sleep")

    def _replace(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        begin = getattr(module, name)

        def note_and_begin(*arguments: Any) -> Any:
            with self._guard:
                self.count += 1
            self.set()
            return begin(*arguments)

        monkeypatch.setattr(module, name, note_and_begin)


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Asleep:
    """Let clients sleep until they are woken; return an event that is set once one sleeps."""
    monkeypatch.setattr(waiting, "MAX_SLEEP", 600.0)
    return Asleep(monkeypatch)
