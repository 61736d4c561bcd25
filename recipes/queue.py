"""The FIFO queue of FoundationDB's design recipes, on either engine.

Keys are (index, random) in a subspace. The oldest item is the first key. `index` is one more than
the last one, by a snapshot read, so that two enqueues never conflict; `random` keeps their keys
apart if they drew the same index.

Source: FoundationDB documentation, Design Recipes, "Queues".
"""

import os
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import transactional


class Queue:
    """A FIFO queue of bytes in a subspace."""

    def __init__(self, subspace: Subspace) -> None:
        self.subspace = subspace

    @transactional
    def enqueue(self, tr: Any, value: bytes) -> None:
        """Put a value at the end."""
        tr[self.subspace.pack((self._last_index(tr) + 1, os.urandom(20)))] = value

    def _last_index(self, tr: Any) -> int:
        items = self.subspace.range()
        for key, _ in tr.snapshot.get_range(items.start, items.stop, limit=1, reverse=True):
            index: int = self.subspace.unpack(key)[0]
            return index
        return 0

    @transactional
    def dequeue(self, tr: Any) -> bytes | None:
        """Take the oldest value; `None` if there is none."""
        for key, value in self._first(tr):
            del tr[key]
            taken: bytes = value
            return taken
        return None

    @transactional
    def peek(self, tr: Any) -> bytes | None:
        """The value that `dequeue` would take."""
        return next((value for _, value in self._first(tr)), None)

    def _first(self, tr: Any) -> Any:
        items = self.subspace.range()
        return tr.get_range(items.start, items.stop, limit=1)


def main() -> None:
    db = fdbqueue.open("memory:")
    queue = Queue(Subspace(("mail",)))
    for value in (b"first", b"second", b"third"):
        queue.enqueue(db, value)
    print("next:", queue.peek(db))
    while (first := queue.dequeue(db)) is not None:
        print("dequeue:", first)


if __name__ == "__main__":
    main()
