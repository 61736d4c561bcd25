"""Helpers for tests: a clock that the test moves, jobs that run in the test, and what was pushed.

    with bound_app(shop.app), Clock() as clock:
        shop.order("ada@example.com")
        assert_pushed(shop.send, to="ada@example.com")
        assert drain(shop.app).outcomes() == ["failed"]
        clock.advance("1h")
        assert drain(shop.app).outcomes() == ["done"]

pytest has the fixtures `fdbqueue_db`, `fdbqueue_clock` and `bound_app`.
"""

from fdbqueue.testing.clock import Clock
from fdbqueue.testing.drain import Attempt, Drained, DrainLimit, bound_app, drain
from fdbqueue.testing.faults import FaultyDatabase, FaultyTransaction
from fdbqueue.testing.pushed import Pushed, assert_pushed, pushed, refute_pushed

__all__ = [
    "Attempt",
    "Clock",
    "DrainLimit",
    "Drained",
    "FaultyDatabase",
    "FaultyTransaction",
    "Pushed",
    "assert_pushed",
    "bound_app",
    "drain",
    "pushed",
    "refute_pushed",
]
