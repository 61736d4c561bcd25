"""The time, chance and new identities: what a transaction's body takes as arguments.

Source: RFC 9562, section 5.7, for UUIDs of version 7.
"""

from __future__ import annotations

import math
import os
import random
import time
from itertools import repeat
from random import Random

from fdbqueue.errors import ClockOutOfRange
from fdbqueue.layout.ids import UUID_SIZE

__all__ = ["MAX_BACKOFF", "backoff", "milliseconds", "nanoseconds", "uuids"]


def nanoseconds() -> int:
    """Return the time since 1970 by this machine's clock; raise `ClockOutOfRange`.

    >>> nanoseconds() > 1_700_000_000 * 10**9
    True
    """
    try:
        now = time.time_ns()
    except OverflowError:  # after 2262
        raise ClockOutOfRange from None
    if now < 0:
        raise ClockOutOfRange
    return now


def uuids(count: int) -> list[bytes]:
    """Return new ones; make them once, outside of any retry loop. Raise `ClockOutOfRange`.

    >>> len(uuids(2)[0])
    16
    """
    now = nanoseconds()
    return list(map(_uuid7, repeat(now, count)))


def _uuid7(nanoseconds: int) -> bytes:
    # With 12 bits of a fraction of the millisecond, so that they stand in the order of time.
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = (rest << 12) // 1_000_000
    number = milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62 | _random.getrandbits(62)
    return number.to_bytes(UUID_SIZE, "big")


# A generator of its own, seeded by the system, in a forked child anew: what a program does to the
# shared one of `random` must not make two keys equal.
_random = Random()
os.register_at_fork(after_in_child=_random.seed)
MAX_BACKOFF = 2
"""Milliseconds from a conflict with other clients to the next attempt of the transaction."""

_FIRST_DELAY, _MAX_DELAY = 1.0, 3600.0  # seconds, after the first failure, and after many


def milliseconds() -> int:
    """Now, as delayed items are due; to be read outside of any retry loop.

    >>> milliseconds() > 1_700_000_000_000
    True
    """
    return nanoseconds() // 1_000_000


def backoff(attempt: int) -> float:
    """Return the seconds to wait before the next attempt, after this many failed ones.

    >>> 0.5 <= backoff(1) <= 1, 1800 <= backoff(1000) <= 3600
    (True, True)
    """
    longest = min(_MAX_DELAY, _FIRST_DELAY * math.pow(2, min(attempt, 100) - 1))
    return longest * random.uniform(0.5, 1)
