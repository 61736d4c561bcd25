"""Processes that contend for one queue at moments the test chooses."""

from tests.coordination.contention import line, sleeps, staging_on_every_engine

__all__ = ["line", "sleeps", "staging_on_every_engine"]
