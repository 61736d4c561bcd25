r"""Sets of keys as sorted, disjoint half-open ranges, and their encoding."""

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
    """A set of keys as ranges. Lookups bisect.

    >>> keys = RangeSet([(b"a", b"c"), (b"b", b"d")])
    >>> keys.remove(b"b", b"bb")
    >>> keys.within(b"", b"c"), keys.gaps(b"", b"c")
    ([(b'a', b'b'), (b'bb', b'c')], [(b'', b'a'), (b'b', b'bb')])
    >>> b"c" in keys
    True
    """

    __slots__ = ("_ends",)

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        # The begin and the end of each range in turn: a key is in the set if it follows an odd
        # number of them.
        self._ends: list[bytes] = []
        for begin, end in sorted(ranges):  # so that each is added behind the others
            self.add(begin, end)

    def __contains__(self, key: bytes) -> bool:
        return bisect_right(self._ends, key) % 2 == 1

    def add(self, begin: bytes, end: bytes) -> None:
        """Add a range."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._ends, end)
        self._ends[first:last] = [begin] * (first % 2 == 0) + [end] * (last % 2 == 0)

    def remove(self, begin: bytes, end: bytes) -> None:
        """Remove a range."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._ends, end)
        self._ends[first:last] = [begin] * (first % 2) + [end] * (last % 2)

    def within(self, begin: bytes, end: bytes) -> list[Range]:
        """Return the parts of a range in the set."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._ends, end)
        ends = [begin] * (first % 2) + self._ends[first:last] + [end] * (last % 2)
        return list(zip(ends[::2], ends[1::2]))

    def gaps(self, begin: bytes, end: bytes) -> list[Range]:
        """Return the other parts of a range."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._ends, end)
        ends = [begin] * (first % 2 == 0) + self._ends[first:last] + [end] * (last % 2 == 0)
        return list(zip(ends[::2], ends[1::2]))


def pack_ranges(ends: list[bytes]) -> bytes:
    r"""Encode the begins and ends of ranges; an empty end means a single key.

    >>> list(unpack_ranges(pack_ranges([b"k", b"", b"a", b"b"])))
    [(b'k', b'k\x00'), (b'a', b'b')]
    """
    head = struct.pack(f"<{len(ends) + 1}I", len(ends) // 2, *map(len, ends))
    return head + b"".join(ends)


def unpack_ranges(packed: bytes) -> Iterator[Range]:
    """Decode ranges."""
    (count,) = struct.unpack_from("<I", packed)
    sizes = struct.unpack_from(f"<{2 * count}I", packed, 4)
    at = 4 + 8 * count
    for begin_size, end_size in zip(sizes[::2], sizes[1::2]):
        begin = packed[at : at + begin_size]
        at += begin_size
        yield begin, packed[at : at + end_size] if end_size else key_after(begin)
        at += end_size
