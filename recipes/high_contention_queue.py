"""The staging technique of FoundationDB's recipe for pops under high contention, on either engine.

A pop that does not succeed at once registers a request in a semi-ordered set, like that of items,
and enters a retry loop in which it fulfils all requests: who asked first gets the first item.

What the library adds: here a client that dies with a request loses an item, an unknown commit
result loses or doubles one, and everybody who waits tries to serve, where one would do.

Source: FoundationDB documentation, Design Recipes, "Priority Queues", Extensions.
"""

import os
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue


class HighContentionQueue:
    """A priority queue of bytes in a subspace, for many clients that pop."""

    def __init__(self, subspace: Subspace) -> None:
        self.items, self.requests, self.results = (subspace[n] for n in range(3))

    def push(self, tr: Any, value: bytes, priority: int) -> None:
        """Put a value behind those of its priority."""
        self._append(tr, self.items[priority], value)

    @fdbqueue.transactional
    def _append(self, tr: Any, ordered: Subspace, value: bytes) -> bytes:
        last = list(tr.snapshot.get_range_startswith(ordered.key(), limit=1, reverse=True))
        count = ordered.unpack(last[0].key)[0] + 1 if last else 0
        key: bytes = ordered.pack((count, os.urandom(20)))
        tr[key] = value
        return key

    def pop_min(self, db: Any) -> bytes | None:
        """Take the first value of the lowest priority; `None` if there is none."""
        request = None
        while True:
            tr = db.create_transaction()
            try:
                is_done, value = self._attempt(tr, request)
                tr.commit().wait()
                if is_done:
                    return value
            except Exception as error:
                tr.on_error(error).wait()  # a pause; other errors are raised
            request = request or self._append(db, self.requests, b"")

    def _attempt(self, tr: Any, request: bytes | None) -> tuple[bool, bytes | None]:
        if request and not tr[request].present():  # somebody fulfilled it
            return True, self._take_first(tr, self.results.pack((request,)))
        requests = list(tr.snapshot.get_range_startswith(self.requests.key(), limit=100))
        if not requests:
            return True, self._take_first(tr, self.items.key())
        items = list(tr.snapshot.get_range_startswith(self.items.key(), limit=len(requests)))
        for row in requests + items:  # only these keys conflict: no push, nobody who registers
            tr.add_read_conflict_key(row.key)
            del tr[row.key]
        for asked, item in zip(requests, items):  # the others get nothing
            tr[self.results.pack((asked.key,))] = item.value
        return False, None

    def _take_first(self, tr: Any, prefix: bytes) -> bytes | None:
        for key, value in tr.get_range_startswith(prefix, limit=1):
            del tr[key]
            return bytes(value)
        return None


if __name__ == "__main__":
    db = fdbqueue.open("memory:")
    queue = HighContentionQueue(Subspace(("jobs",)))
    for job, priority in [(b"e-mail", 5), (b"alarm", 1), (b"backup", 9), (b"log", 9)]:
        queue.push(db, job, priority)
    while (value := queue.pop_min(db)) is not None:
        print("pop:", value)
