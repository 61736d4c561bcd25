"""Times, delays and identities, which the body of a transaction takes as arguments.

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
from fdbqueue.layout.items import UUID_SIZE

__all__ = ["MAX_BACKOFF", "backoff", "milliseconds", "nanoseconds", "uuids"]


def nanoseconds() -> int:
    """Return the time since 1970 by this machine's clock.

    Raises:
        ClockOutOfRange: The clock is before 1970 or after 2262.

    Example:
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
    """Return new UUIDs. Call this outside of retry loops, so that retries use the same ones.

    Raises:
        ClockOutOfRange: The clock is before 1970 or after 2262.

    Example:
        >>> len(uuids(2)[0])
        16
    """
    now = nanoseconds()
    return list(map(_uuid7, repeat(now, count)))


def _uuid7(nanoseconds: int) -> bytes:
    # 12 bits contain the fraction of the millisecond, so that UUIDs sort by time.
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = (rest << 12) // 1_000_000
    number = milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62 | _random.getrandbits(62)
    return number.to_bytes(UUID_SIZE, "big")


# A program may seed the shared generator of `random`, or copy it by a fork. That must not lead to
# equal keys, so this generator is separate, and the system seeds it again in a forked child.
_random = Random()
os.register_at_fork(after_in_child=_random.seed)

MAX_BACKOFF = 2
"""The maximum milliseconds between a conflict and the next try of a transaction."""

_FIRST_DELAY, _MAX_DELAY = 1.0, 3600.0  # seconds after the first failure, and after many


def milliseconds() -> int:
    """Return the milliseconds since 1970, the unit of due times. Call this outside of retry loops.

    >>> milliseconds() > 1_700_000_000_000
    True
    """
    return nanoseconds() // 1_000_000


def backoff(failures: int) -> float:
    """Return the seconds before an item that failed this often becomes available again.

    >>> 0.5 <= backoff(1) <= 1, 1800 <= backoff(1000) <= 3600
    (True, True)
    """
    delay = min(_MAX_DELAY, _FIRST_DELAY * math.pow(2, min(failures, 100) - 1))
    return delay * random.uniform(0.5, 1)
