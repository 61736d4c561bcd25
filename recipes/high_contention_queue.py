"""The staging technique of FoundationDB's recipe for pops under high contention, on either engine.

Items are those of the plain priority queue. A pop that meets another one does not fight on for the
first item: it registers a request, without a conflict, in a semi-ordered set like that of the
items. Then it tries, again and again, to serve everybody: one transaction pairs the first requests
with the first items and moves each item to where its requester looks for it. Whoever is first
serves the others too, so that their failed attempts were not for nothing.

What the library is to add: a client that dies with a request or a result loses its item here, an
unknown commit result loses or doubles one, and everybody who waits tries to serve.

Source: FoundationDB documentation, Design Recipes, "Priority Queues", Extensions.
"""

import os
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import transactional

CONFLICT = 1020
AT_ONCE = 100  # requests that one transaction serves


class HighContentionQueue:
    """A priority queue of bytes in a subspace, for many clients that pop."""

    def __init__(self, subspace: Subspace) -> None:
        self.items, self.requests, self.results = (subspace[n] for n in range(3))

    @transactional
    def push(self, tr: Any, value: bytes, priority: int) -> None:
        """Put a value behind those of its priority."""
        level = self.items[priority]
        tr[level.pack((self._next(tr, level), os.urandom(20)))] = value

    def _next(self, tr: Any, ordered: Subspace) -> int:
        keys = ordered.range()
        for key, _ in tr.snapshot.get_range(keys.start, keys.stop, limit=1, reverse=True):
            return int(ordered.unpack(key)[0]) + 1
        return 0

    def pop_min(self, db: Any) -> bytes | None:
        """Take the first value of the lowest priority; `None` if there is none."""
        if (taken := self._unless_conflict(db, self._take)) is not None:
            return next(iter(taken), None)
        name = self._register(db, os.urandom(20))
        while True:
            self._unless_conflict(db, self._serve)
            if (result := self._collect(db, name)) is not None:
                return next(iter(result), None)

    def _unless_conflict(self, db: Any, body: Any) -> Any:
        """The result of a body that is tried once; `None` if it met a conflict."""
        tr = db.create_transaction()
        while True:
            try:
                result = body(tr)
                tr.commit().wait()
                return result
            except Exception as error:
                code = getattr(error, "code", None)
                if code is None:
                    raise
                if code == CONFLICT:
                    return None
                tr.on_error(code).wait()

    def _take(self, tr: Any) -> list[bytes] | None:
        """The first value, if nobody waits for it already."""
        if self._first(tr.snapshot, self.requests, 1):
            return None
        rows = self._first(tr, self.items, 1)
        for row in rows:
            del tr[row.key]
        return [row.value for row in rows]

    def _first(self, tr: Any, space: Subspace, limit: int) -> list[Any]:
        return list(tr.get_range(space.range().start, space.range().stop, limit=limit))

    @transactional
    def _register(self, tr: Any, name: bytes) -> bytes:
        tr[self.requests.pack((self._next(tr, self.requests), name))] = b""
        return name

    def _serve(self, tr: Any) -> None:
        """Move the first items to where those wait who asked first; the others get nothing."""
        requests = self._first(tr.snapshot, self.requests, AT_ONCE)
        items = self._first(tr.snapshot, self.items, AT_ONCE)
        for number, request in enumerate(requests):
            name = self.requests.unpack(request.key)[1]
            taken = items[number : number + 1]
            # Only these keys conflict: a push does not, nor somebody who registers.
            for row in [request, *taken]:
                tr.add_read_conflict_key(row.key)
                del tr[row.key]
            tr[self.results.pack((name,))] = b"".join(b"=" + item.value for item in taken)

    @transactional
    def _collect(self, tr: Any, name: bytes) -> list[bytes] | None:
        key = self.results.pack((name,))
        result: bytes | None = tr[key].value
        if result is None:
            return None
        del tr[key]
        return [result[1:]] if result else []


def main() -> None:
    db = fdbqueue.open("memory:")
    queue = HighContentionQueue(Subspace(("jobs",)))
    for job, priority in [(b"e-mail", 5), (b"alarm", 1), (b"backup", 9), (b"log", 9)]:
        queue.push(db, job, priority)
    while (value := queue.pop_min(db)) is not None:
        print("pop:", value)


if __name__ == "__main__":
    main()
