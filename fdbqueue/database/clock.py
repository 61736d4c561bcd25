"""Times, delays and identities, which a transaction takes as arguments.

Call `uuids` and `milliseconds` outside of retry loops, so that retries use the same values.

Source: RFC 9562, section 5.7, for UUIDs of version 7.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from random import Random

from fdbqueue.errors import ClockOutOfRange
from fdbqueue.layout.values import UUID_SIZE

# The clocks of this machine, which `fdbqueue.testing.Clock` replaces.
time_ns: Callable[[], int] = time.time_ns
monotonic: Callable[[], float] = time.monotonic


def nanoseconds() -> int:
    """Return the time since 1970; raise `ClockOutOfRange` before 1970 or after 2262."""
    try:
        now = time_ns()
    except OverflowError:  # after 2262
        raise ClockOutOfRange from None
    if now < 0:
        raise ClockOutOfRange
    return now


def retry_delay(
    failures: int,
    uniform: Callable[[float, float], float] = random.uniform,
    *,
    first: float = 1.0,
    factor: float = 2.0,
    longest: float = 3600.0,
    jitter: float = 0.5,
) -> float:
    """Return the seconds before the next attempt of a job after some failures.

    The delay grows from `first` by `factor`, up to `longest`, less a random share of up to
    `jitter`.

    >>> retry_delay(1, max), retry_delay(1, min), retry_delay(1000, max)
    (1.0, 0.5, 3600.0)
    """
    # No float is as large as the power, if the number of failures is.
    return min(longest, first * factor ** min(failures - 1, 100)) * uniform(1 - jitter, 1)


def uuids(count: int) -> list[bytes]:
    """Return new UUIDs."""
    # 12 bits contain the fraction of the millisecond, so that UUIDs sort by time.
    milliseconds, rest = divmod(nanoseconds(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    time_and_version = milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62
    made: list[bytes] = []
    for _ in range(count):
        made.append((time_and_version | _random.getrandbits(62)).to_bytes(UUID_SIZE, "big"))
    return made


# A program may seed the shared generator of `random`, or copy it by a fork. That must not lead to
# equal keys, so this generator is separate, and the system seeds it again in a forked child.
_random = Random()
os.register_at_fork(after_in_child=_random.seed)


def milliseconds() -> int:
    """Return the milliseconds since 1970, the unit of due times."""
    return nanoseconds() // 1_000_000


class Since:
    """A moment, and the seconds since then, by the clock that has moved further.

    The monotonic clock stops while a machine sleeps.
    """

    def __init__(self) -> None:
        self._nanoseconds, self._monotonic = nanoseconds(), monotonic()

    def seconds(self) -> float:
        """Return the seconds since then."""
        by_date = abs(nanoseconds() - self._nanoseconds) / 1e9
        return max(by_date, monotonic() - self._monotonic)


_host = socket.gethostname()[:200]


def client_name() -> str:
    """Return the host and the process id."""
    return f"{_host}:{os.getpid()}"
