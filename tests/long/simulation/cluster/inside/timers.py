"""Timers in simulated time."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.long.simulation.cluster.inside import greenlets


class Timer:
    """Calls a function after some simulated time, by the hub.

    The interface of external workloads has no delay. A transaction that never commits has one: the
    future of its versionstamp fails when its timeout is over. That asks nothing of the cluster.

    Args:
        seconds: The time, which is rounded up to milliseconds.
        function: What to call.
    """

    def __init__(self, seconds: float, function: Callable[[], object]) -> None:
        thread = greenlets.current()
        assert thread is not None, "the hub has no timers"
        self._function: Callable[[], object] | None = function
        self._transaction = thread.process.db.create_transaction()
        self._transaction.options.set_timeout(max(1, math.ceil(seconds * 1000)))
        self._end = self._transaction.get_versionstamp()
        self._end.on_ready(self._call)

    def _call(self, _: object) -> None:
        function, self._function = self._function, None
        if function is not None:
            function()

    def cancel(self) -> None:
        """Call nothing."""
        self._function = None
        self._transaction.cancel()
