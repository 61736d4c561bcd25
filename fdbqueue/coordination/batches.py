"""Perform the pushes, claims or acknowledgements of several threads in one transaction."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.sweeper import Sweeper
from fdbqueue.database.binding import first_greater_or_equal
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import MAX_RETRY_DELAY
from fdbqueue.layout import Layout
from fdbqueue.layout.items import StoredItem
from fdbqueue.operations.items import Items
from fdbqueue.operations.leases import ClaimRequest, Leases
from fdbqueue.operations.schedule import VERSIONS, Schedule
from fdbqueue.operations.slots import Slots
from fdbqueue.types import Claim, Database, Transaction

__all__ = ["RENEWALS", "Batches", "ClaimBatches", "LeaseStart", "Taken", "first_after"]

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

_n_of, _within_of = attrgetter("n"), attrgetter("within")

_NARROWER = 0.95  # a claim without a conflict multiplies the range of the next claim by this
_SPENT = 0.1  # the part of a lease that may be over when the call that started it returns
RENEWALS = 3
"""How often a call starts a lease at most, if too much of it is over each time."""


class Batches(Generic[_Request, _Result]):
    """The performer of pushes or acknowledgements: one transaction per batch, exactly once.

    Args:
        do: `do(tr, requests)` performs requests in a transaction and returns their results.
        receipts: The subspace of the queue's receipts.
    """

    contended_until = 0.0
    """A push conflicts with nothing, and an acknowledgement hardly ever."""

    def __init__(
        self, do: Callable[[Any, list[_Request]], list[_Result]], receipts: Subspace
    ) -> None:
        self._do = do
        self._receipts = receipts
        self._expected = 1

    def perform(self, db: Database, batch: Batch[_Request]) -> list[_Result]:
        """Perform the requests of a batch, and those that join it in time."""
        reads_take_time = not getattr(db, "commits_are_certain", False)

        def body(tr: Transaction) -> list[_Result]:
            if self._expected > 1 and reads_take_time:
                tr.get_read_version().wait()  # meanwhile other threads can join the batch
            batch.join(tr)
            results = self._do(tr, batch)
            batch.settle(tr, results)
            return results

        results = run_once(db, body, self._receipts)
        self._expected = len(results)
        return results


class LeaseStart:
    """A lower bound of the time at which a lease started, by this process's monotonic clock.

    A lease starts at the read version of its transaction. This version may be older than the call:
    the call may have joined a running transaction, or a stalled cluster may have returned an old
    version. Versions follow the cluster's clock, so the version of the commit shows the age.

    >>> LeaseStart().is_recent(30)
    True
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._version = 0
        self.tries = 0
        """The number of tries so far."""
        self.now = 0
        """When the present try began, in milliseconds since 1970."""

    def begin_try(self) -> None:
        """Begin a try of the transaction. Call this outside of it, because it reads the clock."""
        self.tries += 1
        self.now = milliseconds()

    def note_read(self, tr: Transaction) -> int:
        """Store the read version of a try of the transaction, and return it."""
        self._version = tr.get_read_version().wait()
        return self._version

    def note_commit(self, tr: Transaction) -> None:
        """Use the version of the commit, which is -1 if nothing was written."""
        age = (tr.get_committed_version() - self._version) / VERSIONS
        self._since = min(self._since, time.monotonic() - age)

    def is_recent(self, lease: float) -> bool:
        """Return whether at least nine tenths of a lease are left."""
        return time.monotonic() - self._since <= _SPENT * lease


def first_after(
    tr: Transaction,
    n: int,
    *,
    skipped: int,
    layout: Layout,
    items: Items,
    begun: Callable[[], list[StoredItem]] | None = None,
) -> list[StoredItem]:
    """Return `n` items after the first `skipped` ones, or the first `n` if these are fewer.

    `begun` waits for the items after the skipped ones, if reading them has begun.
    """
    begin, end = layout.all_items
    found: list[StoredItem] = []
    if begun is not None:
        found = begun()[:n]
    elif skipped:
        found = items.read(tr.snapshot, first_greater_or_equal(begin, skipped), end, n)
    if len(found) < n and (skipped or begun is None):
        found = items.read(tr.snapshot, begin, end, n)
    if not found:
        tr.add_read_conflict_range(begin, end)  # conflict unless the queue stays empty
    return found


class Taken(NamedTuple):
    """A claim, and when its lease started."""

    claim: Claim | None
    start: LeaseStart


class ClaimBatches:
    """The performer of claims: one process's claims on one queue and database.

    Threads that claim at the same time share a transaction, which takes consecutive items. Without
    conflicts it takes the first items. After a conflict it starts at a random item among the first
    ones: the range doubles with each conflict, up to the `within` of the claims. A claim without
    a conflict narrows the range a little.

    If many items are due at once, a claim takes one that is available, and leaves them to sweeps in
    transactions of their own, which precede the next claims and take half of their time.
    """

    def __init__(
        self,
        layout: Layout,
        items: Items,
        leases: Leases,
        schedule: Schedule,
        sweeper: Sweeper,
        slots: Slots,
    ) -> None:
        self._layout = layout
        self._items = items
        self._leases = leases
        self._schedule = schedule
        self._sweeper = sweeper
        self._slots = slots
        self._range = 1.0  # the number of first items among which a claim starts

    def perform(self, db: Database, batch: Batch[ClaimRequest]) -> list[Taken]:
        """Perform the claims of a batch, and those that join it in time."""
        tries = 0
        start = LeaseStart()
        has_written = is_behind = False

        def body(tr: Transaction) -> list[Claim | None] | None:
            nonlocal tries, has_written, is_behind
            tries += 1
            if tries == 2:
                tr.options.set_max_retry_delay(MAX_RETRY_DELAY)
            version = start.note_read(tr)  # meanwhile other threads can join the batch
            batch.join(tr)
            n, now = sum(map(_n_of, batch)), start.now
            if tries > 1:
                self._range = 2 * max(self._range, n)
            within = min(map(_within_of, batch))
            self._range = min(self._range, max(n, within))
            skipped = n * int(random.random() * (self._range // n))
            # Start all reads before waiting for the first.
            sweep = self._schedule.begin_sweep(tr, now, version)
            options = self._schedule.begin_options(tr)
            snapshot = tr.snapshot
            mark = snapshot.get(self._layout.scheduled)
            begin, end = self._layout.all_items
            selector = first_greater_or_equal(begin, skipped) if skipped else begin
            begun = self._items.begin_read(snapshot, selector, end, n)
            swept = sweep()
            is_behind = not swept.all
            has_written = swept.wrote
            if not swept.expired:
                return None  # commit this sweep; the next transaction continues
            first = partial(
                first_after,
                skipped=skipped,
                layout=self._layout,
                items=self._items,
                begun=None if swept.wrote else begun,
            )
            admitted = self._slots.admit(tr, n, options(), first)
            has_written = has_written or bool(admitted)
            self._leases.conflict_on(tr, admitted)
            remaining = iter(admitted)
            take = partial(self._leases.take, tr)
            requests: Iterable[ClaimRequest] = batch
            if start.tries > 1:
                requests = [each.for_try(start.tries, now) for each in batch]
            claims = [
                take([*islice(remaining, request.n)], request, version, now, mark)
                for request in requests
            ]
            if not any(claims) and (admitted or not swept.all):
                # All of these items were undecodable, or more items are due: look again.
                return None
            return claims

        def are_stored(tr: Transaction, claims: list[Claim | None] | None) -> bool:
            return any(map(partial(self._leases.is_stored, tr), claims or ()))

        def wrote(_: object) -> bool:
            return has_written

        callbacks = wrote, start.note_commit, are_stored, start.begin_try
        run = partial(run_once, db, body, self._layout.receipts, *callbacks)
        if self._sweeper.is_behind:
            # Before a claim, because an error after it would lose the claim.
            self._sweeper.catch_up(db, at_once=False)
        while (claims := run()) is None:
            tries = 0
            if is_behind:
                self._sweeper.catch_up(db)
        self._sweeper.is_behind = is_behind
        if tries < 2:
            self._range *= _NARROWER
        return [Taken(claim, start) for claim in claims]
