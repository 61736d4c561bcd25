"""Items that are claimed under a lease, acknowledged, retried, and at last dead letters."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fdbqueue.coordination.batches import RENEWALS, Acks, Claims, LeaseStart, Taken, first_after
from fdbqueue.coordination.clock import backoff, milliseconds, uuids
from fdbqueue.coordination.combiner import Combiner
from fdbqueue.coordination.staged_pops import LEASE, MOST_ITEMS
from fdbqueue.coordination.watches import checked_wait, wait_for_change
from fdbqueue.database.binding import is_database
from fdbqueue.database.retrying import read
from fdbqueue.errors import LeaseLost
from fdbqueue.layout import ONE, Layout
from fdbqueue.operations.claim import ClaimRequest, Leases, told_error
from fdbqueue.operations.items import Entry, Found, Rows, State, find
from fdbqueue.operations.push import Push
from fdbqueue.operations.slots import MOST_SLOTS, Agents, First, Limits
from fdbqueue.queue.arguments import checked_bound, checked_lease, due_time
from fdbqueue.queue.item_store import ItemStore
from fdbqueue.types import Claim, Codec, DeadLetter, Item, Options

__all__ = ["ClaimableStore"]

_T = TypeVar("_T")


def _claim_size(request: ClaimRequest) -> int:
    return request.n


class ClaimableStore(ItemStore):
    """An `ItemStore` whose items can be claimed."""

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        codec: Codec,
        options: Options,
        agents: Agents | None = None,
    ) -> None:
        super().__init__(layout, rows, codec, options)
        schedule = self.schedule
        leases = self._leases = Leases(layout, rows, self._item, schedule, backoff)
        limits = self._limits = Limits(layout, schedule, agents, random.shuffle)
        self.claims = Combiner(
            lambda: Claims(layout, leases, schedule, limits), _claim_size, MOST_ITEMS
        )
        self.acks = Combiner(lambda: Acks(layout, leases), len, MOST_ITEMS)

    def claim(
        self, tr: Any, *, lease: float = 30, n: int = 1, within: int = 256, wait: float = 0
    ) -> Claim | None:
        """Claim the first items for a time: nobody else gets them while the lease lasts.

        Who has done the job calls `ack`, in the transaction that writes what the job did; who
        could not, `nack`; who needs longer, `extend`. When the lease has run out, the items go back
        to their own places, and the claim is over: `LeaseLost` keeps whoever comes late with it
        from committing. The lease is counted in the database's versions, not by clients' clocks.

        Given a database, a lease of which more than a tenth is over when the outcome is known, for
        example because the process was stopped, begins again before the call returns. If the items
        are lost by then, the call claims others; if the database fails then, it raises that error,
        and the items are back after what is left of the lease. A process that is stopped later, or
        a caller whose own transaction is slow, finds out by `extend` or `ack`.

        Conflicts with who takes the same items, nothing else. Given a database it takes effect
        exactly once, and claims the first items as long as that meets no conflict; the more
        conflicts, the further it looks, up to `within`. In a transaction it claims any of them, and
        the caller's own retry rules hold. Cost: reads of what is due, of the options and of
        the items; of each item three keys written, and of each priority one.

        Parameters: `lease`, in seconds, over 0; `n`, how many items at most, from 1; `within`, from
        how many of the first items, from 1; `wait`, how many seconds to wait for an item if there
        is none, `math.inf` for ever, for which it needs a database.

        An item that the codec cannot read is no claim's: it counts as claimed and failed, is tried
        again later, and at last a dead letter.

        Source: Gray and Cheriton, Leases (1989).

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> claim = jobs.claim(db, lease=60)
        >>> claim.item.value, claim.attempt, jobs.claim(db)
        ('send', 1, None)
        >>> jobs.ack(db, claim)
        """
        return self._claimed(tr, lease, n, within, wait, None)

    def shown(self, item: Item) -> Any:
        """What a caller gets of an item."""
        return item

    def _claimed(
        self, tr: Any, lease: float, n: int, within: int, wait: float, first: First | None
    ) -> Claim | None:
        """Claim any of the first items, or those that `first(tr, n)` reads."""
        self.check_number(n, "n", 1)
        self.check_number(within, "within", 1)
        request = ClaimRequest(n, max(n, within), checked_lease(lease), *uuids(1))
        deadline = time.monotonic() + checked_wait(tr, wait)
        while (claim := self._claim_now(tr, request, first)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            left = min(left, LEASE, self.sweeper.seconds_left(tr))
            wait_for_change(tr, partial(self.to_watch_claims, first=first), left)
        return None if claim is None else replace(claim, items=tuple(map(self.shown, claim.items)))

    def _claim_now(self, tr: Any, request: ClaimRequest, first: First | None) -> Claim | None:
        """Claim items that are there now; on a database, with a lease that is not over already.

        A stop of the process, or a lost answer, can outlast a lease.
        """
        for _ in range(RENEWALS):
            claim, start = self._try_claim(tr, request, first)
            if claim is None or not is_database(tr) or start.is_recent(request.lease):
                return claim
            try:
                self.extend(tr, claim, request.lease)
                return claim
            except LeaseLost:
                continue  # others have the items: look for other ones
        return None

    def _try_claim(self, tr: Any, request: ClaimRequest, first: First | None) -> Taken:
        if first is None and is_database(tr):
            return self.claims(tr, request)
        now = milliseconds()
        start = LeaseStart()

        def body(tr: Any) -> Claim | None:
            start.note_read(tr)
            self.schedule.sweep(tr, now)
            skipped = random.randrange(max(1, request.within - request.n + 1))
            look = first or self._first_after(skipped)
            while found := self._limits.admit(tr, request.n, look):
                if claim := self._leases.take(tr, found, request, now):
                    return claim
            return None

        return Taken(self._change(tr, body, lambda _: True, start.note_commit), start)

    def _first_after(self, skipped: int) -> First:
        return lambda tr, n: first_after(tr, self.layout, n, skipped)

    def to_watch_claims(self, tr: Any, first: First | None = None) -> list[bytes]:
        """What changes once something can be claimed; nothing if something can be."""
        first = first or self._first_after(0)
        if self._limits.admit(tr, 1, first):
            return []
        # There may be items that have to wait, besides those that come.
        return [self.layout.came, self.layout.freed] if first(tr, 1) else [self.layout.came]

    def ack(self, tr: Any, claim: Claim) -> None:
        """Be done with the items of a claim: they are gone for good.

        In the transaction that writes what the job did, that and the end of the job are one: it
        takes effect once, however often the job was begun. Conflicts with who takes the items away
        because the lease ran out. Given a database it takes effect exactly once, together with what
        other threads acknowledge at the time; in a transaction the caller's own retry rules hold
        (use `fdbqueue.transactional(receipts=...)`: after an unknown commit result the claim is
        gone). Cost: a read for each item.

        Raises `LeaseLost` if the claim is over; the transaction must not commit then.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> claim = jobs.claim(db)
        >>> jobs.ack(db, claim)
        >>> jobs.ack(db, claim)
        Traceback (most recent call last):
        fdbqueue.errors.LeaseLost: the claim of item ... is over: ...
        """
        if not is_database(tr):
            self._leases.ack(tr, claim)
        elif (lost := self.acks(tr, claim)) is not None:
            raise lost

    def nack(
        self,
        tr: Any,
        claim: Claim,
        *,
        delay: float | None = None,
        error: str | BaseException | None = None,
    ) -> None:
        """Give the items of a claim back, because the job failed; they are tried again later.

        After the first failure in one second, after each further one in twice that, up to an hour,
        less a random part of up to a half. What was claimed `max_attempts` times is a dead letter
        instead, with the error. Conflicts, retries and cost as `ack`.

        Parameters: `delay`, in seconds, instead of that; `error`, what went wrong, a text or an
        exception, of which 1,000 characters are kept. Raises `LeaseLost` if the claim is over.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db), delay=0, error="the line was busy")
        >>> jobs.claim(db).attempt
        2
        """
        now = milliseconds()
        if delay is None:
            dues = [due_time(backoff(attempt), None) for attempt in claim.attempts]
        else:
            dues = [due_time(delay, None)] * len(claim)
        told = told_error(error)
        self._change(tr, lambda tr: self._leases.nack(tr, claim, dues, told, now), lambda _: True)

    def extend(self, tr: Any, claim: Claim, lease: float = 30) -> None:
        """Let the lease of a claim begin anew, and last for so many seconds from now.

        Given a database, it begins once more if a tenth of it is over before the call returns.
        Conflicts, retries and cost as `ack`. Raises `LeaseLost` if the claim is over.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.extend(db, jobs.claim(db, lease=1), lease=60)
        """
        extend = partial(self._leases.extend, claim=claim, lease=checked_lease(lease))
        self._begin_leases(tr, lease, extend)

    def extend_each(self, db: Any, claims: list[Claim], lease: float) -> list[LeaseLost | None]:
        """Let the leases of several claims begin anew; of those that are over, the error."""
        extend = partial(self._leases.extend, lease=checked_lease(lease))
        errors: list[LeaseLost | None] = []
        for begin in range(0, len(claims), MOST_ITEMS):
            some = claims[begin : begin + MOST_ITEMS]
            errors += self._begin_leases(
                db, lease, partial(self._leases.each, claims=some, do=extend)
            )
        return errors

    def _begin_leases(self, tr: Any, lease: float, body: Callable[[Any], _T]) -> _T:
        """Begin leases; on a database again, if much of them is over when the outcome is known."""
        for _ in range(RENEWALS):
            start = LeaseStart()

            def begin(tr: Any, start: LeaseStart = start) -> _T:
                start.note_read(tr)
                return body(tr)

            result = self._change(tr, begin, lambda _: True, start.note_commit)
            if not is_database(tr) or start.is_recent(lease):
                break
        return result

    def release(self, tr: Any, claim: Claim) -> None:
        """Give the items of a claim back to their own places, as if nobody had claimed them.

        Conflicts, retries and cost as `ack`. Raises `LeaseLost` if the claim is over.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.release(db, jobs.claim(db))
        >>> jobs.claim(db).attempt
        1
        """
        self._change(tr, lambda tr: self._leases.release(tr, claim), lambda _: True)

    # Dead letters

    def dead_letters(self, tr: Any) -> Iterator[DeadLetter]:
        """The items that failed too often, in the order in which they stood.

        Given a database in pages of 500, each its own transaction.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
        >>> _ = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db), error="no such address")
        >>> [(letter.item.value, letter.error) for letter in jobs.dead_letters(db)]
        [('send', 'no such address')]
        """
        begin, end = self.layout.range_of(self.layout.dead)

        def page(tr: Any) -> tuple[bytes, list[DeadLetter]]:
            rows = list(tr.get_range(begin, end, limit=500))
            letters = [self._letter(tr, row.key, row.value) for row in rows]
            return rows[-1].key + b"\x00" if len(rows) == 500 else end, letters

        while begin < end:
            begin, letters = read(tr, page)
            yield from letters

    def _letter(self, tr: Any, key: bytes, stored: bytes) -> DeadLetter:
        letter = self._leases.dead_letter(tr, key, stored)
        return letter if letter.item is None else replace(letter, item=self.shown(letter.item))

    def _found(self, tr: Any, item: Any) -> Found | None:
        """The item with this id, or this one, wherever it is."""
        return find(tr, self.layout, self.layout.place(self.key_of(item)))

    def _change_dead(self, tr: Any, item: Any, change: Callable[[Any, Found], bool]) -> bool:
        def body(tr: Any) -> bool:
            found = self._found(tr, item)
            return found is not None and found.state == "dead" and change(tr, found)

        return self._change(tr, body)

    def retry_dead_letter(self, tr: Any, item: Any) -> bool:
        """Put a dead letter back to its own place, to be tried anew; false if there is none.

        It has all its attempts again, and does not expire. If it is to be unique, and another item
        has its key meanwhile, it stays a dead letter: false, too. In a queue with a bound it takes
        a place, as a push does. Given a database it takes effect exactly once; in a transaction the
        caller's own retry rules hold.

        Raises `QueueFull` if there is no place for it (it stays a dead letter), `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
        >>> item = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db))
        >>> jobs.retry_dead_letter(db, item.id), jobs.claim(db).attempt
        (True, 1)
        """
        self.sweeper.prepare(tr)  # what is to expire makes room
        retry = partial(self._leases.retry_dead, reserve=self._pushing.reserve)
        return self._change_dead(tr, item, retry)

    def drop_dead_letter(self, tr: Any, item: Any) -> bool:
        """Drop a dead letter; false if there is none. As `retry_dead_letter`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs", max_attempts=1)
        >>> item = jobs.push(db, "send")
        >>> jobs.nack(db, jobs.claim(db))
        >>> jobs.drop_dead_letter(db, item.id), jobs.drop_dead_letter(db, item.id)
        (True, False)
        """
        return self._change_dead(tr, item, self._leases.drop_dead)

    def set_max_attempts(self, tr: Any, max_attempts: int | None) -> None:
        """Let items be claimed so often before they are dead letters, from now on.

        As `set_max_size`. Parameters: `max_attempts`, from 1, or `None` for any number of times.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> jobs.set_max_attempts(db, 3)
        >>> jobs.options(db).max_attempts
        3
        """
        checked_bound("max_attempts", max_attempts)
        self._change(tr, lambda tr: self._pushing.set_option(tr, "max_attempts", max_attempts))

    # What may be taken

    def pause(self, tr: Any) -> None:
        """Hand out nothing until `resume`: claims and pops find nothing, pushes go on.

        What is claimed stays so. Stored with the queue, for all clients: claims heed it at once,
        pops within a second. Given a database it takes effect exactly once; in a transaction the
        caller's own retry rules hold. Conflicts with pushes and claims.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "send")
        >>> jobs.pause(db)
        >>> jobs.claim(db), jobs.pop(db), jobs.size(db)
        (None, None, 1)
        >>> jobs.resume(db)
        >>> jobs.pop(db).value
        'send'
        """
        self._set_limit(tr, "paused", True)

    def resume(self, tr: Any) -> None:
        """Hand items out again, after `pause`; who waits for one is woken. As `pause`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> jobs.resume(db)
        >>> jobs.options(db).paused
        False
        """
        self._set_limit(tr, "paused", False)

    def set_concurrency(self, tr: Any, concurrency: int | None) -> None:
        """Let so many items be claimed at a time at most, in the whole queue, by all workers.

        What is claimed beyond stays so, and what was claimed before there was a limit does not
        count. Never exceeded: each claimed item holds one of as many slots, which its end, or that
        of its lease, frees for others. Given a database it takes effect exactly once; in a
        transaction the caller's own retry rules hold. Conflicts with pushes and claims. A claim
        costs one read of the slots that are held then.

        Parameters: `concurrency`, from 1 to 10,000, or `None` for no limit.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, ["a", "b"])
        >>> jobs.set_concurrency(db, 1)
        >>> claim = jobs.claim(db)
        >>> jobs.claim(db) is None
        True
        >>> jobs.ack(db, claim)
        >>> jobs.claim(db).item.value
        'b'
        """
        checked_bound("concurrency", concurrency, MOST_SLOTS)
        self._set_limit(tr, "concurrency", concurrency)

    def _set_limit(self, tr: Any, name: str, value: Any) -> None:
        def body(tr: Any) -> bool:
            tr[self.layout.scheduled] = b""
            tr.add(self.layout.freed, ONE)
            return self._pushing.set_option(tr, name, value)

        self._change(tr, body)
        self.sweeper.look_again()

    # Unique items, and what has become of items

    def state(self, tr: Any, item: Any) -> State | None:
        """Where an item is: `"waiting"`, `"delayed"`, `"claimed"` or `"dead"`; `None` if it ended.

        Conflicts with whatever changes the item. Cost: one read, of one that does not wait four.

        Parameters: `item`, an `Item` (of a task queue, a `Task`), or its id. Raises
        `InvalidItemId`.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> item = jobs.push(db, "send", delay=60)
        >>> jobs.state(db, item.id)
        'delayed'
        """
        found = read(tr, lambda tr: self._found(tr, item))
        return None if found is None else found.state

    def _push_unique(self, tr: Any, entry: Entry, raise_if_full: bool) -> Item | None:
        """Push an item unless another one with its key is unfinished; that one, or the new one.

        `None` if there is no room.
        """
        push = Push([entry])
        where = self.layout.unique_key(str(entry.header.unique))
        now = milliseconds()

        def first(tr: Any) -> Found | None:
            place = tr[where].value
            return None if place is None else find(tr, self.layout, place)

        def body(tr: Any) -> tuple[list[bytes], Item | None]:
            keys = []
            if first(tr) is not None:
                self.schedule.sweep(tr, now)  # it may have come to its end in time
            found = first(tr)
            if found is None and (keys := self._pushing.push(tr, [push])[0]):
                found = first(tr)
            return keys, None if found is None else self._item(tr, found.key, found.value)

        keys, item = self._change(tr, body)
        if item is None and raise_if_full:
            self.check_room(push, keys)
        return item
