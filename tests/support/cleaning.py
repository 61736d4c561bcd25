"""What the tests leave in a database that others use, and how it is removed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.errors import OptionsMismatch, QueueNotFound
from fdbqueue.layout.names import NAMES, ROOT


def left_behind(db: Any) -> list[Any]:
    """Return the rows that tests ought to have removed.

    Receipts of clients that renamed or dropped a queue are kept for a day; the count of names that
    were given up is kept forever; the row of a worker that was killed until another one starts.
    """
    kept = tuple(ROOT[number].key() for number in (2, 3, 6, 7))
    return [row for row in db[b"":b"\xff"] if not row.key.startswith(kept)]


def problems_of(db: Any, space: Subspace, name: str) -> list[str]:
    """Return what is wrong with the first queues of a test: those with names, and `queue`."""
    names = fdbqueue.admin.overview(db, prefix=name, limit=20)
    queues: list[Any] = [fdbqueue.existing_queue(db, each) for each in names]
    with suppress(OptionsMismatch):  # a test has stored a queue of another kind there
        queues.append(fdbqueue.PriorityQueue.named(db, space["queue"]))
    reports = (fdbqueue.admin.check(db, each) for each in queues)
    return [problem for report in reports for problem in report.problems]


def remove(db: Any, space: Subspace, name: str) -> None:
    """Clear the subspace of a test, and all of its queues, whose names start with `name`."""
    db.options.set_transaction_timeout(30_000)
    db.options.set_transaction_retry_limit(-1)
    db.options.set_transaction_size_limit(10_000_000)
    for queue in _restored(db, name):
        with suppress(QueueNotFound):
            fdbqueue.admin.drop(db, queue)
    _clear(db, space, name)


def _keys_of(space: Subspace, name: str) -> bytes:
    return bytes(space.pack((name,)).removesuffix(b"\x00"))


@fdbqueue.transactional
def _restored(tr: Any, name: str) -> list[str]:
    """Return the queues that were restored, or are being restored: `_clear` has not their keys."""
    names = tr.get_range_startswith(_keys_of(NAMES, name))
    begun = tr.get_range_startswith(_keys_of(ROOT[5], name))
    restored = [NAMES.unpack(row.key)[0] for row in names if row.value.startswith(ROOT[4].key())]
    return restored + [ROOT[5].unpack(row.key)[0] for row in begun]


@fdbqueue.transactional
def _clear(tr: Any, space: Subspace, name: str) -> None:
    names = (_keys_of(each, name) for each in (NAMES, ROOT, ROOT[1]))
    for prefix in (space.key(), name.encode(), *names):  # `name` begins the data of its jobs
        tr.clear_range_startswith(prefix)
