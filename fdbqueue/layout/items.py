"""Items as they are stored, their levels, and the time of creation in their keys.

Source: RFC 9562, section 5.7, for UUIDs of version 7.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from fdbqueue.layout.values import HEADER_MARK, NO_HEADER, Header, header_of, utc_time
from fdbqueue.types import Priority

__all__ = ["UUID_SIZE", "Level", "StoredItem", "time_of"]

UUID_SIZE = 16  # bytes


class Level(NamedTuple):
    """The items of one priority. A FIFO queue has one level.

    Attributes:
        prefix: The prefix of the keys of its items.
        begin: The first key that an item of the level may have.
        end: The key behind the last one.
        counter: The key of its counter, or `None`.
        counts_taken: Whether its counter also counts the items popped and claimed.
        priority: The priority; `None` in a FIFO queue.
    """

    prefix: bytes
    begin: bytes
    end: bytes
    counter: bytes | None
    counts_taken: bool
    priority: Priority | None


class StoredItem:
    """An item as it is stored while it is ready.

    Attributes:
        key: Its key. The other states keep only the position in it.
        value: Its value.
        level: Its level.
        header: The header of its value.
        content: The rest of its value: the payload, or a reference to the payload's pieces.
    """

    __slots__ = ("content", "header", "key", "level", "value")

    header: Header

    def __init__(self, key: bytes, value: bytes, level: Level) -> None:
        self.key = key
        self.value = value
        self.level = level
        if value.startswith(HEADER_MARK):
            self.header, self.content = header_of(value)
        else:
            self.header, self.content = NO_HEADER, value


def time_of(uuid: bytes) -> datetime | None:
    """Return when a UUID was created, by its creator's clock; `None` for other bytes.

    >>> time_of(bytes([0] * 6 + [0x70, 0, 0x80] + [0] * 7)).year, time_of(b"not a UUID")
    (1970, None)
    """
    if len(uuid) != UUID_SIZE or uuid[6] >> 4 != 7 or uuid[8] >> 6 != 2:
        return None
    return utc_time(int.from_bytes(uuid[:6], "big"))
