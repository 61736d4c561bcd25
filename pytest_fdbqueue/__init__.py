"""Fixtures for pytest, which finds them by itself.

A package of its own, because pytest imports it at every start: only a test that uses one of the
fixtures loads fdbqueue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:
    from fdbqueue import App, Database
    from fdbqueue.testing import Clock

BindApp: TypeAlias = "Callable[[App], App]"
"""The type of the fixture `bound_app`."""


@pytest.fixture
def fdbqueue_db() -> Iterator[Database]:
    """A new database in memory. Override this fixture to use another one."""
    import fdbqueue

    with fdbqueue.open("memory:") as db:
        yield db


@pytest.fixture
def fdbqueue_clock() -> Iterator[Clock]:
    """The clock of the queues of this process, which the test moves; see `fdbqueue.testing`."""
    from fdbqueue.testing import Clock

    with Clock() as clock:
        yield clock


@pytest.fixture
def bound_app(fdbqueue_db: Database) -> Iterator[BindApp]:
    """A function that binds an app to `fdbqueue_db` until the end of the test, and returns it."""
    from fdbqueue import testing

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(testing.bound_app(app, fdbqueue_db))
