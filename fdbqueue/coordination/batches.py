"""Collect the pushes, claims or acknowledgements of several threads into one transaction."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.clock import MAX_BACKOFF, milliseconds
from fdbqueue.coordination.combiner import Batch
from fdbqueue.database.binding import first_greater_or_equal
from fdbqueue.database.exactly_once import run_once
from fdbqueue.layout import Layout
from fdbqueue.operations.claim import ClaimRequest, Leases
from fdbqueue.operations.items import WANT_ALL, StoredItem
from fdbqueue.operations.schedule import VERSIONS, Schedule
from fdbqueue.operations.slots import Slots
from fdbqueue.types import Claim, Database, KeySelector, Transaction

__all__ = ["RENEWALS", "Batches", "Claims", "LeaseStart", "Taken", "first_after"]

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

_NARROWER = 0.95  # what a claim without a conflict leaves of the distance at which to look
_SPENT = 0.1  # of a lease, that may be over when a call that began it returns
RENEWALS = 3
"""How often a call begins a lease at most, if each time too much of it is over."""


class Batches(Generic[_Request, _Result]):
    """Does the requests of a batch in one transaction, exactly once.

    Args:
        do: `do(tr, requests)` does requests in a transaction and returns their results.
        receipts: Where the queue has its receipts.
    """

    def __init__(
        self, do: Callable[[Any, list[_Request]], list[_Result]], receipts: Subspace
    ) -> None:
        self._do = do
        self._receipts = receipts
        self._expected = 1

    def perform(self, db: Database, batch: Batch[_Request]) -> list[_Result]:
        """Do the requests of a batch, and those that join it in time."""

        def body(tr: Transaction) -> list[_Result]:
            if self._expected > 1:
                tr.get_read_version().wait()  # others can join meanwhile
            return self._do(tr, batch.join())

        results = run_once(db, body, self._receipts)
        self._expected = len(results)
        return results


class LeaseStart:
    """When a lease that a call begins starts, or earlier, by this process's monotonic clock.

    A lease counts from the read version of its transaction. That may be older than the call: the
    call joined a transaction that was under way, or a cluster that stalls gave a version of before.
    The version of the commit says how much older, because versions follow the cluster's clock.

    >>> LeaseStart().is_recent(30)
    True
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._version = 0

    def note_read(self, tr: Transaction) -> int:
        """Note the read version of an attempt, and return it."""
        self._version = tr.get_read_version().wait()
        return self._version

    def note_commit(self, tr: Transaction) -> None:
        """Note the version of the attempt that committed; it is -1 if nothing was written."""
        age = (tr.get_committed_version() - self._version) / VERSIONS
        self._since = min(self._since, time.monotonic() - age)

    def is_recent(self, lease: float) -> bool:
        """Return whether nine tenths of a lease are left."""
        return time.monotonic() - self._since <= _SPENT * lease


def first_after(tr: Transaction, layout: Layout, n: int, skipped: int) -> list[StoredItem]:
    """`n` items after the first `skipped` ones, or the first ones if there are not so many."""
    begin, end = layout.range_of(layout.items)

    def rows_from(first: bytes | KeySelector) -> list[StoredItem]:
        # The server counts keys, not the queue's: behind the last item stand other ones.
        found = tr.snapshot.get_range(first, end, limit=n, streaming_mode=WANT_ALL)
        return [StoredItem(row.key, row.value) for row in found if row.key < end]

    found = rows_from(first_greater_or_equal(begin, skipped)) if skipped else []
    if len(found) < n:
        found = rows_from(begin)
    if not found:
        tr.add_read_conflict_range(begin, end)  # it was empty, and must be still
    return found


class Taken(NamedTuple):
    """A claim, and when its lease began."""

    claim: Claim | None
    start: LeaseStart


class Claims:
    """The claims of one process on one queue and database.

    Threads that claim at the same time share a transaction, which takes as many items that stand
    together. Without conflicts it takes the first ones. After a conflict it looks at a random place
    in twice the distance, up to that which the claims allow; after a success, in a little less.
    """

    def __init__(self, layout: Layout, leases: Leases, schedule: Schedule, slots: Slots) -> None:
        self._layout = layout
        self._leases = leases
        self._schedule = schedule
        self._slots = slots
        self._distance = 1.0

    def perform(self, db: Database, batch: Batch[ClaimRequest]) -> list[Taken]:
        """Do claims."""
        tries = 0
        now = milliseconds()
        start = LeaseStart()

        def body(tr: Transaction) -> list[Claim | None] | None:
            nonlocal tries
            tries += 1
            if tries == 2:
                tr.options.set_max_retry_delay(MAX_BACKOFF)
            version = start.note_read(tr)  # others can join meanwhile
            swept = self._schedule.sweep(tr, now)
            if not swept.expired:
                return None  # that is enough for one transaction
            requests = batch.join()
            n = sum(request.n for request in requests)
            if tries > 1:
                self._distance = 2 * max(self._distance, n)
            within = min(request.within for request in requests)
            self._distance = min(self._distance, max(n, within))
            skipped = n * random.randrange(max(1, int(self._distance) // n))

            def first(tr: Transaction, n: int) -> list[StoredItem]:
                return first_after(tr, self._layout, n, skipped)

            found = iter(self._slots.admit(tr, n, first))
            taken: list[Claim | None] = []
            looked = False
            for request in requests:
                mine = list(islice(found, request.n))
                looked = looked or bool(mine)
                taken.append(self._leases.take(tr, mine, request, version, now))
            # What nobody can read is out of the way: there may be others. And more may be due.
            return None if (looked or not swept.all) and not any(taken) else taken

        run = partial(run_once, db, body, self._layout.receipts, committed=start.note_commit)
        while (taken := run()) is None:
            tries = 0
        if tries < 2:
            self._distance *= _NARROWER
        return [Taken(claim, start) for claim in taken]
