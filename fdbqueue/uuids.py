"""What makes keys unique: UUIDs of version 7, which hold when they were made.

Source: RFC 9562, section 5.7.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from random import Random

from fdbqueue.errors import ClockOutOfRange

__all__ = ["nanoseconds", "time_of", "uuids"]

_SIZE = 16  # bytes


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
    return [_uuid7(now) for _ in range(count)]


def time_of(uuid: bytes) -> datetime | None:
    """When one was made, by the clock of who did; `None` for other bytes.

    >>> time_of(uuids(1)[0]).tzname(), time_of(b"others")
    ('UTC', None)
    """
    if len(uuid) != _SIZE or uuid[6] >> 4 != 7 or uuid[8] >> 6 != 2:
        return None
    return datetime.fromtimestamp(int.from_bytes(uuid[:6], "big") / 1000, timezone.utc)


def _uuid7(nanoseconds: int) -> bytes:
    # With 12 bits of a fraction of the millisecond, so that they stand in the order of time.
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = (rest << 12) // 1_000_000
    number = milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62 | _random.getrandbits(62)
    return number.to_bytes(_SIZE, "big")


# A generator of its own, seeded by the system, in a forked child anew: what a program does to the
# shared one of `random` must not make two keys equal.
_random = Random()
os.register_at_fork(after_in_child=_random.seed)
