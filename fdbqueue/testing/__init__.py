"""Helpers for tests: a clock that the test moves, jobs that run in the test, and what was pushed.

    with bound_app(shop.app):
        shop.order("ada@example.com")
        assert_pushed(shop.send, to="ada@example.com")
        assert drain(shop.app).outcomes() == ["done"]

`FoundationDBContainer` is a cluster in Docker. pytest has the fixtures `fdbqueue_db`,
`fdbqueue_clock` and `bound_app`.
"""

from typing import TYPE_CHECKING, Any

from fdbqueue.testing.clock import Clock
from fdbqueue.testing.drain import Attempt, Drained, DrainLimit, bound_app, drain
from fdbqueue.testing.faults import FaultyDatabase, FaultyTransaction
from fdbqueue.testing.pushed import Pushed, assert_pushed, pushed, refute_pushed

if TYPE_CHECKING:
    from fdbqueue.testing.container import FoundationDBContainer

__all__ = [
    "Attempt",
    "Clock",
    "DrainLimit",
    "Drained",
    "FaultyDatabase",
    "FaultyTransaction",
    "FoundationDBContainer",
    "Pushed",
    "assert_pushed",
    "bound_app",
    "drain",
    "pushed",
    "refute_pushed",
]


def __getattr__(name: str) -> Any:
    if name == "FoundationDBContainer":  # most tests do without testcontainers
        from fdbqueue.testing.container import FoundationDBContainer

        return FoundationDBContainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
