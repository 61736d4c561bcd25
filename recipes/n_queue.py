"""N levels of priority, first in first out in each, and a map of how many items each level has.

Level 0 is the most urgent; levels need not be made, and may be sparse: 0, 5, 1000. Each item is a
key (level, count, random), where count is one more than that of the level's last item, by a
snapshot read: so pushes do not conflict. Counts are changed by atomic operations, which conflict
with nothing either, and a count of zero has no key: the map is one short range read.

A pop takes the first key of all, which is the oldest item of the lowest level that has one: it does
not look at the counts at all, and a level whose count is wrong costs nothing.

    python -m recipes.n_queue
"""

from __future__ import annotations

import os
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue

ONE, MINUS_ONE = (1).to_bytes(8, "little"), (-1).to_bytes(8, "little", signed=True)


class NQueue:
    """A queue with levels, in a subspace; values are bytes."""

    def __init__(self, subspace: Subspace) -> None:
        self._items = subspace["items"]
        self._counts = subspace["counts"]

    @fdbqueue.transactional
    def push(self, tr: Any, value: bytes, level: int = 0) -> None:
        """Put a value behind the last one of its level."""
        if isinstance(level, bool) or not isinstance(level, int) or level < 0:
            raise ValueError(f"a level is an integer from 0, not {level!r}")
        whole = self._items[level].range()
        count = 0
        for last in tr.snapshot.get_range(whole.start, whole.stop, limit=1, reverse=True):
            count = self._items[level].unpack(last.key)[0] + 1
        tr[self._items.pack((level, count, os.urandom(16)))] = value
        tr.add(self._counts.pack((level,)), ONE)

    @fdbqueue.transactional
    def pop(self, tr: Any, depth: int = 1) -> list[tuple[int, bytes]]:
        """Take the first items, at most `depth`: the lowest level first, then the next."""
        whole = self._items.range()
        taken = []
        for row in tr.get_range(whole.start, whole.stop, limit=depth) if depth > 0 else ():
            level = self._items.unpack(row.key)[0]
            del tr[row.key]
            tr.add(self._counts.pack((level,)), MINUS_ONE)
            tr.compare_and_clear(self._counts.pack((level,)), bytes(8))
            taken.append((level, row.value))
        return taken

    @fdbqueue.transactional
    def counts(self, tr: Any) -> dict[int, int]:
        """How many items each level has."""
        whole = self._counts.range()
        return {
            self._counts.unpack(row.key)[0]: int.from_bytes(row.value, "little")
            for row in tr.snapshot.get_range(whole.start, whole.stop)
        }


if __name__ == "__main__":
    db = fdbqueue.open("memory:")
    jobs = NQueue(Subspace(("jobs",)))
    for value, level in [(b"urgent", 0), (b"some day", 1000), (b"normal", 5), (b"urgent too", 0)]:
        jobs.push(db, value, level)
    print("counts:", jobs.counts(db))
    print("two:", jobs.pop(db, 2))
    print("all that is left:", jobs.pop(db, 10))
    print("counts:", jobs.counts(db))
