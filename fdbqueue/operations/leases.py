"""Claims within a transaction: take, acknowledge, extend and return items under a lease."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

from fdbqueue.errors import ForeignClaim, LeaseLost, UndecodableItem, error_text
from fdbqueue.layout.batches import End
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import (
    CANCELLED,
    HEADER_MARK,
    NOW,
    ONE,
    ClaimedItem,
    Done,
    Report,
    at_time,
    decode_claim,
    decode_lease,
    encode_claim,
    encode_lease,
    header_of,
    lease_expiry,
    lease_value,
    text_end,
    text_room,
    with_header,
)
from fdbqueue.operations.batches import is_cancelled, note_end
from fdbqueue.operations.changes import DoneItems
from fdbqueue.operations.failures import FailedItem, Failures, traceback_text, unknown_delay
from fdbqueue.operations.items import (
    Items,
    LocatedItem,
    ReturnedItem,
    clear_owned,
    free_unique,
)
from fdbqueue.operations.limits.slots import Candidate, Freed, Limit, Slots
from fdbqueue.operations.payloads import read_payloads, with_small_row
from fdbqueue.operations.timers import VERSIONS, lease_of
from fdbqueue.types import Claim, KeyValue, Options, Outcome, ReadTransaction, Transaction, Value

_log = logging.getLogger("fdbqueue")

_KEPT_SIZE = 4  # items in a batch of acknowledgements for which one counts that may be kept
_RETURNED_BYTES = 5_000  # of a result, which count as one item in such a batch

_key_of, _item_of, _slot_of = attrgetter("key"), attrgetter("item"), attrgetter("slot")

_Ended: TypeAlias = list[tuple[bytes, ClaimedItem]]
"""The items of a claim, by their positions."""

_Reads: TypeAlias = list[tuple[bytes, Any]]
"""The positions of the items of a claim, and the reads of what is stored there."""

EndWith: TypeAlias = Callable[[bytes | None], None]
"""Stores what a handler returned, as JSON or `None`, and notes the ends of its items."""

Extension: TypeAlias = tuple[Claim, Report | None]
"""A claim to extend, and what its client reports; `None` if that is what it reported before."""


def _unchanged(value: bytes) -> bytes:
    return value


def _claimed_value(tr: Transaction, layout: Layout, item: StoredItem) -> bytes:
    """Return the value of an item while it is claimed; free its unique key if a claim does so.

    The item no longer counts as unknown: this worker may know its job.
    """
    header = item.header
    if header.unknown is not None or header.step:
        header = header._replace(unknown=None, step="")
    if header.unique is not None and header.key is not None:
        free_unique(tr, layout, item.value)
        header = header._replace(unique=None)
    return item.value if header is item.header else with_header(header, item.content)


def _survived(value: bytes) -> bytes:
    """Return the value of an item that its worker gives back: if it ran alone, it did no harm."""
    header, content = header_of(value)
    return with_header(header._replace(alone=0), content) if header.alone == NOW else value


def _begun_alone(value: bytes) -> bytes:
    """Return the value of an item that begins to run alone in its process."""
    header, content = header_of(value)
    return with_header(header._replace(alone=NOW), content)


def _is_cancelled(item: ClaimedItem) -> bool:
    value = item.value
    return value.startswith(HEADER_MARK) and header_of(value)[0].cancelled is not None


def _lost(end: Callable[[], None]) -> LeaseLost | None:
    """Call `end`, which ends or extends a claim; return `LeaseLost` if the claim is over."""
    try:
        end()
    except LeaseLost as error:
        return error
    return None


class ClaimRequest(NamedTuple):
    """The arguments of a claim.

    Attributes:
        n: The number of items.
        within: Claim any of this many first items.
        lease: The duration of the lease in seconds.
        token: The identity of the claim: a UUID of the time at which the client tries to claim.
        client: The name of the client that claims.
    """

    n: int
    within: int
    lease: float
    token: bytes
    client: str

    @property
    def size(self) -> int:
        """How much of a shared transaction it takes, as a number of items."""
        return self.n

    def for_try(self, number: int, now: int) -> ClaimRequest:
        """Return the request for this try of its transaction, counted from 1.

        Each try has a token of its own, with its time. So the client can tell which one committed.

        Args:
            number: The number of the try.
            now: When it begins, in milliseconds since 1970.
        """
        if number == 1:
            return self
        return self._replace(token=at_time(self.token, now) + b"%d" % number)


class AckRequest(NamedTuple):
    """An acknowledgement.

    Attributes:
        claim: The claim.
        may_keep: False if the queue is known to keep no done items.
        returned: What the handler returned, as JSON, or `None`; in a queue that keeps no done
            items, only if another job waits for it.
        discarded: Why the items are discarded; `None` if they are done.
        log: The lines that the handler has logged.
        cancelled: Whether the items are cancelled instead of done or discarded.
    """

    claim: Claim
    may_keep: bool = True
    returned: bytes | None = None
    discarded: str | None = None
    log: str = ""
    cancelled: bool = False

    @property
    def size(self) -> int:
        """How much of a shared transaction it takes, as a number of items that are not kept.

        An item that is kept as done is written once more, with its log and what its handler
        returned. The item and the latter have up to 90,000 bytes.
        """
        n, returned = len(self.claim), len(self.returned or b"")
        if not self.may_keep:
            return n * (1 + returned // _RETURNED_BYTES)
        return n * (_KEPT_SIZE + (returned + len(self.log)) // _RETURNED_BYTES)


class _Begun:
    """An acknowledgement whose reads have begun.

    Attributes:
        reads: Those of the items of the claim.
        options: Waits for the options of the queue, unless it is known to keep no done items.
        ended: The items of the claim, once they are read.
        lease_lost: The error, if the claim is over.
    """

    __slots__ = ("ended", "lease_lost", "options", "reads")

    def __init__(self, reads: _Reads, options: Callable[[], Options | None] | None) -> None:
        self.reads = reads
        self.options = options
        self.ended: _Ended = []
        self.lease_lost: LeaseLost | None = None


_lost_of = attrgetter("lease_lost")


class Leases:
    """The claimed items of one queue. Each method is part of a transaction.

    A claim belongs to the holder of its token while the item is stored under that token. After the
    lease has ended, the next client that looks for items returns the item to the queue.

    A lease ends when it is over by the versions of the database and by the clock of the client that
    sweeps. A recovery advances the versions by a hundred seconds' worth, so the clock has to agree;
    clocks differ, so the versions have to agree. A lease that is over by its version only gets a
    new version for its end: the time that the clock leaves, at most its length. So does a lease
    whose version lies further ahead than its length: the queue was restored from the backup of
    another cluster, whose versions were higher.
    """

    def __init__(
        self,
        items: Items,
        codec: RowCodec[Any],
        slots: Slots,
        failures: Failures,
        done: DoneItems,
        retry_delay: Callable[[int], float],
    ) -> None:
        self._layout = items.layout
        self._items = items
        self._codec = codec
        self._slots = slots
        self._failures = failures
        self._done = done
        self._retry_delay = retry_delay

    def begin_take(self, tr: Transaction, now: int, candidates: list[Candidate]) -> None:
        """Add read conflicts for the items to claim, for all requests, and delete the items.

        Call it before any write: the engine compares a read conflict with the writes before it.
        """
        items = [*map(_item_of, candidates)]
        for item in items:
            if item.turn is None:  # otherwise `delete` adds a range
                tr.add_read_conflict_key(item.key)
        if items:
            self._items.delete(tr, now, items, "claimed")

    def take(
        self,
        tr: Transaction,
        now: int,
        candidates: list[Candidate],
        request: ClaimRequest,
        version: int,
        mark: Value,
    ) -> Claim | None:
        """Claim items after `begin_take`, except those that cannot be decoded.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            candidates: The items.
            request: What to claim, and for how long.
            version: The read version of the transaction.
            mark: The value that marks a queue with timers, whose read has begun.
        """
        layout = self._layout
        end = version + int(request.lease * VERSIONS)
        client = request.client
        items: list[Any] = []
        stored_items: list[StoredItem] = []
        delivery_counts: list[int] = []
        held: list[Limit] = []
        payloads = read_payloads(tr, layout, [stored.content for stored, _ in candidates])
        for (stored, limits), payload in zip(candidates, payloads):
            delivery_count = stored.header.attempts + 1
            position = layout.position(stored.key)
            try:
                items.append(self._codec.decode(stored, payload))
            except UndecodableItem as error:
                due = now + int(1000 * self._retry_delay(delivery_count))
                value = with_small_row(tr, layout, stored).value
                claimed = ClaimedItem(request.token, end, delivery_count, (), value)
                self._fail(tr, now, FailedItem(position, claimed, due, client, ""), error)
                if stored.level.group is not None:
                    self._slots.free_now(tr, now, (layout.slot_of_group(stored.level.group),))
                continue
            slots = tuple(map(_slot_of, limits))
            if stored.level.group is not None:
                slots += (layout.slot_of_group(stored.level.group),)
            held += limits
            value = _claimed_value(tr, layout, with_small_row(tr, layout, stored))
            claimed = ClaimedItem(request.token, end, delivery_count, slots, value)
            lease = encode_lease(request.lease, now, delivery_count, stored.header.expires, client)
            self._store(tr, position, claimed, lease)
            stored_items.append(stored)
            delivery_counts.append(delivery_count)
        if not items:
            return None
        if held:
            for limit, n in Counter(held).items():
                limit.hold(tr, n)
        if mark.value is None:
            tr[layout.scheduled] = b""
        keys = tuple(map(_key_of, stored_items))
        return Claim(tuple(items), tuple(delivery_counts), keys, request.token, client)

    def _fail(self, tr: Transaction, now: int, failed: FailedItem, error: UndecodableItem) -> None:
        """Count an undecodable item as a failed attempt."""
        _log.warning("%s", error)
        text, stack = error_text(error), traceback_text(error)
        self._failures.return_failed(tr, now, [failed], text, stack)

    def _begin(self, tr: ReadTransaction, claim: Claim) -> _Reads:
        """Start to read the items of a claim; return their positions and the reads."""
        reads: _Reads = []
        for key in claim.keys:
            if not key.startswith(self._layout.items):
                raise ForeignClaim(self._layout.name, key)
            position = self._layout.position(key)
            reads.append((position, tr.get(self._layout.claims + position)))
        return reads

    def _claimed(self, claim: Claim, reads: _Reads) -> _Ended:
        """Return the items of a claim, by position; raise `LeaseLost` if the claim is over."""
        claimed: _Ended = []
        for position, read in reads:
            stored = read.value
            item = None if stored is None else decode_claim(stored)
            if item is None or item.token != claim.token:
                id = self._layout.item_id(self._layout.items + position)
                raise LeaseLost(claim.items[len(claimed)].id if claim.items else id)
            claimed.append((position, item))
        return claimed

    def _end(self, tr: Transaction, now: int, claim: Claim, reads: _Reads | None = None) -> _Ended:
        """End a claim and return its items; raise `LeaseLost` if the claim is over."""
        ended = self._claimed(claim, self._begin(tr, claim) if reads is None else reads)
        freed = self._begin_frees(tr, ended)
        self._clear(tr, ended)
        if freed:
            self._slots.free(tr, now, freed)
        return ended

    def _begin_frees(self, tr: Transaction, ended: _Ended) -> list[Freed]:
        """Start to read who needs the slots of claimed items; call it before any write."""
        slots: list[bytes] = []
        for _, item in ended:
            slots += item.slots
        return self._slots.begin_free(tr, slots) if slots else []

    def _clear(self, tr: Transaction, ended: _Ended) -> None:
        """Delete claimed items and their leases."""
        layout = self._layout
        for position, item in ended:
            self._items.unpark(tr, layout.claims, position)
            tr.clear(layout.timer_key(layout.leases, item.lease_end, position))

    def claimed(self, tr: ReadTransaction, claim: Claim) -> tuple[bytes, ClaimedItem]:
        """Return the position and the item of a claim of one; raise `LeaseLost` if it is over."""
        ((position, item),) = self._claimed(claim, self._begin(tr, claim))
        return position, item

    def is_stored(self, tr: Transaction, claim: Claim | None) -> bool:
        """Return whether any item of a claim is still stored under its token."""
        if claim is None:
            return False
        stored = [read.value for _, read in self._begin(tr, claim)]
        return any(item is not None and decode_claim(item).token == claim.token for item in stored)

    def ack(self, tr: Transaction, now: int, request: AckRequest) -> None:
        """Acknowledge a claim: delete its items, or keep them as done if the queue does so."""
        self.begin_ack(tr, now, request)()(request.returned)

    def begin_ack(self, tr: Transaction, now: int, request: AckRequest) -> Callable[[], EndWith]:
        """Start to read the items of a claim; return a function that acknowledges the claim.

        It returns a function that stores what the handler returned. Call it at the end of the
        transaction, because what depends on the end of an item may depend on its result.
        """
        begun = self._begin_request(tr, request)
        return lambda: self._finish(
            tr, now, request, self._end(tr, now, request.claim, begun.reads), begun.options
        )

    def _begin_request(self, tr: Transaction, request: AckRequest) -> _Begun:
        """Start to read the items of a claim to acknowledge, and whether they may be kept."""
        reads = self._begin(tr, request.claim)
        options = self._items.options.begin_read(tr.snapshot) if request.may_keep else None
        return _Begun(reads, options)

    def _finish(
        self,
        tr: Transaction,
        now: int,
        request: AckRequest,
        ended: _Ended,
        begun_options: Callable[[], Options | None] | None,
    ) -> EndWith:
        """Delete the items of a claim that has ended, or keep them as done.

        Returns:
            A function that stores what the handler returned, and notes the ends of the items.
        """
        n = len(ended)
        options = begun_options and begun_options()
        keeps = options is not None and options.keeps_done
        self._items.history.note_ended(tr, now, map(itemgetter(1), ended))
        if keeps:
            self._items.tally(tr, now, acked=n, done=n)
        else:
            self._items.tally(tr, now, acked=n)
        outcome: Outcome = "done" if request.discarded is None else "discarded"
        if request.cancelled:
            outcome = "cancelled"
        outcomes: list[Outcome] = [
            "cancelled" if _is_cancelled(item) else outcome for _, item in ended
        ]
        for (position, item), outcome in zip(ended, outcomes):
            if not keeps:
                clear_owned(tr, self._layout, position, item.value)
                continue
            done = Done(
                now,
                item.delivery_count,
                outcome,
                request.discarded,
                item.claimed_at,
                request.claim.client,
                text_end(request.log, text_room(n)),
            )
            self._done.finish(tr, position, item.value, done)

        def end_with(returned: bytes | None) -> None:
            for (position, item), outcome in zip(ended, outcomes):
                if keeps and returned is not None:
                    self._done.store_result(tr, position, returned)
                end = End(outcome, returned, request.discarded)
                note_end(tr, self._layout, now, position, item.value, end)

        return end_with

    def _end_unless_cancelled(self, tr: Transaction, now: int, claim: Claim) -> _Ended:
        """End a claim; finish its items that were cancelled, and return the others."""
        ended = self._end(tr, now, claim)
        cancelled = [each for each in ended if _is_cancelled(each[1])]
        if cancelled:
            self._finish_cancelled(tr, now, claim, cancelled)
        return [each for each in ended if each not in cancelled]

    def _finish_cancelled(
        self, tr: Transaction, now: int, claim: Claim, ended: _Ended, log: str = ""
    ) -> None:
        options = self._items.options.begin_read(tr.snapshot)
        self._finish(tr, now, AckRequest(claim, log=log, cancelled=True), ended, options)(None)

    def cancel(self, tr: Transaction, now: int, claimed: LocatedItem) -> bool:
        """Mark a claimed item, so that it ends with its claim, and wake its worker; return true."""
        layout = self._layout
        position = layout.position(claimed.key)
        timer = layout.timer_key(layout.leases, claimed.lease_end, position)
        stored, lease = tr[layout.claims + position].value, decode_lease(tr[timer].value or b"")
        assert stored is not None  # the item was just found claimed
        item = decode_claim(stored)
        header, content = header_of(item.value)
        value = with_header(header._replace(cancelled=now), content)
        self._items.park(tr, layout.claims, position, encode_claim(item._replace(value=value)))
        if lease is not None:
            tr[timer] = lease_value(lease._replace(expires=CANCELLED))
        tr.add(layout.cancel_counter, ONE)
        return True

    def begin_look(self, tr: Transaction, claims: list[Claim]) -> Callable[[], list[bool]]:
        """Start to read whether claims were cancelled; return a function that waits for it."""
        pending = [self._begin(tr, claim) for claim in claims]
        return lambda: [
            any(
                read.value is not None and _is_cancelled(decode_claim(read.value))
                for _, read in each
            )
            for each in pending
        ]

    def ack_each(
        self, tr: Transaction, now: int, requests: list[AckRequest]
    ) -> list[LeaseLost | None]:
        """Acknowledge several claims; return `None` or `LeaseLost` for each."""
        # Start all reads before waiting for the first, and before the first write.
        begun = [*map(partial(self._begin_request, tr), requests)]
        for request, each in zip(requests, begun):
            try:
                each.ended = self._claimed(request.claim, each.reads)
            except LeaseLost as error:
                each.lease_lost = error
        keys: set[bytes] = set()
        ended: _Ended = []
        for request, each in zip(requests, begun):
            if not keys.isdisjoint(request.claim.keys):  # another request ends them, too
                each.lease_lost = LeaseLost(request.claim.items[0].id)
            if each.lease_lost is None:
                keys.update(request.claim.keys)
                ended += each.ended
        freed = self._begin_frees(tr, ended)
        self._clear(tr, ended)
        for request, each in zip(requests, begun):
            if each.lease_lost is None:
                self._finish(tr, now, request, each.ended, each.options)(request.returned)
        if freed:
            self._slots.free(tr, now, freed)
        return [*map(_lost_of, begun)]

    def extend(
        self,
        tr: Transaction,
        now: int,
        extension: Extension,
        reads: _Reads | None = None,
        *,
        lease: float,
        change: Callable[[bytes], bytes] = _unchanged,
    ) -> None:
        """Renew the lease: it ends `lease` seconds from now. `change` returns the new values."""
        layout = self._layout
        claim, report = extension
        end = tr.get_read_version().wait() + int(lease * VERSIONS)
        reads = self._begin(tr, claim) if reads is None else reads
        for position, item in self._claimed(claim, reads):
            old_timer = layout.timer_key(layout.leases, item.lease_end, position)
            told = report
            if told is None:
                told = lease_of(tr.snapshot[old_timer].value or b"").report
            tr.clear(old_timer)
            claimed = item._replace(lease_end=end, value=change(item.value))
            expires = lease_expiry(header_of(item.value)[0])
            timer = encode_lease(lease, now, item.delivery_count, expires, claim.client, told)
            self._store(tr, position, claimed, timer)
            if end < item.lease_end:
                self._items.count_returned(tr, now, 1)  # waiting clients sleep until a lease ends

    def extend_each(
        self, tr: Transaction, now: int, extensions: Sequence[Extension], *, lease: float
    ) -> list[LeaseLost | None]:
        """Renew the leases of several claims; return `None` or `LeaseLost` for each."""
        pending = [self._begin(tr, claim) for claim, _ in extensions]
        extend = partial(self.extend, tr, now, lease=lease)
        return [_lost(partial(extend, *each)) for each in zip(extensions, pending)]

    def release(
        self,
        tr: Transaction,
        now: int,
        claim: Claim,
        due: int | None = None,
        change: Callable[[bytes], bytes] = _unchanged,
        has_begun: bool = True,
    ) -> None:
        """Return the items, now or when due, as if they had never been claimed.

        `change` returns their new values. What has not begun uses up no start of a rate.
        """
        if not has_begun:
            self._take_back_starts(tr, now, claim)
        ended = self._end_unless_cancelled(tr, now, claim)
        returned = [
            ReturnedItem(position, change(_survived(item.value)), due) for position, item in ended
        ]
        self._items.requeue(tr, now, returned, returned=len(ended))

    def leave(
        self,
        tr: Transaction,
        now: int,
        claim: Claim,
        why: str,
        since: int | None,
        longest: float | None,
        uniform: Callable[[float, float], float],
    ) -> None:
        """Leave the items of a claim to workers that know their jobs, as if it had never been.

        They use up no start of a rate.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            claim: The claim.
            why: The error of the items that become dead letters.
            since: When a worker first left them, in milliseconds since 1970; `None` for now.
            longest: The seconds after which they become dead letters; `None` for never.
            uniform: Returns a number between two others.
        """
        since = now if since is None else min(since, now)
        passed = (now - since) / 1000
        returned: list[ReturnedItem] = []
        self._take_back_starts(tr, now, claim)
        left = self._end_unless_cancelled(tr, now, claim)
        for position, item in left:
            header, content = header_of(item.value)
            if is_cancelled(tr, self._layout, header, header.origin or position):
                self._finish_cancelled(tr, now, claim, [(position, item)])
            elif longest is not None and passed >= longest:
                self._failures.bury(tr, now, position, item.value, why)
            else:
                value = with_header(header._replace(unknown=since), content)
                due = now + int(1000 * unknown_delay(passed, uniform))
                returned.append(ReturnedItem(position, value, due))
        self._items.requeue(tr, now, returned, returned=len(returned))

    def _take_back_starts(self, tr: Transaction, now: int, claim: Claim) -> None:
        """Give the starts of the items of a claim back to the rates of their queue and groups."""
        layout, items = self._layout, self._items
        if not items.options.has_any_rate:
            return
        for position, item in self._claimed(claim, self._begin(tr, claim)):
            timer = layout.timer_key(layout.leases, item.lease_end, position)
            lease = lease_of(tr.snapshot[timer].value or b"")
            began = lease.clock_end - lease.length
            items.groups.take_back(tr, position, began)
            items.rate.take_back(tr, now, began)

    def take_back(self, tr: Transaction, now: int, claimed: LocatedItem) -> bool:
        """Release an item as the client that has claimed it would; return true."""
        self.release(tr, now, Claim((), (), (claimed.key,), claimed.token))
        return True

    def nack(
        self,
        tr: Transaction,
        now: int,
        claim: Claim,
        dues: list[int | None],
        error: str | None,
        traceback: str | None,
        dead: bool,
        log: str,
    ) -> None:
        """Return failed items, each at its due time, or make them dead letters."""
        due_of = dict(zip(claim.keys, dues))
        failed = [
            FailedItem(position, item, due_of[self._layout.items + position], claim.client, log)
            for position, item in self._end_unless_cancelled(tr, now, claim)
        ]
        self._failures.return_failed(tr, now, failed, error, traceback, dead)

    def begin_alone(self, tr: Transaction, now: int, claim: Claim, lease: float) -> None:
        """Note that the item of a claim begins to run alone in its process; renew the lease."""
        self.extend(tr, now, (claim, None), lease=lease, change=_begun_alone)

    def bury(self, tr: Transaction, now: int, claim: Claim) -> bool:
        """Make dead letters of items whose attempts were used up before this claim; return true."""
        for position, item in self._end_unless_cancelled(tr, now, claim):
            self._failures.bury(tr, now, position, item.value)
        return True

    def end_foreign(self, tr: Transaction, now: int, limit: int) -> bool:
        """End or renew leases whose versions are those of another cluster; return if any were."""
        leases = self._layout.leases
        swept = False
        for row in tr.snapshot.get_range(*self._layout.range_of(leases), limit=limit, reverse=True):
            end = self._layout.unpack_timer_key(leases, row.key)[0]
            lease = decode_lease(row.value)
            ahead = end - tr.get_read_version().wait()
            if lease is not None and ahead > lease.length * VERSIONS // 1000:
                self.end_over(tr, now, [row])
                swept = True
        return swept

    def end_over(self, tr: Transaction, now: int, timers: list[KeyValue]) -> list[bytes]:
        """End leases that are over by their versions, and renew those not over by the clock.

        Returns:
            The positions of the items that became ready and have expired.
        """
        layout = self._layout
        ends = [layout.unpack_timer_key(layout.leases, timer.key) for timer in timers]
        # Start all reads before waiting for the first.
        claims = [tr[layout.claims + position] for _, position in ends]
        failed: list[FailedItem] = []
        self._items.clear_timers(tr, timers)
        for timer, (end, position), claim in zip(timers, ends, claims):
            item = None if claim.value is None else decode_claim(claim.value)
            if item is None or item.lease_end != end:
                continue
            lease = lease_of(timer.value)
            left = lease.left(now)
            if left > 0:
                end = tr.get_read_version().wait() + left * VERSIONS // 1000
                self._store(tr, position, item._replace(lease_end=end), timer.value)
            else:
                self._items.unpark(tr, layout.claims, position)
                self._slots.free_now(tr, now, item.slots)
                if _is_cancelled(item):
                    over: Claim = Claim((), (), (), item.token, lease.client)
                    self._finish_cancelled(tr, now, over, [(position, item)], lease.report.log)
                    continue
                failed.append(FailedItem(position, item, None, lease.client, lease.report.log))
        return self._failures.return_failed(tr, now, failed, None, are_lost=True)

    def _store(self, tr: Transaction, position: bytes, item: ClaimedItem, lease: bytes) -> None:
        """Store a claimed item, and the timer of its lease with this value."""
        layout = self._layout
        self._items.park(tr, layout.claims, position, encode_claim(item))
        tr[layout.timer_key(layout.leases, item.lease_end, position)] = lease
