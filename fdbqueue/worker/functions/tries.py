"""How often, and for how long, a function of the program runs in one transaction."""

from __future__ import annotations

import math
import time

from fdbqueue.errors import HandlerTooSlow

TRANSACTION = 5.0
"""Seconds that a transaction lives."""


class Tries:
    """The tries of a part of the body of one transaction.

    Attributes:
        tried: When the current one began, by the performance counter; infinite if there is none.
        seconds: How long the last one took.

    >>> tries = Tries()
    >>> tries.begin_try()
    >>> tries.end_try()
    >>> tries.tried, tries.seconds < 60
    (inf, True)
    """

    tried = math.inf
    seconds = 0.0

    @property
    def is_retry(self) -> bool:
        """True once a try has ended."""
        return self.seconds > 0

    def begin_try(self) -> None:
        """Note that a try begins.

        Raises:
            HandlerTooSlow: The one before was too slow.
        """
        if self.seconds > TRANSACTION:
            raise HandlerTooSlow(self.seconds)
        self.tried = time.perf_counter()

    def end_try(self) -> None:
        """Note that a try has ended."""
        self.seconds, self.tried = time.perf_counter() - self.tried, math.inf
