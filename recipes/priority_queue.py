"""The priority queue of FoundationDB's design recipes, on either engine.

Keys are (priority, count, random) in a subspace. The lowest priority is the first key and the
highest the last one, so both ends are a range read with a limit of one. `count` orders the items of
one priority; it comes from a snapshot read, so that two pushes never conflict, and `random` keeps
their keys apart if they drew the same count.

What the library adds: counters, exactly one effect after an unknown commit result, first in first
out at the high end too, codecs, large payloads.

Source: FoundationDB documentation, Design Recipes, "Priority Queues".
"""

import os
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import transactional


class PriorityQueue:
    """A priority queue of bytes in a subspace."""

    def __init__(self, subspace: Subspace) -> None:
        self.subspace = subspace

    @transactional
    def push(self, tr: Any, value: bytes, priority: int) -> None:
        """Put a value behind those of its priority."""
        count = self._next_count(tr, priority)
        tr[self.subspace.pack((priority, count, os.urandom(20)))] = value

    def _next_count(self, tr: Any, priority: int) -> int:
        level = self.subspace[priority]
        items = level.range()
        for key, _ in tr.snapshot.get_range(items.start, items.stop, limit=1, reverse=True):
            return int(level.unpack(key)[0]) + 1
        return 0

    @transactional
    def pop_min(self, tr: Any) -> bytes | None:
        """Take the first value of the lowest priority; `None` if there is none."""
        return self._take(tr, reverse=False)

    @transactional
    def pop_max(self, tr: Any) -> bytes | None:
        """Take the last value of the highest priority; `None` if there is none."""
        return self._take(tr, reverse=True)

    @transactional
    def peek_min(self, tr: Any) -> bytes | None:
        """The value that `pop_min` would take."""
        return next((value for _, value in self._end(tr, reverse=False)), None)

    @transactional
    def peek_max(self, tr: Any) -> bytes | None:
        """The value that `pop_max` would take."""
        return next((value for _, value in self._end(tr, reverse=True)), None)

    def _take(self, tr: Any, reverse: bool) -> bytes | None:
        for key, value in self._end(tr, reverse):
            del tr[key]
            taken: bytes = value
            return taken
        return None

    def _end(self, tr: Any, reverse: bool) -> Any:
        whole = self.subspace.range()
        return tr.get_range(whole.start, whole.stop, limit=1, reverse=reverse)


def main() -> None:
    db = fdbqueue.open("memory:")
    queue = PriorityQueue(Subspace(("jobs",)))
    for value, priority in [(b"e-mail", 5), (b"alarm", 1), (b"backup", 9), (b"second alarm", 1)]:
        queue.push(db, value, priority)
    print("last:", queue.peek_max(db))
    while (first := queue.pop_min(db)) is not None:
        print("pop:", first)


if __name__ == "__main__":
    main()
