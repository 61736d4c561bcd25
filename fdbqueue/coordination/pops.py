"""Shared pops: threads combine, and a leader serves waiting processes."""

from __future__ import annotations

import _thread
import math
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, groupby, islice
from operator import attrgetter, itemgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from fdbqueue.coordination.combiner import MAX_ITEMS, Batch
from fdbqueue.coordination.sans_io import sleep_on
from fdbqueue.database.clock import milliseconds, uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import MAX_RETRY_DELAY, run
from fdbqueue.errors import error_classes
from fdbqueue.layout.items import ItemRow, StoredItem
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import decode_request, encode_request, pack_staged, unpack_staged
from fdbqueue.operations.items import BATCH_BYTES, POPPED, Items
from fdbqueue.operations.payloads import read_payloads, write_pieces
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.operations.transitions import Change
from fdbqueue.types import Database, Future, KeyValue, ReadTransaction, Transaction

_T = TypeVar("_T")

Pop: TypeAlias = tuple[int, bool]
"""The number of items, and whether to start at the end."""

number_of, _end_of = itemgetter(0), itemgetter(1)
_content_of = attrgetter("content")

REQUEST_TIMEOUT = 5.0
"""Seconds after which a waiting process is considered dead."""

_MAX_REQUESTS = 64  # that one transaction serves

_CONTENDED = 1.0  # seconds that a process expects contention to last after it met some

_IDLE_CHECK = 0.002  # seconds between checks whether the threads of a leader still pop

# A process that is not served within this time tries to serve: the leader is dead or stopped.
_TAKEOVER = 0.1  # seconds; the actual time is random, up to twice as long

_MAX_LEADERSHIP = 0.030  # seconds that a process leads while its own threads go on popping

_WITHDRAWALS = 3  # tries of a failed pop to withdraw its request
_MAX_WITHDRAWAL = 1_000  # milliseconds for each of them

_RACES = 2  # tries in a row to take the first items, before this process becomes the leader

_wrote = attrgetter("wrote")

_KeyRange: TypeAlias = tuple[bytes, bytes]

Staged: TypeAlias = list[list[StoredItem]]
"""The staged items for each pop of a request."""


class Pops(Generic[_T]):
    """The pops of one queue."""

    def __init__(self, items: Items, codec: RowCodec[_T]) -> None:
        self.items = items
        self._codec = codec

    def pop_each(self, tr: Transaction, now: int, requests: Sequence[Pop]) -> list[list[_T]]:
        """Pop for the first requests, at least one, while there is room."""
        return self.pop(tr, now, requests, len(requests))[0]

    def pop(
        self, tr: Transaction, now: int, pops: Sequence[Pop], n_own: int
    ) -> tuple[list[list[_T]], list[list[StoredItem]]]:
        """Delete the items of the first pops, while the transaction has room.

        The first pop gets all its items, regardless of size. Only the first `n_own` pops are this
        process's; the result has their items, and the stored items of the others. Raise
        `UndecodableItem` for an own item.
        """
        left = sum(map(number_of, pops))
        if self.items.options.has_any_rate:
            left = self.items.rate.room(tr, now, self.items.options.read(tr), left)
        own: list[list[_T]] = []
        others: list[list[StoredItem]] = []
        size = 0
        for at_max, group in groupby(pops, _end_of):
            counts = [*map(number_of, group)]
            first = self.items.first(tr, min(sum(counts), left), at_max)
            taken = ours = 0
            for n in counts:
                found = first[taken : taken + n]
                if len(pops) > 1:
                    size += sum(item.size for item in found)
                if size > BATCH_BYTES and (own or others):
                    break
                taken += len(found)
                if len(own) < n_own:
                    own.append(self.decoded(tr, found))
                    ours = taken
                else:
                    others.append(found)
            self.items.pop(tr, now, first[:ours], first[ours:taken])
            left -= taken
            if size > BATCH_BYTES:
                break
        return own, others

    def decoded(self, tr: ReadTransaction, items: list[StoredItem]) -> list[_T]:
        """Return stored items as their user sees them."""
        payloads = read_payloads(tr, self.items.layout, [*map(_content_of, items)])
        return [*map(self._codec.decode, items, payloads)]


class PopRequest(NamedTuple):
    """The request of a process that waits for items."""

    key: bytes
    pops: list[Pop]


class PopRequests:
    """The requests of a queue, the items staged for them, and the name of the leader.

    The read version in their keys orders requests roughly by arrival.
    """

    def __init__(self, layout: Layout, items: Items) -> None:
        self._layout = layout
        self._items = items
        # For conflicts with a leader's end; never written.
        self._leader_ends = layout.entry_key(layout.leader, "ends")

    def seconds_to_sweep(self, tr: Transaction) -> float:
        """Return the seconds until a request's process may be dead, or `math.inf`."""
        prefixes = self._layout.requests, self._layout.results
        ranges = map(self._layout.range_of, prefixes)
        both = [tr.snapshot.get_range(begin, end, limit=1) for begin, end in ranges]
        return REQUEST_TIMEOUT if any(map(list, both)) else math.inf

    def begin_read(self, tr: Transaction) -> Iterable[KeyValue]:
        """Start to read the first requests."""
        begin, end = self._layout.range_of(self._layout.requests)
        return tr.snapshot.get_range(begin, end, limit=_MAX_REQUESTS, streaming_mode=WANT_ALL)

    def live(self, tr: Transaction, rows: Iterable[KeyValue]) -> list[PopRequest]:
        """Return the requests of live processes."""
        requests = [PopRequest(row.key, decode_request(row.value)) for row in rows]
        if not requests:
            return []
        version = tr.get_read_version().wait()
        (begin, end), _ = _ranges_by_life(self._layout, self._layout.requests, version)
        return [request for request in requests if begin <= request.key < end]

    def write(self, tr: Transaction, name: bytes, pops: list[Pop]) -> bytes:
        """Write a request, which conflicts with the end of the leadership; return its key."""
        version = tr.get_read_version().wait()
        key = self._layout.entry_key(self._layout.requests, version, name)
        tr[key] = encode_request(pops, is_next=False)
        tr.add_read_conflict_key(self._leader_ends)
        return key

    def pass_leadership(self, tr: Transaction, following: PopRequest | None) -> None:
        """Make a request's process the leader, or with `None` no one."""
        layout = self._layout
        if following is None:
            # A request written at the same time would have no leader: conflict with it.
            tr.add_read_conflict_range(*layout.range_of(layout.requests))
            tr.add_write_conflict_key(self._leader_ends)
            tr.clear(layout.leader)
            return
        tr.add_read_conflict_key(following.key)
        tr[following.key] = encode_request(following.pops, is_next=True)
        _, tr[layout.leader] = layout.unpack_entry(layout.requests, following.key)

    def stage(self, tr: Transaction, request: bytes, pops: Staged) -> None:
        """Replace a request by popped items."""
        tr.add_read_conflict_key(request)
        tr.clear(request)
        position = self._layout.position
        packed = pack_staged([[(position(item.key), item.value) for item in pop] for pop in pops])
        write_pieces(tr, self._layout.result_prefix(request), packed)

    def take(self, tr: Transaction, request: bytes) -> Staged | None:
        """Delete and return a request's staged items."""
        result = self._layout.range_of(self._layout.result_prefix(request))
        pieces = [row.value for row in tr.get_range(*result, streaming_mode=WANT_ALL)]
        if not pieces:
            return None
        tr.clear_range(*result)
        items, item = self._layout.items, self._items.levels.item
        return [
            [item(items + position, value) for position, value in pop]
            for pop in unpack_staged(b"".join(pieces))
        ]

    def note_taken(self, tr: Transaction, now: int, staged: Staged) -> None:
        """Count taken items as popped."""
        changes = [Change("collected", row, None, POPPED) for row in self._rows(staged)]
        self._items.transitions.perform(tr, now, changes)

    def unstage(self, tr: Transaction, now: int, staged: Staged) -> int:
        """Return taken items to their positions; return their size."""
        rows, changes = self._rows(staged), list[Change]()
        for row in rows:
            # The group may be in another shard by now: its staged items do not keep it.
            item = self._items.shards.present(tr, row.item)
            changes.append(Change("unstaged", row, row._replace(state="ready", item=item)))
        changes = self._items.unique_keys.hold_again(tr, changes)
        self._items.transitions.perform(tr, now, changes)
        return sum(len(row.key) + len(row.item.value) for row in rows)

    def _rows(self, staged: Staged) -> list[ItemRow]:
        items = chain.from_iterable(staged)
        return [ItemRow("claimed", item, item.header.attempts) for item in items]

    def delete(self, tr: Transaction, now: int, request: bytes) -> int:
        """Delete a request and put back its items; return their size."""
        size = self.unstage(tr, now, self.take(tr, request) or [])
        tr.clear(request)
        return size

    def sweep(self, tr: Transaction, now: int) -> bool:
        """Delete dead processes' requests; return false if items are left."""
        layout, left = self._layout, BATCH_BYTES
        version = tr.get_read_version().wait()
        for prefix in (layout.requests, layout.results):
            _, dead = _ranges_by_life(layout, prefix, version)
            for begin, end in dead:
                for row in tr.snapshot.get_range(begin, end, limit=MAX_ITEMS):
                    written, name, *_ = layout.unpack_entry(prefix, row.key)
                    request = layout.entry_key(layout.requests, written, name)
                    left -= self.delete(tr, now, request)
                    if left < 0:
                        return False
        return True


def _ranges_by_life(
    layout: Layout, prefix: bytes, version: int
) -> tuple[_KeyRange, list[_KeyRange]]:
    """Return the range of possibly live processes' rows, and the ranges of the others.

    Versions later than this transaction's are from another cluster's backup.
    """
    oldest = version - int(REQUEST_TIMEOUT * VERSIONS)
    first_alive = layout.timer_key(prefix, max(0, oldest), b"")
    after_alive = layout.timer_key(prefix, version + 1, b"")
    begin, end = layout.range_of(prefix)
    return (first_alive, after_alive), [(begin, first_alive), (after_alive, end)]


@dataclass(frozen=True, slots=True)
class _Served(Generic[_T]):
    """The end of a batch, with the items of its first pops.

    `wrote` is also true if the commit must confirm a read.
    """

    taken: list[list[_T]]
    wrote: bool = True
    leading_as: bytes | None = None
    met_others: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A batch that needs another transaction, as leader or after `watch`."""

    request: bytes
    wrote: bool
    leading_as: bytes | None = None
    watch: Future | None = None


class StagedPops(Generic[_T]):
    """The pops of one process on a queue of a cluster, served together with other processes'.

    After a conflict, the process leaves a request and sleeps, and the leader takes items for it.
    The leader matters only for speed. See `docs/design/staged-pops.md`.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues", Extensions.
    """

    def __init__(self, pops: Pops[_T], requests: PopRequests) -> None:
        self.pops = pops
        self.layout = pops.items.layout
        self.requests = requests
        (self._id,) = uuids(1)
        self._leading_as: bytes | None = None
        self._leading_until = 0.0
        self._contended_until = 0.0
        self._numbers = count()
        self._last_number = 0
        self._is_busy = False

    def perform(self, db: Database, batch: Batch[Pop]) -> list[list[_T]]:
        """Pop for the first requests of a batch, while there is room."""
        now = time.monotonic()
        self._last_number = next(self._numbers)
        leads, is_contended = self._leading_as is not None, now < self._contended_until
        pops = _Pops(
            self,
            batch,
            name=b"%b%d" % (self._id, self._last_number),
            now=milliseconds(),
            begins_alone=not leads and not is_contended,
            leading_as=self._leading_as,
        )
        if not leads:
            self._leading_until = now + _MAX_LEADERSHIP
        self._is_busy = True
        try:
            served = self._until_served(db, pops)
        finally:
            self._is_busy = False
        if pops.tries > 1 or served.met_others:
            self._contended_until = time.monotonic() + _CONTENDED
        before, self._leading_as = self._leading_as, served.leading_as
        if served.leading_as is not None and served.leading_as != before:
            try:
                # Unlike `Thread.start`, this call leaves nothing behind if it is interrupted.
                _thread.start_new_thread(self._resign_when_idle, (db, served.leading_as))
            except RuntimeError:  # the system has no thread, or the program ends
                self._resign(db, served.leading_as)
        return served.taken

    def _until_served(self, db: Database, pops: _Pops[_T]) -> _Served[_T]:
        try:
            while True:
                pops.may_keep_leading = time.monotonic() < self._leading_until
                outcome = run_once(db, pops.perform, self.layout.receipts, _wrote)
                if isinstance(outcome, _Served):
                    return outcome
                pops.request, pops.leading_as = outcome.request, outcome.leading_as
                pops.takes_over = False
                if outcome.watch is not None:
                    patience = _TAKEOVER * random.uniform(1, 2)
                    pops.takes_over = sleep_on([outcome.watch], patience) is None
                self._leading_until = time.monotonic() + _MAX_LEADERSHIP
        except BaseException:
            if pops.request is not None:
                self._withdraw(db, pops.request)
            raise

    def _resign_when_idle(self, db: Database, name: bytes) -> None:
        seen = 0
        while self._leading_as == name:
            time.sleep(_IDLE_CHECK)
            if self._is_busy or seen != self._last_number:
                seen = self._last_number
                continue
            self._resign(db, name)

    def _resign(self, db: Database, name: bytes) -> None:
        self._leading_as = None
        with suppress(*error_classes()):  # a waiting process will take over
            run(db, partial(self._pass_on, name=name))

    def _pass_on(self, tr: Transaction, name: bytes) -> None:
        if tr[self.layout.leader].value == name:
            live = self.requests.live(tr, self.requests.begin_read(tr))
            self.requests.pass_leadership(tr, next(iter(live), None))

    def _withdraw(self, db: Database, request: bytes) -> None:
        now = milliseconds()

        def body(tr: Transaction) -> None:
            tr.options.set_timeout(_MAX_WITHDRAWAL)
            self.requests.delete(tr, now, request)

        for _ in range(_WITHDRAWALS):
            with suppress(*error_classes()):  # otherwise a sweep deletes the request
                run(db, body)
                break


@dataclass
class _Pops(Generic[_T]):
    """The transactions that serve a batch of pops.

    Attributes:
        begins_alone: Whether the first transaction ignores other processes.
        leading_as: The name under which this process leads.
        takes_over: Whether it waited so long that the leader may be dead.
        ahead: The read of the next items, which would end without a reference.
    """

    queue: StagedPops[_T]
    batch: Batch[Pop]
    name: bytes
    now: int
    begins_alone: bool
    leading_as: bytes | None
    request: bytes | None = None
    takes_over: bool = False
    may_keep_leading: bool = False
    tries: int = 0
    races: int = 0
    ahead: object = None

    def perform(self, tr: Transaction) -> _Served[_T] | _Waiting:
        self.tries += 1
        if self.tries == 2:
            tr.options.set_max_retry_delay(MAX_RETRY_DELAY)
        if self.tries == 1 and self.begins_alone:
            return self._take_alone(tr)
        return self._take_turns(tr)

    def _take_alone(self, tr: Transaction) -> _Served[_T]:
        self.races += 1
        is_older = self.batch.join(tr)
        taken = self.queue.pops.pop_each(tr, self.now, self.batch)
        # The commit has to confirm that the queue was empty if the read version may be too old.
        return _Served(taken, wrote=any(taken) or is_older)

    def _take_turns(self, tr: Transaction) -> _Served[_T] | _Waiting:
        layout, all_requests, request = self.queue.layout, self.queue.requests, self.request
        leader = tr.snapshot[layout.leader]
        requests = None
        if self.leading_as:
            self._read_ahead(tr)
            requests = all_requests.begin_read(tr)
        if request is not None:
            waits = tr[request]
            staged = all_requests.take(tr, request)
            if staged is not None:
                decoded = [self.queue.pops.decoded(tr, items) for items in staged]
                all_requests.note_taken(tr, self.now, staged)
                return _Served(decoded)
            request = request if waits.present() else None
        holder = leader.value
        if holder not in (None, self.leading_as, self.name) and not self.takes_over:
            key = self._request(tr, request)
            return _Waiting(key, wrote=request is None, watch=tr.watch(key))
        tr.add_read_conflict_key(layout.leader)
        self.races += 1
        if self.races % (_RACES + 1) == 0:
            return self._become_leader(tr, request)
        if requests is None:
            requests = all_requests.begin_read(tr)
        return self._serve(tr, request, holder, all_requests.live(tr, requests))

    def _read_ahead(self, tr: Transaction) -> None:
        if self.batch.line is not None and self.batch.line.expected > 1:
            begin, end = self.queue.layout.all_items
            _, at_max = self.batch[0]
            n = min(2 * self.batch.line.expected, MAX_ITEMS)
            self.ahead = tr.snapshot.get_range(begin, end, n, at_max, WANT_ALL)

    def _become_leader(self, tr: Transaction, request: bytes | None) -> _Waiting:
        tr[self.queue.layout.leader] = self.name
        begin, end = self.queue.layout.all_items
        tr.add_write_conflict_range(begin, begin + b"\x00")
        tr.add_write_conflict_range(end[:-1] + b"\xfe", end)
        return _Waiting(self._request(tr, request), wrote=True, leading_as=self.name)

    def _request(self, tr: Transaction, request: bytes | None) -> bytes:
        if request is None:
            self.batch.join(tr)
            request = self.queue.requests.write(tr, self.name, self.batch)
        return request

    def _serve(
        self,
        tr: Transaction,
        request: bytes | None,
        holder: bytes | None,
        requests: list[PopRequest],
    ) -> _Served[_T]:
        """Take the first items, stage the next, keep or pass on the leadership."""
        rows = self.queue.requests
        others = [each for each in requests if each.key != request]
        is_older = self.batch.join(tr)
        is_leader = holder in (self.leading_as, self.name) and holder is not None
        keeps = self.may_keep_leading or (is_leader and not others)
        following = others.pop(0) if others and not keeps else None
        pops = [*self.batch, *chain.from_iterable(each.pops for each in others)]
        taken, staged = self.queue.pops.pop(tr, self.now, pops, len(self.batch))
        if holder is None and not requests and not any(taken):
            return _Served(taken, wrote=is_older)
        if request is not None:
            tr.clear(request)
        remaining = iter(staged)
        for each in others:
            result = [*islice(remaining, len(each.pops))]
            if not result:
                break
            rows.stage(tr, each.key, result)
        if keeps:
            if not is_leader:
                holder = tr[self.queue.layout.leader] = self.name
        elif following is not None or holder is not None:
            rows.pass_leadership(tr, following)
        return _Served(
            taken,
            leading_as=holder if keeps else None,
            met_others=bool(others or following),
        )
