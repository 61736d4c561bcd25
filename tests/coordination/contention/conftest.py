"""Fixtures that make processes of one host share transactions at moments the test chooses."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import embedded
from fdbqueue.coordination.contention import following, leading, sharing, sockets
from tests.coordination.contention.processes import FOREVER, Process


@pytest.fixture(autouse=True)
def sockets_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the directory of the sockets, which does not exist yet."""
    with tempfile.TemporaryDirectory() as directory:  # the path of a socket must be short
        own = SimpleNamespace(gettempdir=lambda: directory)
        monkeypatch.setattr(sockets, "tempfile", own)
        yield Path(directory) / f"fdbqueue-{os.getuid()}"


@pytest.fixture(autouse=True)
def always_contended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes share from their first call on, and a leader lead until it dies."""
    monkeypatch.setattr(sharing, "IS_AVAILABLE", True)
    monkeypatch.setattr(embedded.Database, "conflicts_are_cheap", True)
    monkeypatch.setattr(sharing.Host, "is_contended", lambda *_: True)
    monkeypatch.setattr(leading, "_TURN", FOREVER)
    monkeypatch.setattr(leading, "IDLE_CHECK", FOREVER)
    monkeypatch.setattr(following, "_DEADLINE", FOREVER)


@pytest.fixture
def new_process(db: Any, shared_url: str, space: Subspace) -> Iterator[Callable[..., Process]]:
    """Return a function that begins what counts as another process of this host."""
    with ExitStack() as stack:

        def begin(wrap: Callable[[Any], Any] = lambda db: db, **options: Any) -> Process:
            if shared_url.startswith("embedded:"):
                own: Any = fdbqueue.open(shared_url)
                stack.callback(own.close)
            else:
                import fdb.impl  # needs the C library

                own = fdb.impl.create_database(shared_url)
            process = Process(wrap(own), fdbqueue.PriorityQueue(space["queue"], **options))
            stack.callback(process.end)
            return process

        yield begin


@pytest.fixture
def leader(new_process: Callable[..., Process]) -> Process:
    """Return a process that leads, after it has pushed the numbers from 0 to 9."""
    process = new_process()
    for number in range(10):
        process.push(number)
    assert process.leads
    return process


@pytest.fixture
def follower(new_process: Callable[..., Process], leader: Process) -> Process:
    """Return another process. Its requests wait until the leader does something."""
    return new_process()
