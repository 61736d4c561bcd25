"""Unique parts of keys: UUIDs of version 7, which contain the time of their creation.

Source: RFC 9562, section 5.7.
"""

from __future__ import annotations

from datetime import datetime, timezone

__all__ = ["UUID_SIZE", "time_of"]

UUID_SIZE = 16  # bytes


def time_of(uuid: bytes) -> datetime | None:
    """Return when a UUID was created, by its creator's clock; `None` for other bytes.

    >>> time_of(bytes([0] * 6 + [0x70, 0, 0x80] + [0] * 7)).year, time_of(b"not a UUID")
    (1970, None)
    """
    if len(uuid) != UUID_SIZE or uuid[6] >> 4 != 7 or uuid[8] >> 6 != 2:
        return None
    return datetime.fromtimestamp(int.from_bytes(uuid[:6], "big") / 1000, timezone.utc)
