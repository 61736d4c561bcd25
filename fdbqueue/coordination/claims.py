"""Claims of items, for threads together or in a caller's transaction."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from time import monotonic

from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.sweeper import Sweeper
from fdbqueue.database.binding import first_greater_or_equal
from fdbqueue.database.clock import milliseconds
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import MAX_RETRY_DELAY
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.values import NEVER
from fdbqueue.operations.claims import ClaimedItems, ClaimRequest
from fdbqueue.operations.items import ITEM_BYTES, Items
from fdbqueue.operations.limits.places import First, Slots
from fdbqueue.operations.shards import begin_first
from fdbqueue.operations.sweep import Sweep
from fdbqueue.types import Claim, Database, Options, ReadTransaction, Transaction

_n_of, _within_of = attrgetter("n"), attrgetter("within")
_expires_of = attrgetter("header.expires")

_WIDER = 4  # a conflict multiplies the range of first items by this
_NARROWER = 0.98  # a claim without a conflict multiplies the range of the next claim by this
_WEIGHED = 2.0  # seconds for which the weight of a shard's groups is taken as known
_NEVER = -math.inf, 0.0
_MAX_WEIGHED = 1_000  # priorities and shards
_MAX_BYTES = 3_000_000  # total size of the rows that one transaction claims


@dataclass
class Claims:
    """The claims of one process on one queue.

    Threads that claim at the same time share a transaction, which takes consecutive items. After a
    conflict, the next try starts at a random place among more items, up to the claims' `within`;
    each claim without a conflict narrows this range. A claim in a caller's transaction starts at a
    random place of the whole range.

    A claim sweeps if it finds too few items or an expired one, which it never takes. Others sweep
    if they have no choice of items, or every quarter of a second.
    """

    items: Items
    claimed: ClaimedItems
    sweep: Sweep
    sweeper: Sweeper
    slots: Slots
    among: float = 1.0
    """How many first items to choose from."""
    place: float = 0.0
    """The start in this range, as a fraction."""
    weighed: dict[bytes, tuple[float, float]] = field(
        default_factory=dict[bytes, tuple[float, float]]
    )
    """When the groups of a priority and shard were weighed, and their weight."""
    credits: dict[bytes, float] = field(default_factory=dict[bytes, float])
    """How much more of a priority each shard should have had."""

    def perform(self, db: Database, batch: Batch[ClaimRequest]) -> list[Claim | None]:
        """Perform a batch of claims, which others may join."""
        claiming = _Claiming(self, batch)
        if self.sweeper.is_behind:
            # Before a claim, because an error after it would lose the claim.
            self.sweeper.catch_up(db, at_once=False)
        while True:
            claiming.conflicts = -1
            claims = run_once(
                db,
                claiming.sweep_and_take,
                self.items.layout.receipts,
                wrote=lambda _: claiming.has_written,
                is_stored=self._are_stored,
                begin=claiming.begin_try,
            )
            if claims is not None:
                break
            if claiming.is_behind:  # another transaction has to continue
                self.sweeper.catch_up(db)
        if claiming.has_swept:
            self.sweeper.note_claim(claiming.is_behind, claiming.is_marked)
        if not claiming.conflicts:
            self.among *= _NARROWER
        return claims

    def _are_stored(self, tr: Transaction, claims: list[Claim | None] | None) -> bool:
        stored = [self.claimed.is_stored(tr, claim) for claim in claims or ()]  # each is fenced off
        return any(stored)

    def perform_in(self, tr: Transaction, request: ClaimRequest) -> Claim | None:
        """Perform a claim in a caller's transaction."""
        return _Claiming(self, Batch([request])).claim_in(tr)

    def begin_first(self, tr: Transaction, n: int, skipped: int = 0) -> First:
        """Start to read `n` items after `skipped` ones, or the first `n` if too few follow.

        Without items, the transaction conflicts with pushes.
        """
        begin, end = self.items.layout.all_items
        if self.items.options.shards > 1:
            return self._begin_first_of_shards(tr, skipped)
        start = first_greater_or_equal(begin, skipped) if skipped else None
        begun = self.items.begin_read(tr.snapshot, begin, end, n, start, skipped)

        def finish(n: int) -> Sequence[StoredItem]:
            found = begun()[:n]
            if len(found) < n and skipped:
                return self.begin_first(tr, n)(n)
            if not found:
                tr.add_read_conflict_range(begin, end)
            return found

        return finish

    def _begin_first_of_shards(self, tr: Transaction, skipped: int) -> First:
        reads, start = tr.snapshot, first_greater_or_equal
        begun = begin_first(self.items, reads, self._choose, start=start, skipped=skipped)

        def finish(n: int) -> Sequence[StoredItem]:
            found = begun(n)
            if not found:
                tr.add_read_conflict_range(*self.items.layout.all_items)
            return found

        return finish

    def _choose(self, tr: ReadTransaction, heads: list[StoredItem]) -> StoredItem:
        """Choose a shard by the weights of the groups that have items of its first priority.

        This process gives each shard its share of claims, up to one claim (smooth weighted
        round-robin). It begins at random, so that processes do not follow each other.
        """
        if len(heads) == 1:
            return heads[0]
        now, known = monotonic(), self.weighed
        if len(self.credits) > _MAX_WEIGHED:
            known.clear()
            self.credits.clear()
        have_groups = any(head.level.group is not None for head in heads)
        begun = {
            head.level.of_priority: self.items.turns.begin_weight(tr, head.level)
            for head in heads
            if have_groups
            if known.get(head.level.of_priority, _NEVER)[0] < now - _WEIGHED
        }
        known |= {each: (now, weight()) for each, weight in begun.items()}
        # Groups come before the other items of their priority: without any, all shards weigh 1.
        weights = {
            head.level.of_priority: known.get(head.level.of_priority, (now, 1.0))[1]
            for head in heads
        }
        total = sum(weights.values())
        for each, weight in weights.items():
            before = self.credits.get(each, total * random.random())
            self.credits[each] = before + weight
        chosen = max(heads, key=lambda head: self.credits[head.level.of_priority])
        self.credits[chosen.level.of_priority] -= total
        return chosen


def _fitting(found: Sequence[StoredItem]) -> Sequence[StoredItem]:
    """Return the first items, at least one, that a transaction can store as claimed."""
    left = _MAX_BYTES
    for number, item in enumerate(found):
        left -= len(item.value) + ITEM_BYTES
        if left < 0 and number:
            return found[:number]
    return found


@dataclass
class _Claiming:
    """The transactions of a batch of claims.

    `is_behind` tells whether the sweep left due items, `must_sweep` whether the try sweeps in any
    case, `is_marked` whether the queue is marked as having timers.
    """

    claims: Claims
    batch: Batch[ClaimRequest]
    tries: int = 0
    now: int = 0
    conflicts: int = 0
    is_behind: bool = False
    has_written: bool = False
    must_sweep: bool = True
    has_swept: bool = False
    is_marked: bool = True

    def begin_try(self) -> None:
        """Read the clock, outside of the transaction."""
        self.tries += 1
        self.now = milliseconds()
        self.must_sweep = self.claims.sweeper.claim_must_sweep()

    def sweep_and_take(self, tr: Transaction) -> list[Claim | None] | None:
        """Claim in a transaction; return `None` if another must continue."""
        claims, batch = self.claims, self.batch
        self.conflicts += 1
        if self.conflicts == 1:
            tr.options.set_max_retry_delay(MAX_RETRY_DELAY)
        have_joined = batch.join(tr)
        version = tr.get_read_version()
        n, within = sum(map(_n_of, batch)), min(map(_within_of, batch))
        # A claim that has no choice has to know which items are the first ones.
        self.must_sweep |= within <= n
        begun_options = claims.items.options.begin_read(tr)
        if self.conflicts:
            claims.among = _WIDER * max(claims.among, n)
            claims.place = random.random()
        claims.among = min(claims.among, max(n, within))
        skipped = n * int(claims.place * (claims.among // n))
        first = claims.begin_first(tr, n, skipped)
        self.is_marked, self.is_behind, self.has_written = True, False, False
        shards, options, admit = claims.items.options.shards, begun_options(), claims.slots.admit
        if claims.items.options.shards != shards:
            first = claims.begin_first(tr, n, skipped)
        found: Sequence[StoredItem] = ()
        looks_first = not self.must_sweep or (shards > 1 and within > n)
        if looks_first:
            found = admit(tr, self.now, n, options, first)
        has_enough = len(found) >= n and not self._have_expired(found)
        self.has_swept = self.must_sweep or not has_enough
        if self.has_swept:
            sweep = claims.sweep.begin_sweep(tr, self.now, version.wait(), in_turn=has_enough)
            mark = tr.snapshot.get(claims.items.layout.scheduled)
            swept, self.is_marked = sweep(), mark.present()
            self.is_behind, self.has_written = not swept.all, swept.wrote
            if not swept.expired:
                return None  # commit this sweep; the next transaction continues
            if swept.wrote or (skipped and not self.must_sweep):
                first = claims.begin_first(tr, n)
                found = admit(tr, self.now, n, options, first)
                if has_enough and self._have_expired(found):  # in a shard that it has not swept
                    return None
            elif not looks_first:
                found = admit(tr, self.now, n, options, first)
        if have_joined and len(found) < n:
            # A push that this read version does not show may precede a claim that has joined. The
            # database checks a commit for conflicts only if it has written something.
            tr.add_read_conflict_range(*claims.items.layout.all_items)
            tr.add_write_conflict_key(claims.items.layout.receipts.key())
            self.has_written = True
        taken = self._take(tr, version.wait(), options, found)
        # If more items are due, look again.
        return taken if not self.is_behind or any(taken or ()) else None

    def _have_expired(self, found: Sequence[StoredItem]) -> bool:
        expiries = filter(None, map(_expires_of, found))
        return min(expiries, default=NEVER) <= self.now

    def claim_in(self, tr: Transaction) -> Claim | None:
        claims, (request,) = self.claims, self.batch
        self.begin_try()
        version = tr.get_read_version().wait()
        options = claims.items.options.read(tr)
        claims.sweep.sweep(tr, self.now)
        self.is_marked = tr.snapshot[claims.items.layout.scheduled].present()
        while True:
            skipped = request.n * int(random.random() * (request.within // request.n))
            first = claims.begin_first(tr, request.n, skipped)
            found = claims.slots.admit(tr, self.now, request.n, options, first)
            taken = self._take(tr, version, options, found)
            if taken is not None:
                return taken[0]

    def _take(
        self, tr: Transaction, version: int, options: Options, found: Sequence[StoredItem]
    ) -> list[Claim | None] | None:
        """Take items for the requests; return `None` if none could be decoded."""
        claims, now = self.claims, self.now
        admitted = _fitting(found)
        slots = claims.slots.hold(tr, now, options, len(admitted))
        self.has_written = self.has_written or bool(admitted)
        remaining = iter(admitted)
        requests: list[ClaimRequest] = self.batch
        if self.tries > 1:
            requests = [request.for_try(self.tries, now) for request in requests]
        some = [(request, [*islice(remaining, request.n)]) for request in requests]
        taken = claims.claimed.take(tr, now, some, version, slots, self.is_marked)
        return taken if any(taken) or not admitted else None
