"""Processes that contend for one queue at moments the test chooses."""

from tests.coordination.contention import fifo_line, line, sleeps, staging_on_every_engine

__all__ = ["fifo_line", "line", "sleeps", "staging_on_every_engine"]
