"""The fixtures of `tests/coordination`."""

from tests.coordination.conftest import fifo_line, line, sleeps, staging_on_every_engine

__all__ = ["fifo_line", "line", "sleeps", "staging_on_every_engine"]
