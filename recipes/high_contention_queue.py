"""The staging technique of FoundationDB's recipe for pops under high contention, on either engine.

A pop that does not succeed at once registers a request, without a conflict, in a semi-ordered set
like that of the items. Then it tries, again and again, to fulfil the first requests with the first
items, in one transaction: whoever is first serves the others too. Here a client that
dies loses its item, and an unknown commit result loses or doubles one: not so in the library.

Source: FoundationDB documentation, Design Recipes, "Priority Queues", Extensions.
"""

import os
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import transactional


class HighContentionQueue:
    """A priority queue of bytes in a subspace, for many clients that pop."""

    def __init__(self, subspace: Subspace) -> None:
        self.items, self.requests, self.results = (subspace[n] for n in range(3))

    def push(self, db: Any, value: bytes, priority: int) -> None:
        """Put a value behind those of its priority."""
        self._append(db, self.items[priority], os.urandom(20), value)

    @transactional
    def _append(self, tr: Any, ordered: Subspace, name: bytes, value: bytes) -> None:
        last = _rows(tr.snapshot, ordered, 1, reverse=True)  # conflicts with nothing
        tr[ordered.pack((ordered.unpack(last[0].key)[0] + 1 if last else 0, name))] = value

    def pop_min(self, db: Any) -> bytes | None:
        """Take the first value of the lowest priority; `None` if there is none."""
        if (taken := _tried_once(db, self._take)) is None:
            name = os.urandom(20)
            self._append(db, self.requests, name, b"")
            while (taken := self._collect(db, name)) is None:
                _tried_once(db, self._fulfil)
        return taken[0] if taken else None

    def _take(self, tr: Any) -> list[bytes]:
        rows = _rows(tr, self.items, 1)
        for row in rows:
            del tr[row.key]
        return [row.value for row in rows]

    def _fulfil(self, tr: Any) -> None:
        """Move the first items to where those look who asked first; the others get nothing."""
        items = _rows(tr.snapshot, self.items, 100)
        for number, request in enumerate(_rows(tr.snapshot, self.requests, 100)):
            taken = items[number : number + 1]
            for row in [request, *taken]:  # only these keys conflict: no push, no new request
                tr.add_read_conflict_key(row.key)
                del tr[row.key]
            key = self.results.pack((self.requests.unpack(request.key)[1],))
            tr[key] = b"".join(b"=" + item.value for item in taken)

    @transactional
    def _collect(self, tr: Any, name: bytes) -> list[bytes] | None:
        key = self.results.pack((name,))
        result: bytes | None = tr[key].value
        del tr[key]
        return None if result is None else [result[1:]] if result else []


def _rows(tr: Any, space: Subspace, limit: int, reverse: bool = False) -> list[Any]:
    whole = space.range()
    return list(tr.get_range(whole.start, whole.stop, limit=limit, reverse=reverse))


def _tried_once(db: Any, body: Any) -> Any:
    """The result of a body; `None` if it met a conflict, or what else can be tried again."""
    tr = db.create_transaction()
    try:
        result = body(tr)
        tr.commit().wait()
        return result
    except Exception as error:
        if not hasattr(error, "code"):
            raise
        tr.on_error(error.code).wait()


if __name__ == "__main__":
    memory = fdbqueue.open("memory:")
    jobs = HighContentionQueue(Subspace(("jobs",)))
    for job, level in [(b"e-mail", 5), (b"alarm", 1), (b"backup", 9), (b"log", 9)]:
        jobs.push(memory, job, level)
    print(*(jobs.pop_min(memory) for _ in range(5)), sep="\n")
