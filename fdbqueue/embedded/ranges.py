r"""Sets of keys as sorted, disjoint half-open ranges, and their encoding as bytes.

A range is `(begin, end)`; a single key `k` is `(k, k + b"\x00")`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Range: TypeAlias = tuple[bytes, bytes]


def key_after(key: bytes) -> bytes:
    """Return the first key after this one."""
    return key + b"\0"


class RangeSet:
    """A set of keys, stored as ranges. Lookups bisect.

    >>> keys = RangeSet([(b"a", b"c"), (b"b", b"d")])
    >>> keys.remove(b"b", b"bb")
    >>> list(keys)
    [(b'a', b'b'), (b'bb', b'd')]
    >>> b"c" in keys, keys.overlaps(b"d", b"e")
    (True, False)
    """

    __slots__ = ("_begins", "_ends")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []
        for begin, end in sorted(ranges):
            # In sorted order, a range can only touch the last one.
            if self._ends and begin <= self._ends[-1]:
                if end > self._ends[-1]:
                    self._ends[-1] = end
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def __bool__(self) -> bool:
        return bool(self._begins)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._begins, self._ends)))

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self._begins, key) - 1
        return at >= 0 and key < self._ends[at]

    def add(self, begin: bytes, end: bytes) -> None:
        """Add a range and merge it with all ranges that it touches."""
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: bytes, end: bytes) -> None:
        """Remove a range. The rest of a range that it cuts stays."""
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        if first >= last:
            return
        left = [(self._begins[first], begin)] if self._begins[first] < begin else []
        right = [(end, self._ends[last - 1])] if end < self._ends[last - 1] else []
        self._begins[first:last] = [b for b, _ in left + right]
        self._ends[first:last] = [e for _, e in left + right]

    def overlaps(self, begin: bytes, end: bytes) -> bool:
        """Return whether the set has a key of the range."""
        at = bisect_right(self._ends, begin)
        return at < len(self._begins) and self._begins[at] < end

    def within(self, begin: bytes, end: bytes) -> list[Range]:
        """Return the parts of the set within the range, in order."""
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        return [
            (max(begin, self._begins[at]), min(end, self._ends[at])) for at in range(first, last)
        ]


def pack_ranges(ends: list[bytes]) -> bytes:
    r"""Encode ranges as bytes: the begin and the end of each range in turn.

    An empty end means a single key, since no range ends at the empty key.

    >>> list(unpack_ranges(pack_ranges([b"k", b"", b"a", b"b"])))
    [(b'k', b'k\x00'), (b'a', b'b')]
    """
    head = struct.pack(f"<{len(ends) + 1}I", len(ends) // 2, *map(len, ends))
    return head + b"".join(ends)


def is_packed(packed: bytes) -> bool:
    """Return whether the sizes in these bytes are those of `pack_ranges`.

    >>> is_packed(pack_ranges([b"k", b""])), is_packed(b"something else")
    (True, False)
    """
    (count,) = struct.unpack_from("<I", packed)
    head = 4 + 8 * count
    if head > len(packed):
        return False
    size: int = head + sum(struct.unpack_from(f"<{2 * count}I", packed, 4))
    return size == len(packed)


def unpack_ranges(packed: bytes, at: int = 0) -> Iterator[Range]:
    """Decode the ranges that `pack_ranges` encoded, and that begin at an offset."""
    (count,) = struct.unpack_from("<I", packed, at)
    sizes = struct.unpack_from(f"<{2 * count}I", packed, at + 4)
    at += 4 + 8 * count
    for begin_size, end_size in zip(sizes[::2], sizes[1::2]):
        begin = packed[at : at + begin_size]
        at += begin_size
        yield begin, packed[at : at + end_size] if end_size else key_after(begin)
        at += end_size
