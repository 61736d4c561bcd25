"""The pops of several processes, served together: one is the leader, the others sleep."""

from __future__ import annotations

import _thread
import random
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, groupby, islice
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from fdbqueue.coordination.batches import MAX_ITEMS
from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.leading import SharedBatch
from fdbqueue.coordination.contention.messages import MAX_CONTENT, NotShareable
from fdbqueue.coordination.contention.process import CONTENDED, IDLE_CHECK, Pairs
from fdbqueue.coordination.contention.requests import Pop, Request, Requests, Staged
from fdbqueue.coordination.sans_io import sleep_on
from fdbqueue.database import clock
from fdbqueue.database.clock import milliseconds, uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import MAX_RETRY_DELAY, run
from fdbqueue.errors import UndecodableItem, error_classes
from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.rows import RowCodec
from fdbqueue.operations.batches import POPPED
from fdbqueue.operations.items import BATCH_BYTES, Items
from fdbqueue.operations.payloads import read_payloads
from fdbqueue.operations.views.staged import REQUEST_TIMEOUT
from fdbqueue.types import Database, Future, KeyValue, RangeResult, Transaction

_T = TypeVar("_T")

_MAX_POPS = 64  # the most items that a process asks the leader for

# A process that is not served within this time tries to serve: the leader is dead or stopped.
_TAKEOVER = 0.1  # seconds; the actual time is random, up to twice as long

_MAX_LEADERSHIP = 0.030  # seconds that a process leads while its own threads go on popping

_WITHDRAWALS = 3  # tries of a failed pop to withdraw its request
_MAX_WITHDRAWAL = 1_000  # milliseconds for each of them

# Seconds after a commit during which a transaction reads at the commit's version, which saves a
# request for a read version. If that version is too old, the transaction conflicts.
_FRESH = 0.005

_RACES = 2  # tries in a row to take the first items, before this process becomes the leader


class _Standing(NamedTuple):
    """The relation of a batch of pops to other processes when a transaction begins.

    Attributes:
        leading_as: The name under which this process is the leader.
        request: The key of the request with which the batch waits.
        takes_over: Whether it waited for too long: the leader may be dead.
        may_keep_leading: Whether this process may lead after the transaction.
    """

    leading_as: bytes | None
    request: bytes | None = None
    takes_over: bool = False
    may_keep_leading: bool = False


@dataclass(frozen=True, slots=True)
class _Served(Generic[_T]):
    """The end of a batch.

    Attributes:
        taken: The items of the first pops of the batch.
        wrote: Whether the transaction wrote anything, or has to be confirmed.
        leading_as: The name under which this process remains the leader.
        met_others: Whether it served others.
        error: The items that were staged cannot be decoded, and are back at their positions.
    """

    taken: list[list[_T]]
    wrote: bool = True
    leading_as: bytes | None = None
    met_others: bool = False
    error: UndecodableItem | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A batch that needs another transaction.

    Attributes:
        request: The key of its request.
        wrote: Whether this transaction wrote anything.
        leading_as: The name under which this process became the leader, to serve next.
        watch: Fires when the request is served; `None` for the leader.
    """

    request: bytes
    wrote: bool
    leading_as: bytes | None = None
    watch: Future | None = None


def _wrote(outcome: _Served[Any] | _Waiting) -> bool:
    return outcome.wrote


class StagedPops(Generic[_T]):
    """The pops of one process on one queue and database, served together with other processes'.

    Without contention, a batch of pops takes the first items in one transaction. So it always does
    on the embedded engine, where a second attempt costs less than a request. On a cluster, after a
    conflict, the process checks whether another process is the *leader*. If so, it leaves a
    request, which conflicts with nothing, and sleeps on a watch. In one transaction the leader
    takes the first items for its own pops, stages the next items as the results of the requests,
    oldest request first, and keeps the leadership or passes it on to a waiting process. The process
    of a request takes its result in another transaction; only then are the items popped.

    The leader matters only for speed. Each transaction conflicts on the keys that it relies on: the
    items that it takes, the requests that it serves, and the key that names the leader. So each
    item goes to one pop, in strict order, even if several processes serve at once. A process that
    is not served in time tries to serve. After `REQUEST_TIMEOUT` seconds the request of a dead
    process is deleted, and the items of its result return to their positions. A process that was
    only slow finds neither, and starts again. Every write takes effect exactly once, as with
    `run_once`.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues", Extensions.
    """

    def __init__(self, layout: Layout, items: Items, codec: RowCodec[_T]) -> None:
        self.layout = layout
        self.items = items
        self.codec = codec
        self.requests = Requests(layout, items)
        (self._id,) = uuids(1)
        self._leading_as: bytes | None = None
        self._leading_until = 0.0
        self.contended_until = 0.0
        """Until then this process expects conflicts with others, by the monotonic clock."""
        self._last_version = 0
        self._fresh_until = 0.0
        self._numbers = count()
        self._last_number = 0
        self._is_busy = False
        self._size = 1
        self._next_sweep = 0.0

    def perform(self, db: Database, batch: Batch[Pop]) -> Sequence[list[_T]]:
        """Return the items of the first pops of a batch: those that fit into one transaction."""
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + REQUEST_TIMEOUT
            self.sweep(db)
        self._last_number = next(self._numbers)
        may_stage = not getattr(db, "conflicts_are_cheap", False)
        leads, is_contended = self._leading_as is not None, now < self.contended_until
        may_be_fresh = may_stage and (leads or not is_contended)
        is_fresh = may_be_fresh and clock.monotonic() < self._fresh_until
        pops = _Pops(
            self,
            batch,
            batch.guests_at if isinstance(batch, SharedBatch) else (),
            name=b"%b%d" % (self._id, self._last_number),
            now=milliseconds(),
            expected=self._size,
            may_stage=may_stage,
            begins_alone=not leads and not is_contended,
            read_version=self._last_version if is_fresh else None,
        )
        if not leads:
            self._leading_until = now + _MAX_LEADERSHIP
        self._is_busy = True
        try:
            served = self._until_served(db, pops)
        finally:
            self._is_busy = False
        if pops.tries > 1 or served.met_others:
            self.contended_until = time.monotonic() + CONTENDED
        before, self._leading_as = self._leading_as, served.leading_as
        if served.leading_as is not None and served.leading_as != before:
            try:
                # Unlike `Thread.start`, this call leaves nothing behind if it is interrupted.
                _thread.start_new_thread(self._resign_when_idle, (db, served.leading_as))
            except RuntimeError:  # the system has no thread, or the program ends
                self._resign(db, served.leading_as)
        self._size = max(1, len(served.taken))
        if served.error is not None:
            raise served.error
        return served.taken

    def _until_served(self, db: Database, pops: _Pops[_T]) -> _Served[_T]:
        standing = _Standing(self._leading_as)
        try:
            while True:
                may_keep_leading = time.monotonic() < self._leading_until
                standing = standing._replace(may_keep_leading=may_keep_leading)
                body = partial(pops.perform, standing=standing)
                outcome = run_once(db, body, self.layout.receipts, _wrote, self._note)
                if isinstance(outcome, _Served):
                    return outcome
                standing = _Standing(outcome.leading_as, outcome.request)
                if outcome.watch is not None:
                    patience = _TAKEOVER * random.uniform(1, 2)
                    is_late = sleep_on([outcome.watch], patience) is None
                    standing = standing._replace(takes_over=is_late)
                self._leading_until = time.monotonic() + _MAX_LEADERSHIP
        except BaseException:
            if standing.request is not None:
                self._withdraw(db, standing.request)
            raise

    def _note(self, tr: Transaction) -> None:
        version = tr.get_committed_version()
        if version > 0:
            self._last_version = version
            self._fresh_until = clock.monotonic() + _FRESH

    def _resign_when_idle(self, db: Database, name: bytes) -> None:
        """Pass the leadership on once no thread of this process pops any more."""
        seen = 0
        while self._leading_as == name:
            time.sleep(IDLE_CHECK)
            if self._is_busy or seen != self._last_number:
                seen = self._last_number
                continue
            self._resign(db, name)

    def _resign(self, db: Database, name: bytes) -> None:
        self._leading_as = None
        with suppress(*error_classes()):  # a waiting process will take over
            run(db, partial(self._pass_on, name=name))

    def _pass_on(self, tr: Transaction, name: bytes) -> None:
        requests = self.requests
        if tr[requests.leader].value == name:
            live = requests.live(tr, requests.begin_read(tr))
            requests.pass_leadership(tr, next(iter(live), None))

    def _withdraw(self, db: Database, request: bytes) -> None:
        """Delete a request, and return the items of its result."""
        now = milliseconds()

        def body(tr: Transaction) -> None:
            tr.options.set_timeout(_MAX_WITHDRAWAL)
            self.requests.delete(tr, now, request)

        for _ in range(_WITHDRAWALS):
            with suppress(*error_classes()):  # otherwise a sweep deletes the request
                run(db, body)
                break

    def sweep(self, db: Database) -> None:
        """Delete the requests of dead processes, and return the items staged for them."""
        while not run(db, partial(self.requests.sweep, now=milliseconds())):
            pass


@dataclass
class _Pops(Generic[_T]):
    """A batch of pops: the transactions that it needs until it is served.

    Attributes:
        queue: The pops of the queue.
        batch: The pops of the batch.
        guests_at: The indexes of those that other processes of this host made, also later ones.
        name: The name of the batch, for its request, or as the leader.
        now: The time in milliseconds since 1970.
        expected: The number of pops that the batch will probably have.
        may_stage: Whether processes may serve each other.
        begins_alone: Whether the first transaction takes items without a look at others.
        read_version: The version that the first transaction reads at; `None` for the newest.
    """

    queue: StagedPops[_T]
    batch: Batch[Pop]
    guests_at: Container[int]
    name: bytes
    now: int
    expected: int
    may_stage: bool
    begins_alone: bool
    read_version: int | None
    tries: int = 0
    races: int = 0

    def perform(self, tr: Transaction, standing: _Standing) -> _Served[_T] | _Waiting:
        """Take the items or a result, serve, or wait: the body of the transaction."""
        self.tries += 1
        if self.tries == 1 and self.read_version is not None:
            tr.set_read_version(self.read_version)
        if self.tries == 2:
            tr.options.set_max_retry_delay(MAX_RETRY_DELAY)
        if not self.may_stage or (self.tries == 1 and self.begins_alone):
            outcome: _Served[_T] | _Waiting = self._take_alone(tr)
        else:
            outcome = self._take_turns(tr, standing)
        if isinstance(outcome, _Served) and isinstance(self.batch, SharedBatch):
            self.batch.settle(tr, outcome.taken)
        return outcome

    def _take_alone(self, tr: Transaction) -> _Served[_T]:
        """Take the first items without a look at other processes."""
        if self.may_stage:
            _wait_for_first(self._prefetch(tr))
        self.races += 1
        is_older = self._join(tr)
        taken = self._decoded(tr, self._take(tr, self.batch))
        return _Served(taken, wrote=any(taken) or is_older)

    def _take_turns(self, tr: Transaction, standing: _Standing) -> _Served[_T] | _Waiting:
        """Take what is staged for the batch; or serve; or wait for the leader."""
        leading_as, request = standing.leading_as, standing.request
        # Start all reads before waiting for the first.
        leader = tr.snapshot[self.queue.requests.leader]
        requests = self.queue.requests.begin_read(tr) if leading_as else None
        prefetched = self._prefetch(tr) if leading_as else None
        if request is not None:
            found = self._collect(tr, request)
            if isinstance(found, _Served):
                return found
            request = found
        holder = leader.value
        if holder not in (None, leading_as, self.name) and not standing.takes_over:
            key = self._request(tr, request)
            return _Waiting(key, wrote=request is None, watch=tr.watch(key))
        tr.add_read_conflict_key(self.queue.requests.leader)
        self.races += 1
        if self.races % (_RACES + 1) == 0:
            return self._become_leader(tr, request)
        if requests is None:
            requests = self.queue.requests.begin_read(tr)
            prefetched = self._prefetch(tr)
        _wait_for_first(prefetched)
        standing = standing._replace(request=request)
        return self._serve(tr, standing, holder, self.queue.requests.live(tr, requests))

    def _join(self, tr: Transaction) -> bool:
        """Add the pops that have arrived; return whether the commit has to confirm an empty queue.

        The read version may be older than a pop, which may follow a push of its thread.
        """
        n = len(self.batch)
        self.batch.join()
        if isinstance(self.batch, SharedBatch):
            self.batch.depend(tr)
        return self.read_version is not None or len(self.batch) > n

    def _prefetch(self, tr: Transaction) -> RangeResult | None:
        """Start to read the rows that several pops will probably take; `None` for one pop."""
        if self.expected == 1:
            return None
        begin, end = self.queue.layout.all_items
        _, at_max = self.batch[0]
        if at_max:
            return tr.snapshot.get_range(begin, end, limit=1, reverse=True)
        limit = min(2 * self.expected, MAX_ITEMS)
        return tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)

    def _become_leader(self, tr: Transaction, request: bytes | None) -> _Waiting:
        """Name this process as the leader.

        A process whose pops never conflict does not check for a leader. So make the pops that are
        under way conflict, at both ends of the queue.
        """
        tr[self.queue.requests.leader] = self.name
        begin, end = self.queue.layout.all_items
        tr.add_write_conflict_range(begin, begin + b"\x00")
        tr.add_write_conflict_range(end[:-1] + b"\xfe", end)
        return _Waiting(self._request(tr, request), wrote=True, leading_as=self.name)

    def _request(self, tr: Transaction, request: bytes | None) -> bytes:
        """Return the request of the batch; write it if there is none."""
        if request is None:
            self.batch.join()
            request = self.queue.requests.write(tr, self.name, self.batch)
        return request

    def _collect(self, tr: Transaction, request: bytes) -> _Served[_T] | bytes | None:
        """Take what is staged for a request; otherwise return the request, if it still exists.

        If not, a sweep considered this process dead, because it was slow.
        """
        if isinstance(self.batch, SharedBatch):
            self.batch.depend(tr)
        waits = tr[request]
        staged = self.queue.requests.take(tr, request)
        if staged is None:
            return request if waits.present() else None
        return self._take_staged(tr, staged)

    def _take_staged(self, tr: Transaction, staged: Staged) -> _Served[_T]:
        item = self.queue.items.levels.item
        try:
            taken = self._decoded(tr, [[item(*row) for row in rows] for rows in staged])
        except UndecodableItem as error:
            self.queue.requests.unstage(tr, self.now, staged)
            failed: _Served[_T] = _Served([], error=error)
            return failed
        self.queue.requests.note_taken(tr, self.now, staged)
        return _Served(taken)

    def _serve(
        self, tr: Transaction, standing: _Standing, holder: bytes | None, requests: list[Request]
    ) -> _Served[_T]:
        """Take the first items, stage the next ones for the requests, keep or pass on the lead."""
        requests_to_serve = [each for each in requests if each.key != standing.request]
        is_older = self._join(tr)
        own_pops = len(self.batch)
        is_leader = holder in (standing.leading_as, self.name) and holder is not None
        keeps = standing.may_keep_leading or (is_leader and not requests_to_serve)
        following = requests_to_serve.pop(0) if requests_to_serve and not keeps else None
        pops = [*self.batch, *chain.from_iterable(each.pops for each in requests_to_serve)]
        drawn = self._take(tr, pops)
        taken = self._decoded(tr, drawn[:own_pops])
        if holder is None and not requests and not any(taken):
            return _Served(taken, wrote=is_older)
        if standing.request is not None:
            tr.clear(standing.request)
        remaining = iter(drawn[own_pops:])
        for key, pops in requests_to_serve:
            result = list(islice(remaining, len(pops)))
            if not result:
                break
            self.queue.requests.stage(tr, self.now, key, result)
        if keeps:
            if not is_leader:
                holder = tr[self.queue.requests.leader] = self.name
        elif following is not None or holder is not None:
            self.queue.requests.pass_leadership(tr, following)
        return _Served(
            taken,
            leading_as=holder if keeps else None,
            met_others=bool(requests_to_serve or following),
        )

    def _take(self, tr: Transaction, pops: list[Pop]) -> list[list[StoredItem]]:
        """Delete the items of the first pops, as far as one transaction has room; return them.

        `pops` begin with those of the batch. The first pop gets all its items, regardless of their
        size. The items of pops of other hosts are stored again as results, so they must fit. The
        items that another process of this host waits for must fit a message.
        """
        items = self.queue.items
        drawn: list[list[StoredItem]] = []
        size = 0
        is_full = False
        items.rate.begin_try(tr)
        room = items.rate.room_to_pop(tr, self.now, sum(map(itemgetter(0), pops)))
        n_drawn = 0
        for at_max, group in groupby(pops, itemgetter(1)):
            counts = list(map(itemgetter(0), group))
            first = items.first(tr, min(sum(counts), room - n_drawn), at_max)
            begin = 0
            for n in counts:
                found = first[begin : begin + n]
                is_guests = len(drawn) in self.guests_at
                added = 0
                if len(pops) > 1 or is_guests:
                    added = sum(item.size for item in found)
                size += added
                is_full = bool(drawn and size > BATCH_BYTES) or (
                    is_guests and not _fit_a_message(found)
                )
                if is_full:
                    break
                drawn.append(found)
                begin += len(found)
            items.delete(tr, self.now, first[:begin], "popped", are_first=True)
            n_drawn += begin
            if is_full:
                break
        return drawn

    def _decoded(self, tr: Transaction, drawn: list[list[StoredItem]]) -> list[list[_T]]:
        """Decode the items of this process, and delete what the items of all of them own."""
        layout, decode = self.queue.layout, self.queue.codec.decode
        taken: list[list[Any]] = []
        for index, items in enumerate(drawn):
            # Other processes decode their items themselves.
            if index in self.guests_at:
                taken.append(items)
            else:
                payloads = read_payloads(tr, layout, [item.content for item in items])
                taken.append(list(map(decode, items, payloads)))
        for item in chain.from_iterable(drawn):  # after the decoding, which may fail
            self.queue.items.end(tr, self.now, item, POPPED)
        return taken


def _fit_a_message(items: list[StoredItem]) -> bool:
    """Return whether items can be sent to another process of this host, which reads no pieces."""
    is_small = sum(item.size for item in items) <= MAX_CONTENT
    return is_small and not any(item.is_in_pieces for item in items)


def _wait_for_first(rows: Iterable[KeyValue] | None) -> None:
    """Wait for the first rows of a range; meanwhile other threads can join the batch."""
    if rows is not None:
        next(iter(rows), None)


class Pops(Generic[_T]):
    """Pops. The result of a pop is its items."""

    name = b"-"
    budget = MAX_ITEMS

    def __init__(self, layout: Layout, items: Items, codec: RowCodec[_T]) -> None:
        self._layout = layout
        self._items = items
        self._codec = codec

    def cost(self, request: Pop) -> int:
        """Return the number of items."""
        return request[0]

    def performer(self, db: Database) -> StagedPops[_T]:
        """Return a new performer of pops on a database."""
        return StagedPops(self._layout, self._items, self._codec)

    def encode(self, requests: Sequence[Pop]) -> bytes | None:
        """Return the content; `None` if it asks for many items."""
        if sum(n for n, _ in requests) > _MAX_POPS:
            return None
        return bytes(chain.from_iterable(requests))

    def decode(self, content: bytes) -> list[Pop]:
        """Return the pops of a message."""
        return [(n, bool(at_max)) for n, at_max in zip(content[::2], content[1::2])]

    def pairs(self, result: list[StoredItem]) -> Iterable[tuple[bytes, bytes]]:
        """Return the key and value of each item; raise `NotShareable` if that is too much."""
        if not _fit_a_message(result):
            raise NotShareable
        return [(item.key, item.value) for item in result]

    def result(self, pairs: Pairs) -> list[_T]:
        """Return the items; raise `UndecodableItem` if decoding fails."""
        return [self._codec.decode(item, item.content) for item in self._stored(pairs)]

    def undo(self, db: Database, results: list[Pairs]) -> None:
        """Put the items back."""
        items = self._stored(chain.from_iterable(results))
        popped = [(item.key, item.content, item.header) for item in items]
        if popped:
            put_back = partial(self._items.put_back, now=milliseconds(), popped=popped)
            run_once(db, put_back, self._layout.receipts)

    def _stored(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[StoredItem]:
        return [self._items.levels.item(key, value) for key, value in pairs]
