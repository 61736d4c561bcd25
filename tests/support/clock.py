"""The clocks of this process, as queues read them."""

from __future__ import annotations

import time

import pytest

from fdbqueue.coordination import claims, sweeper
from fdbqueue.database import clock


class Clock:
    """Lets time pass for the queues of this process without waiting.

    Delays and times to live end by the moved clock, and a handle sweeps again. Leases end by the
    versions of the database, which this does not move: see `lapse` and `let_versions_pass`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        monkeypatch.setattr(clock, "time", self)
        for module in (claims, sweeper):
            monkeypatch.setattr(module, "time", self)

    def move(self, seconds: float) -> None:
        """Let this number of seconds pass."""
        self._ahead += seconds

    def time_ns(self) -> int:
        """Return the time since 1970; a replacement of `time.time_ns`."""
        return time.time_ns() + int(self._ahead * 10**9)

    def monotonic(self) -> float:
        """Return the time of the monotonic clock; a replacement of `time.monotonic`."""
        return time.monotonic() + self._ahead
