"""Claims: take, acknowledge, extend and return items under a lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from fdbqueue.errors import ForeignClaim, LeaseLost, UndecodableItem, error_text
from fdbqueue.layout.batches import End
from fdbqueue.layout.items import ItemRow, StoredItem
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import (
    MAX_INLINE,
    NO_HEADER,
    NOW,
    ONE,
    Report,
    at_time,
    decode_lease,
    encode_lease,
    text_end,
    text_room,
)
from fdbqueue.operations.failures import (
    Failed,
    Failures,
    begin_last_error,
    traceback_text,
    unknown_delay,
)
from fdbqueue.operations.items import Items
from fdbqueue.operations.maintainers.batches import is_cancelled, note_end
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.payloads import read_payloads, with_small_row
from fdbqueue.operations.timers import (
    LEASE_OVER,
    NO_LEASE,
    VERSIONS,
    begin_lease,
    clear_timers,
    due_after,
)
from fdbqueue.operations.transitions import Change
from fdbqueue.operations.waking import wake
from fdbqueue.types import (
    ENDED,
    Claim,
    KeyValue,
    Options,
    Outcome,
    ReadTransaction,
    State,
    Transaction,
    Value,
)

_log = logging.getLogger("fdbqueue")

_KEPT_SIZE = 4  # items in a batch of acknowledgements for which one counts that may be kept
_RETURNED_BYTES = 5_000  # of a result, which count as one item in such a batch

_attempts_of, _key_of = attrgetter("attempts"), attrgetter("item.key")

BegunOptions: TypeAlias = Callable[[], Options]

EndWith: TypeAlias = Callable[[bytes | None], None]
"""Stores a handler's result and notes the ends of its items."""

Extension: TypeAlias = tuple[Claim, Report | None, float]
"""A claim to extend, its client's new report, if changed, and the seconds of its new lease."""


class ClaimRequest(NamedTuple):
    """A claim of `n` items among the first `within`, with a lease in seconds.

    The token is a UUID with the time of the try.
    """

    n: int
    within: int
    lease: float
    token: bytes
    client: str

    @property
    def size(self) -> int:
        """Its share of a shared transaction, in items."""
        return self.n

    def for_try(self, number: int, now: int) -> ClaimRequest:
        """Return the request for a further try, with its own token."""
        return self._replace(token=at_time(self.token, now) + b"%d" % number)


class AckRequest(NamedTuple):
    """An acknowledgement.

    `discarded` is why the items are discarded. If the queue keeps no done items (`may_keep`),
    `returned` is set only if another job waits for the result.
    """

    claim: Claim
    may_keep: bool = True
    returned: bytes | None = None
    discarded: str | None = None
    log: str = ""
    cancelled: bool = False

    @property
    def size(self) -> int:
        """Its share of a shared transaction, in items that are not kept."""
        n, returned = len(self.claim), len(self.returned or b"")
        if not self.may_keep:
            return n * (1 + returned // _RETURNED_BYTES)
        return n * (_KEPT_SIZE + (returned + len(self.log)) // _RETURNED_BYTES)


class ClaimedItems:
    """The claimed items of one queue.

    A claim holds while its item is stored under its token.

    A lease ends when both the versions of the database and the sweeping client's clock say so: a
    recovery advances the versions, and clocks differ. A lease that only its version ends is renewed
    for its remaining time, as is a lease of another cluster, whose version is further ahead than
    its length.
    """

    def __init__(
        self,
        items: Items,
        codec: RowCodec[Any],
        failures: Failures,
        retry_delay: Callable[[int], float],
    ) -> None:
        self._layout = items.layout
        self._items = items
        self._row = items.levels.row
        self._perform = items.transitions.perform
        self._codec = codec
        self._failures = failures
        self._retry_delay = retry_delay

    # Begin

    def take(
        self,
        tr: Transaction,
        now: int,
        requests: Sequence[tuple[ClaimRequest, Sequence[StoredItem]]],
        version: int,
        slots: tuple[bytes, ...],
        is_marked: bool,
    ) -> list[Claim | None]:
        """Claim items; return a claim for each request. An item that cannot be decoded fails.

        Two transactions conflict on an item's key, or on the range of its group's turn.
        """
        layout = self._layout
        claims: list[Claim | None] = []
        changes: list[Change] = []
        undecodable: list[tuple[Failed, UndecodableItem]] = []
        contents = [each.content for _, found in requests for each in found]
        payloads = iter(read_payloads(tr, layout, contents))
        for request, found in requests:
            end = version + int(request.lease * VERSIONS)
            lease = encode_lease(request.lease, now, request.client)
            items: list[Any] = []
            rows: list[ItemRow] = []
            for stored, payload in zip(found, payloads):
                if stored.turn is None:  # otherwise its group adds a range
                    tr.add_read_conflict_key(stored.key)
                item, attempts = self._as_claimed(tr, stored), stored.header.attempts + 1
                row = ItemRow("claimed", item, attempts, 0, request.token, end, slots, lease)
                changes.append(Change("claimed", ItemRow("ready", stored, 0), row))
                try:
                    items.append(self._codec.decode(stored, payload))
                    rows.append(row)
                except UndecodableItem as error:
                    due = now + int(1000 * self._retry_delay(row.attempts))
                    undecodable.append((Failed(row, due, request.client), error))
            numbers, keys = tuple(map(_attempts_of, rows)), tuple(map(_key_of, rows))
            claim = Claim(tuple(items), numbers, keys, request.token, request.client)
            claims.append(claim if items else None)
        self._perform(tr, now, changes, is_marked=is_marked)
        for failed, why in undecodable:  # counts as a failed attempt
            _log.warning("%s", why)
            self._failures.fail(tr, now, [failed], error_text(why), traceback_text(why))
        return claims

    def _as_claimed(self, tr: Transaction, stored: StoredItem) -> StoredItem:
        item, header = stored, stored.header
        if len(stored.content) > MAX_INLINE:
            item = with_small_row(tr, self._layout, stored)
        if header is NO_HEADER:
            return item
        frees_key = header.unique is not None and header.key is not None
        unique = None if frees_key else header.unique
        claimed = header._replace(unknown=None, step="", unique=unique)
        return item if claimed == header else item.with_header(claimed)

    # Find

    def _begin(self, tr: ReadTransaction, claim: Claim) -> list[Value]:
        layout, reads = self._layout, list[Value]()
        for key in claim.keys:
            if not key.startswith(layout.items):
                raise ForeignClaim(layout.name, key)
            reads.append(tr.get(layout.claims + layout.position(key)))
        return reads

    def _claimed(self, claim: Claim, reads: list[Value]) -> list[ItemRow]:
        claimed: list[ItemRow] = []
        for key, read in zip(claim.keys, reads):
            row = None if read.value is None else self._row("claimed", key, read.value)
            if row is None or row.token != claim.token:
                n = len(claimed)
                id = claim.items[n].id if claim.items else self._layout.item_id(key)
                raise LeaseLost(id)
            claimed.append(row)
        return claimed

    def claimed(self, tr: ReadTransaction, claim: Claim) -> ItemRow:
        """Return the item of a claim of one; raise `LeaseLost`."""
        (row,) = self._claimed(claim, self._begin(tr, claim))
        return row

    def is_stored(self, tr: Transaction, claim: Claim | None) -> bool:
        """Return whether any item of a claim is still stored under its token.

        If not, no transaction in flight can store it any more.
        """
        if claim is None:
            return False
        if any(row.token == claim.token for row in self._stored(claim, self._begin(tr, claim))):
            return True
        for key in claim.keys:
            tr.add_write_conflict_key(key)
        return False

    def begin_look(self, tr: Transaction, claims: list[Claim]) -> Callable[[], list[bool]]:
        """Start to read whether each claim of one item was cancelled, or its item has ended."""
        begun = [(claim, self._begin(tr, claim)) for claim in claims]
        return lambda: [self._is_cancelled(tr, *each) for each in begun]

    def _is_cancelled(self, tr: Transaction, claim: Claim, reads: list[Value]) -> bool:
        rows, position = self._stored(claim, reads), self._layout.position(claim.keys[0])
        row = rows[0] if rows else self._items.at(tr, position)
        if row is None or row.state in ENDED:
            return True
        return row.item.header.cancelled is not None

    def _stored(self, claim: Claim, reads: list[Value]) -> list[ItemRow]:
        return [
            self._row("claimed", key, read.value)
            for key, read in zip(claim.keys, reads)
            if read.value is not None
        ]

    # Acknowledge

    def ack_first(self, tr: Transaction, now: int, request: AckRequest) -> EndWith:
        """Acknowledge a claim before its handler is called, in the same transaction.

        The returned function stores the result at the end.
        """
        reads = self._begin(tr, request.claim)
        options = self._items.options.begin_read(tr.snapshot) if request.may_keep else None
        changes = self._ended(now, request, self._claimed(request.claim, reads), options)
        self._perform(tr, now, [change._replace(end=None) for change in changes])
        return partial(self._end_with, tr, now, changes)

    def _end_with(
        self, tr: Transaction, now: int, changes: list[Change], returned: bytes | None
    ) -> None:
        for _, before, after, end in changes:
            assert before is not None
            assert end is not None
            if after is not None:
                self._items.owned.store_result(tr, after.key, returned)
            note_end(tr, self._layout, now, before.item, end._replace(returned=returned))

    def ack_each(
        self, tr: Transaction, now: int, requests: Sequence[AckRequest]
    ) -> list[LeaseLost | None]:
        """Acknowledge several claims; return `None` or `LeaseLost` for each."""
        begun: list[tuple[list[Value], BegunOptions | None]] = []
        for request in requests:
            may_keep, reads = request.may_keep, self._begin(tr, request.claim)
            options = self._items.options.begin_read(tr.snapshot) if may_keep else None
            begun.append((reads, options))
        results: list[LeaseLost | None] = []
        changes: list[Change] = []
        keys: set[bytes] = set()
        for request, (reads, options) in zip(requests, begun):
            claim, lost = request.claim, None
            try:
                rows = self._claimed(claim, reads)
                if not keys.isdisjoint(claim.keys):  # another request ends them, too
                    raise LeaseLost(claim.items[0].id)
                keys.update(claim.keys)
                changes += self._ended(now, request, rows, options)
            except LeaseLost as error:
                lost = error
            results.append(lost)
        self._perform(tr, now, changes)
        return results

    def _ended(
        self,
        now: int,
        request: AckRequest,
        rows: list[ItemRow],
        begun_options: BegunOptions | None,
    ) -> list[Change]:
        keeps = begun_options is not None and begun_options().keeps_done
        changes: list[Change] = []
        for row in rows:
            outcome: Outcome = "done" if request.discarded is None else "discarded"
            item = row.item
            if request.cancelled or item.header.ends_with_claim:
                outcome, item = "cancelled", item.with_header(item.header._replace(waits=b""))
            done = None
            if keeps:
                done = ItemRow(
                    "done",
                    item,
                    row.attempts,
                    finished_at=now,
                    outcome=outcome,
                    error=request.discarded,
                    started_at=row.claimed_at,
                    client=request.claim.client,
                    log=text_end(request.log, text_room(len(rows))),
                )
            end = End(outcome, request.returned, request.discarded)
            changes.append(Change("acked", row, done, end))
        return changes

    # Cancel

    def _uncancelled(self, tr: Transaction, now: int, claim: Claim) -> list[ItemRow]:
        """Return a claim's items, without cancelled ones that have no steps, which end."""
        rows = self._claimed(claim, self._begin(tr, claim))
        cancelled = [row for row in rows if row.item.header.ends_with_claim]
        if cancelled:
            self._end_cancelled(tr, now, cancelled, claim.client)
        return [row for row in rows if not row.item.header.ends_with_claim]

    def _end_cancelled(
        self, tr: Transaction, now: int, rows: list[ItemRow], client: str, log: str = ""
    ) -> None:
        options = self._items.options.begin_read(tr.snapshot)
        request = AckRequest(Claim((), (), (), b"", client), log=log, cancelled=True)
        self._perform(tr, now, self._ended(now, request, rows, options))

    def cancel(self, tr: Transaction, now: int, row: ItemRow, force: bool) -> None:
        """Mark a claimed item, or end it now with `force`; wake its worker."""
        if force:
            lease = begin_lease(tr.snapshot, self._layout, row)() or NO_LEASE
            self._end_cancelled(tr, now, [row], lease.client, lease.report.log)
        else:
            marked = row.with_header(row.item.header._replace(cancelled=now))
            self._perform(tr, now, [Change("marked", row, marked)])
        tr.add(self._layout.cancel_counter, ONE)

    # Extend

    def extend(self, tr: Transaction, now: int, extension: Extension, **fields: Any) -> None:
        """Renew a lease from now; `fields` change the headers."""
        (lost,) = self.extend_each(tr, now, [extension], **fields)
        if lost is not None:
            raise lost

    def extend_each(
        self, tr: Transaction, now: int, extensions: Sequence[Extension], **fields: Any
    ) -> list[LeaseLost | None]:
        """Extend several claims; return `None` or `LeaseLost` for each."""
        version = tr.get_read_version().wait()
        results: list[LeaseLost | None] = []
        changes: list[Change] = []
        pending = [self._begin(tr, claim) for claim, _, _ in extensions]
        for (claim, report, lease), begun in zip(extensions, pending):
            end = version + int(lease * VERSIONS)
            try:
                rows = self._claimed(claim, begun)
                results.append(None)
            except LeaseLost as error:
                rows = []
                results.append(error)
            for row in rows:
                told = report
                if told is None:
                    told = (begin_lease(tr.snapshot, self._layout, row)() or NO_LEASE).report
                value = encode_lease(lease, now, claim.client, told)
                renewed = row._replace(lease_end=end, lease=value)
                if fields:
                    renewed = renewed.with_header(row.item.header._replace(**fields))
                changes.append(Change("extended", row, renewed))
                if end < row.lease_end:
                    wake(tr, self._layout.waiters, 1)  # clients sleep until a lease ends
        self._perform(tr, now, changes)
        return results

    # Return

    def release(
        self,
        tr: Transaction,
        now: int,
        claim: Claim,
        due: int | None = None,
        **fields: Any,
    ) -> None:
        """Return a claim's items, now or when due; `fields` change their headers."""
        changes: list[Change] = []
        state: State = "ready" if due is None else "delayed"
        for row in self._uncancelled(tr, now, claim):
            header = row.item.header
            if header.alone == NOW:  # it ran alone in its worker, and did no harm
                header = header._replace(alone=0)
            if fields:
                header = header._replace(**fields)
            item = row.with_header(header).item
            changes.append(Change("returned", row, ItemRow(state, item, header.attempts, due or 0)))
        self._perform(tr, now, self._items.unique_keys.hold_again(tr, changes))

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
        """Leave a claim's item to workers that know its job.

        It dies `longest` seconds after a worker first left it (`since`).
        """
        since = now if since is None else min(since, now)
        passed = (now - since) / 1000
        row = self.claimed(tr, claim)
        header = row.item.header
        first = header.origin or self._layout.position(row.key)
        self.take_back_starts(tr, now, claim)
        if not header.has_begun and is_cancelled(tr, self._layout, header, first):
            self._end_cancelled(tr, now, [row], claim.client)
        elif longest is not None and passed >= longest:
            self.bury(tr, now, claim, why)
        else:
            due = now + int(1000 * unknown_delay(passed, uniform))
            self.release(tr, now, claim, due, unknown=since)

    def take_back_starts(self, tr: Transaction, now: int, claim: Claim) -> None:
        """Give a claim's starts back to the rates, before it ends."""
        layout, items = self._layout, self._items
        if not items.options.has_any_rate:
            return
        for row in self._claimed(claim, self._begin(tr, claim)):
            lease = begin_lease(tr.snapshot, layout, row)() or NO_LEASE
            began = lease.clock_end - lease.length
            items.groups.take_back(tr, layout.position(row.key), began)
            items.rate.take_back(tr, now, began)

    def take_back_turns(self, tr: Transaction, claim: Claim) -> None:
        """Give a claim's turns back to the groups, before it ends."""
        if self._items.options.has_groups:
            for row in self._claimed(claim, self._begin(tr, claim)):
                self._items.groups.take_back_turn(tr, row.item)

    def take_back(self, tr: Transaction, now: int, row: ItemRow) -> None:
        """Release an item as its client would."""
        self.release(tr, now, Claim((), (), (row.key,), row.token))

    def nack(
        self,
        tr: Transaction,
        now: int,
        claim: Claim,
        delays: list[float],
        error: str | None,
        traceback: str | None,
        dead: bool,
        log: str,
    ) -> None:
        """Return failed items, each after its delay in seconds, or make them dead letters."""
        delay_of = dict(zip(claim.keys, delays))
        failed = [
            Failed(row, due_after(now, delay_of[row.key]), claim.client, log)
            for row in self._uncancelled(tr, now, claim)
        ]
        self._failures.fail(tr, now, failed, error, traceback, dead)

    def bury(self, tr: Transaction, now: int, claim: Claim, why: str | None = None) -> None:
        """Turn a claim's items into dead letters, without counting the attempt."""
        changes: list[Change] = []
        for row in self._uncancelled(tr, now, claim):
            header, position = row.item.header, self._layout.position(row.key)
            error = why or begin_last_error(tr, self._layout, position)()
            if error is None and header.alone:
                error = LEASE_OVER
            died = ItemRow("dead", row.item, header.attempts, died_at=now, error=error)
            changes.append(Change("buried", row, died, End("dead", error=error)))
        self._perform(tr, now, changes)

    # The end of a lease

    def end_foreign(self, tr: Transaction, now: int, limit: int) -> bool:
        """End or renew leases of another cluster; return whether there were any."""
        leases, shards = self._layout.leases, self._items.options.known_shards(tr)
        ranges = self._layout.shard_ranges(leases, shards)
        reads = [tr.snapshot.get_range(*each, limit=limit, reverse=True) for each in ranges]
        swept = False
        for row in chain.from_iterable(reads):
            end = self._layout.unpack_timer_key(leases, row.key)[0]
            lease = decode_lease(row.value)
            ahead = end - tr.get_read_version().wait()
            if lease is not None and ahead > lease.length * VERSIONS // 1000:
                self.end_over(tr, now, [row])
                swept = True
        return swept

    def end_over(self, tr: Transaction, now: int, timers: list[KeyValue]) -> None:
        """End leases that are over; renew leases that the clock leaves."""
        layout = self._layout
        ends = [layout.unpack_timer_key(layout.leases, timer.key) for timer in timers]
        claims = read_all(tr, [layout.claims + position for _, position in ends])
        failed: list[Failed] = []
        renewed: list[Change] = []
        clear_timers(tr, timers)
        for timer, (end, position), claim in zip(timers, ends, claims):
            if claim is None:
                continue
            row = self._row("claimed", layout.items + position, claim)
            if row.lease_end != end:
                continue
            lease = decode_lease(timer.value) or NO_LEASE
            left = lease.left(now)
            if left > 0:
                end = tr.get_read_version().wait() + left * VERSIONS // 1000
                after = row._replace(lease_end=end, lease=timer.value)
                renewed.append(Change("extended", row, after))
            elif row.item.header.ends_with_claim:
                self._end_cancelled(tr, now, [row], lease.client, lease.report.log)
            else:
                failed.append(Failed(row, None, lease.client, lease.report.log))
        self._perform(tr, now, renewed)
        self._failures.fail(tr, now, failed, None, are_lost=True)
