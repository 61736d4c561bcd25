"""Read-your-writes: the effect of a transaction's own writes on its reads.

Reads of keys that the transaction set or cleared cannot conflict; reads of keys changed by an
atomic operation can.

Source: FoundationDB, Developer Guide, "Reading your writes" and "Conflict ranges";
`fdbclient/ReadYourWrites.actor.cpp`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import itemgetter
from typing import TypeAlias

from fdbqueue.embedded.mutations import ATOMICS, CLEAR_RANGE, SET, STAMPED_KEY, STAMPED_VALUE
from fdbqueue.embedded.ranges import Range, RangeSet, key_after
from fdbqueue.errors import FDBError

Rows: TypeAlias = list[tuple[bytes, bytes]]
SeenRow: TypeAlias = tuple[bytes, bytes | None]
"""A key and its value, or `None` after an own `compare_and_clear`."""


def stamped_key_range(key: bytes, read_version: int) -> Range:
    """Return the range of keys that a versionstamped key may become."""
    template, at = key[:-4], int.from_bytes(key[-4:], "little", signed=True)
    low = template[:at] + read_version.to_bytes(8, "big") + b"\0\0" + template[at + 10 :]
    high = template[:at] + b"\xff" * 10 + template[at + 10 :]
    return low, key_after(high)


class WriteMap:
    """The writes of one transaction, by key and range."""

    def __init__(self) -> None:
        self._operations: dict[bytes, list[tuple[int, bytes]]] = {}
        self._keys: list[bytes] = []  # of the operations, sorted
        self.known = RangeSet()
        """The keys set or cleared: reads of them do not depend on the database."""
        self._unreadable = RangeSet()
        """The keys that only the commit determines."""

    def add(self, kind: int, key: bytes, param: bytes, read_version: int) -> None:
        """Add the next write."""
        if kind == CLEAR_RANGE:
            self._forget(key, param)
            self._unreadable.remove(key, param)
            self.known.add(key, param)
        elif kind == STAMPED_KEY:
            # The final key is unknown, so earlier writes in the range are hidden as well.
            begin, end = stamped_key_range(key, read_version)
            self._forget(begin, end)
            self.known.remove(begin, end)
            self._unreadable.add(begin, end)
        else:
            if key not in self._operations:
                insort(self._keys, key)
            if kind in (SET, STAMPED_VALUE):
                self.known.add(key, key_after(key))
                self._operations[key] = [(SET, param)]
            else:
                self._operations.setdefault(key, []).append((kind, param))
            if kind == STAMPED_VALUE:
                self._unreadable.add(key, key_after(key))

    def _forget(self, begin: bytes, end: bytes) -> None:
        first, last = bisect_left(self._keys, begin), bisect_left(self._keys, end)
        for key in self._keys[first:last]:
            del self._operations[key]
        del self._keys[first:last]

    def get(self, key: bytes, value: bytes | None) -> bytes | None:
        """Return what a read of `key` sees, given its stored value (`None` if `known`)."""
        if key in self._unreadable:
            raise FDBError(1036)
        for kind, param in self._operations.get(key, ()):
            value = ATOMICS[kind](value, param)
        return value

    def readable(self, begin: bytes, end: bytes, reverse: bool) -> Range:
        """Return the part of a range before the first unreadable key."""
        parts = self._unreadable.within(begin, end)
        if not parts:
            return begin, end
        return (parts[-1][1], end) if reverse else (begin, parts[0][0])

    def merge(self, rows: Rows, begin: bytes, end: bytes, reverse: bool) -> Iterable[SeenRow]:
        """Return a readable range's stored rows with own writes."""
        stored = {key: value for key, value in rows if key not in self.known}
        keys = self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]
        if reverse:
            keys.reverse()
        own = ((key, self.get(key, stored.get(key))) for key in keys)
        others = (row for row in stored.items() if row[0] not in self._operations)
        return heapq.merge(others, own, key=itemgetter(0), reverse=reverse)
