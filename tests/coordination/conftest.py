"""Fixtures that make processes contend for one queue at moments the test chooses."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.coordination import pops
from fdbqueue.database.binding import engine_of
from tests.coordination.line import Line, Sleeps, disable_timeouts


@pytest.fixture
def staging_on_every_engine(monkeypatch: pytest.MonkeyPatch, db: Any) -> None:
    """Let pops be staged on the embedded engine, too, which has no need of it."""
    engine = engine_of(db)._replace(is_remote=True)
    monkeypatch.setattr(db, "engine", engine, raising=False)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    """Replace the sleeps of waiting processes; only a watch or the test ends them."""
    disable_timeouts(monkeypatch)
    sleeps = Sleeps()
    monkeypatch.setattr(pops, "sleep_on", sleeps)
    return sleeps


@pytest.fixture
def line(db: Any, queue: PriorityQueue, sleeps: Sleeps) -> Line:
    """Return processes that pop from one priority queue."""
    return Line(db, queue, sleeps)
