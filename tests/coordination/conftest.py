"""Processes that pop from one queue, which meet each other when the test says so."""

from __future__ import annotations

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import PriorityQueue, Queue
from fdbqueue.coordination import staged_pops
from tests.coordination.line import Line, Sleeps, only_the_test_ends_anything


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    """The sleeps of those who wait, which only a watch or the test ends."""
    only_the_test_ends_anything(monkeypatch)
    sleeps = Sleeps()
    monkeypatch.setattr(staged_pops, "sleep_on", sleeps)
    return sleeps


@pytest.fixture
def line(db: Any, queue: PriorityQueue, sleeps: Sleeps) -> Line[PriorityQueue]:
    """Those who pop from a priority queue."""
    return Line(db, queue, sleeps)


@pytest.fixture
def fifo_line(db: Any, space: Subspace, sleeps: Sleeps) -> Line[Queue]:
    """Those who take from a FIFO queue."""
    return Line(db, Queue(space["fifo"]), sleeps)
