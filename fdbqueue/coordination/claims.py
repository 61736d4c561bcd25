"""Claim items: for threads of a process together, for one agent, or in a caller's transaction."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from fdbqueue.coordination.combiner import Batch
from fdbqueue.database.binding import first_greater_or_equal
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import MAX_RETRY_DELAY
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.operations.claims import ClaimedItems, ClaimRequest
from fdbqueue.operations.groups.starts import started_in
from fdbqueue.operations.items import ITEM_BYTES, Items
from fdbqueue.operations.limits.slots import Candidate, First, Slots
from fdbqueue.operations.options import StoredOptions
from fdbqueue.operations.sweep import Sweep
from fdbqueue.types import Claim, Database, Options, Transaction, Value

if TYPE_CHECKING:
    from fdbqueue.coordination.sweeper import Sweeper

_n_of, _within_of = attrgetter("n"), attrgetter("within")

_NARROWER = 0.95  # a claim without a conflict multiplies the range of the next claim by this
_MAX_BYTES = 3_000_000  # total size of the rows that one transaction claims


@dataclass
class Claims:
    """The claims of one process on one queue.

    Threads that claim at the same time share a transaction, which takes consecutive items. Without
    conflicts it takes the first items. After a conflict it starts at a random item among the first
    ones: the range doubles with each conflict, up to the `within` of the claims. A claim without
    a conflict narrows the range a little. A claim in a caller's transaction does not learn of its
    conflicts, so it starts at a random item within the whole range.

    A lease counts from the read version of its transaction, and from the time at which the try
    began. So less of it is left if the call took long, for example because its process was stopped.

    If many items are due at once, a claim takes one that is available, and leaves them to sweeps in
    transactions of their own, which precede the next claims and take half of their time.
    """

    layout: Layout
    items: Items
    claimed: ClaimedItems
    options: StoredOptions
    sweep: Sweep
    sweeper: Sweeper
    slots: Slots
    among: float = 1.0
    """The number of first items among which a claim starts."""

    def perform(
        self, db: Database, batch: Batch[ClaimRequest], first: First | None = None
    ) -> list[Claim | None]:
        """Perform the claims of a batch, and those that join it in time.

        Args:
            db: A database.
            batch: The claims.
            first: `first(tr, n)` reads the items to claim; by default they are any of the first.
        """
        claiming = _Claiming(self, batch, first)
        if self.sweeper.is_behind:
            # Before a claim, because an error after it would lose the claim.
            self.sweeper.catch_up(db, at_once=False)
        while (claims := claiming.run(db)) is None:
            if claiming.is_behind:
                self.sweeper.catch_up(db)
        self.sweeper.is_behind = claiming.is_behind
        if not claiming.conflicts:
            self.among *= _NARROWER
        return claims

    def perform_alone(self, db: Database, request: ClaimRequest, first: First) -> Claim | None:
        """Perform one claim of the items that `first(tr, n)` reads."""
        (claim,) = self.perform(db, Batch([request]), first)
        return claim

    def perform_in(
        self, tr: Transaction, request: ClaimRequest, first: First | None
    ) -> Claim | None:
        """Perform a claim in a caller's transaction; `first` as for `perform`."""
        return _Claiming(self, Batch([request]), first).claim_in(tr)

    def skip(self, n: int, within: int, conflicts: int) -> int:
        """Return how many first items a claim of `n` items skips after this many conflicts."""
        if conflicts:
            self.among = 2 * max(self.among, n)
        self.among = min(self.among, max(n, within))
        return _skip(n, self.among) if self.among >= 2 * n else 0

    def first(self, tr: Transaction, n: int) -> Sequence[StoredItem]:
        """Return the first `n` items."""
        return self.begin_first(tr, n)(tr, n)

    def begin_first(self, tr: Transaction, n: int, skipped: int = 0) -> First:
        """Start to read `n` items after the first `skipped` ones.

        Returns:
            A function that waits for the items. It returns the first ones if these are fewer. If
            there are none at all, the transaction conflicts with pushes.
        """
        begin, end = self.layout.all_items
        start = first_greater_or_equal(begin, skipped) if skipped else None
        begun = self.items.begin_read(tr.snapshot, begin, end, n, start, skipped)

        def finish(tr: Transaction, n: int) -> Sequence[StoredItem]:
            found = begun()[:n]
            if len(found) < n and skipped:
                return self.first(tr, n)
            if not found:
                tr.add_read_conflict_range(begin, end)
            return found

        return finish


def _fitting(candidates: list[Candidate]) -> list[Candidate]:
    """Return the first items that one transaction can store as claimed, at least one."""
    left = _MAX_BYTES
    for number, candidate in enumerate(candidates):
        left -= len(candidate.item.value) + ITEM_BYTES
        if left < 0 and number:
            return candidates[:number]
    return candidates


def _skip(n: int, among: float) -> int:
    """Return a random multiple of `n`, after which `n` of the first items follow."""
    return n * int(random.random() * (among // n))


@dataclass
class _Claiming:
    """The transactions that perform a batch of claims.

    Attributes:
        claims: The claims of the queue.
        batch: The claims of the batch.
        first: `first(tr, n)` reads the items to claim; `None` for any of the first.
        tries: The number of tries so far.
        now: When the present try began, in milliseconds since 1970.
        conflicts: How often the present transaction had to be tried again.
        is_behind: Whether items are due that its sweep did not reach.
        has_written: Whether the present transaction has written anything.
    """

    claims: Claims
    batch: Batch[ClaimRequest]
    first: First | None
    tries: int = 0
    now: int = 0
    conflicts: int = 0
    is_behind: bool = False
    has_written: bool = False

    def run(self, db: Database) -> list[Claim | None] | None:
        """Claim in a transaction; return `None` if another one has to continue."""
        self.conflicts = -1
        return run_once(
            db,
            self._sweep_and_take,
            self.claims.layout.receipts,
            wrote=lambda _: self.has_written,
            is_stored=self._are_stored,
            begin=self._begin_try,
        )

    def _begin_try(self) -> None:
        """Begin a try of the transaction, outside of it: this reads the clock."""
        self.tries += 1
        self.now = milliseconds()

    def _are_stored(self, tr: Transaction, claims: list[Claim | None] | None) -> bool:
        return any(self.claims.claimed.is_stored(tr, claim) for claim in claims or ())

    def _sweep_and_take(self, tr: Transaction) -> list[Claim | None] | None:
        claims, batch = self.claims, self.batch
        claims.items.rate.begin_try(tr)
        self.conflicts += 1
        if self.conflicts == 1:
            tr.options.set_max_retry_delay(MAX_RETRY_DELAY)
        version = tr.get_read_version().wait()  # meanwhile other threads can join the batch
        batch.join()
        n = sum(map(_n_of, batch))
        skipped = claims.skip(n, min(map(_within_of, batch)), self.conflicts)
        sweep = claims.sweep.begin_sweep(tr, self.now, version)
        options = claims.options.begin_read(tr)
        mark = tr.snapshot.get(claims.layout.scheduled)
        first = self.first or claims.begin_first(tr, n, skipped)
        swept = sweep()
        self.is_behind, self.has_written = not swept.all, swept.wrote
        if not swept.expired:
            return None  # commit this sweep; the next transaction continues
        if swept.wrote and self.first is None:
            first = claims.begin_first(tr, n, skipped)
        taken = self._take(tr, version, n, options(), first, mark)
        # If more items are due, look again.
        return taken if swept.all or any(taken or ()) else None

    def claim_in(self, tr: Transaction) -> Claim | None:
        """Claim for the only request in a caller's transaction."""
        claims, (request,) = self.claims, self.batch
        self._begin_try()
        version = tr.get_read_version().wait()
        claims.sweep.sweep(tr, self.now)
        options = claims.options.read(tr)
        mark = tr.snapshot.get(claims.layout.scheduled)
        while True:
            # To skip items is to pass over keys, perhaps some that cannot be read.
            skipped = 0 if started_in(tr) else _skip(request.n, request.within)
            first = self.first or claims.begin_first(tr, request.n, skipped)
            taken = self._take(tr, version, request.n, options, first, mark)
            if taken is not None:
                return taken[0]

    def _take(
        self,
        tr: Transaction,
        version: int,
        n: int,
        options: Options | None,
        first: First,
        mark: Value,
    ) -> list[Claim | None] | None:
        """Take `n` items for the requests; return `None` if none of them could be decoded."""
        claims, now = self.claims, self.now
        may_skip = self.first is None
        admitted = _fitting(claims.slots.admit(tr, now, n, options, first, may_skip))
        if options is not None and options.rate is not None:
            claims.items.rate.note(tr, now, options, len(admitted))
        self.has_written = self.has_written or bool(admitted)
        remaining = iter(admitted)
        requests = [each.for_try(self.tries, now) for each in self.batch]
        some = [(request, [*islice(remaining, request.n)]) for request in requests]
        taken = claims.claimed.take(tr, now, some, version, mark)
        return taken if any(taken) or not admitted else None
