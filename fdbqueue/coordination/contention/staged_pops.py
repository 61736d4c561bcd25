"""Serve the pops of several processes together: one process is the leader, the others sleep."""

from __future__ import annotations

import _thread
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, groupby, islice
from operator import itemgetter
from typing import Any, Generic, TypeVar

from fdbqueue.coordination.batches import MAX_ITEMS
from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.contention.messages import MAX_CONTENT
from fdbqueue.coordination.contention.process import CONTENDED, IDLE_CHECK
from fdbqueue.coordination.contention.requests import Pop, Request, Requests
from fdbqueue.coordination.steps import sleep_on
from fdbqueue.database.binding import error_classes
from fdbqueue.database.clock import milliseconds, uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import MAX_RETRY_DELAY, run
from fdbqueue.errors import UndecodableItem
from fdbqueue.layout import Layout
from fdbqueue.layout.codecs import RowCodec
from fdbqueue.layout.items import StoredItem
from fdbqueue.operations.items import BATCH_BYTES, WANT_ALL, Items
from fdbqueue.operations.views.staged import REQUEST_TIMEOUT
from fdbqueue.types import Database, KeyValue, RangeResult, Transaction

__all__ = ["StagedPops"]

_T = TypeVar("_T")

# A process that is not served within this time tries to serve: the leader is dead or stopped.
_TAKEOVER = 0.1  # seconds; the actual time is random, up to twice as long

_MAX_LEADERSHIP = 0.030  # seconds that a process leads while its own threads go on popping

_WITHDRAWALS = 3  # tries of a failed pop to withdraw its request
_MAX_WITHDRAWAL = 1_000  # milliseconds for each of them

# Seconds after a commit during which a transaction reads at the commit's version, which saves a
# request for a read version. If that version is too old, the transaction conflicts.
_FRESH = 0.005

_RACES = 2  # tries in a row to take the first items, before this process becomes the leader


@dataclass(slots=True)
class _Outcome(Generic[_T]):
    """The result of one transaction for a batch of pops."""

    taken: list[list[_T]] | None = None
    """The items of the first pops of the batch; `None` while they have to wait."""
    leading_as: bytes | None = None
    """The name under which this process remains the leader."""
    met_others: bool = False
    request: bytes | None = None
    """The key of the waiting request."""
    watch: Any = None
    error: UndecodableItem | None = None
    wrote: bool = True


def _wrote(outcome: _Outcome[Any]) -> bool:
    return outcome.wrote


class StagedPops(Generic[_T]):
    """The pops of one process on one queue and database, served together with other processes'.

    Without contention, a batch of pops takes the first items in one transaction. So it always does
    on the embedded engine, where a transaction that conflicted holds the writers' lock when it is
    retried. On a cluster, after a conflict,
    the process checks whether another process is the *leader*. If so, it leaves a request, which
    conflicts with nothing, and sleeps on a watch. In one transaction the leader takes the first
    items for its own pops, stages the next items as the results of the requests, oldest request
    first, and keeps the leadership or passes it on to a waiting process. The process of a request
    takes its result in another transaction; only then are the items popped.

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
        self._layout = layout
        self._items = items
        self._codec = codec
        self._requests = Requests(layout, items)
        (self._id,) = uuids(1)
        self._leading_as: bytes | None = None
        self._leading_until = 0.0
        self.contended_until = 0.0
        """Until then this process expects conflicts with others, by the monotonic clock."""
        self._last_version = 0
        self._fresh_until = 0.0
        self._numbers = count()
        self._batches = 0
        self._is_busy = False
        self._is_watched = False
        self._size = 1
        self._next_sweep = 0.0

    def perform(self, db: Database, batch: Batch[Pop]) -> Sequence[list[_T]]:
        """Return the items of the first pops of a batch: those that fit into one transaction."""
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + REQUEST_TIMEOUT
            self.sweep(db)
        self._batches = next(self._numbers)
        name = b"%b%d" % (self._id, self._batches)
        at = milliseconds()
        pops = _Pops(
            self._layout, self._items, self._codec, self._requests, batch, name, at, self._size
        )
        pops.may_stage = not getattr(db, "retries_hold_lock", False)
        pops.is_contended = now < self.contended_until
        pops.leading_as = self._leading_as
        is_fresh = pops.may_stage and now < self._fresh_until
        if is_fresh and (pops.leading_as is not None or not pops.is_contended):
            pops.read_version = self._last_version
        if pops.leading_as is None:
            self._leading_until = now + _MAX_LEADERSHIP
        self._is_busy = True
        try:
            outcome, taken = self._until_served(db, pops)
        finally:
            self._is_busy = False
        if pops.tries > 1 or outcome.met_others:
            self.contended_until = time.monotonic() + CONTENDED
        self._leading_as = outcome.leading_as
        if self._leading_as is not None and not self._is_watched:
            # Unlike `Thread.start`, this call leaves nothing behind if it is interrupted.
            _thread.start_new_thread(self._resign_when_idle, (db,))
        self._size = max(1, len(taken))
        if outcome.error is not None:
            raise outcome.error
        return taken

    def _until_served(self, db: Database, pops: _Pops[_T]) -> tuple[_Outcome[_T], list[list[_T]]]:
        try:
            while True:
                pops.may_keep_leading = time.monotonic() < self._leading_until
                outcome = run_once(db, pops.body, self._layout.receipts, _wrote, self._note)
                if outcome.taken is not None:
                    return outcome, outcome.taken
                pops.request = outcome.request
                pops.leading_as = outcome.leading_as
                if outcome.leading_as is None:
                    patience = _TAKEOVER * random.uniform(1, 2)
                    pops.takes_over = sleep_on([outcome.watch], patience) is None
                self._leading_until = time.monotonic() + _MAX_LEADERSHIP
        except BaseException:
            if pops.request is not None:
                self._withdraw(db, pops.request)
            raise

    def _note(self, tr: Transaction) -> None:
        version = tr.get_committed_version()
        if version > 0:
            self._last_version = version
            self._fresh_until = time.monotonic() + _FRESH

    def _resign_when_idle(self, db: Database) -> None:
        """Pass the leadership on once no thread of this process pops any more."""
        while self._leading_as is not None and not self._is_watched:
            self._is_watched = True
            self._resign_once_idle(db)
            self._is_watched = False

    def _resign_once_idle(self, db: Database) -> None:
        seen = 0
        while (name := self._leading_as) is not None:
            time.sleep(IDLE_CHECK)
            if self._is_busy or seen != self._batches:
                seen = self._batches
                continue
            self._leading_as = None
            with suppress(*error_classes()):  # a waiting process will take over
                run(db, partial(self._pass_on, name=name))

    def _pass_on(self, tr: Transaction, name: bytes) -> None:
        requests = self._requests
        if tr[requests.leader].value == name:
            live = requests.live(tr, requests.begin_read(tr))
            requests.pass_leadership(tr, next(iter(live), None))

    def _withdraw(self, db: Database, request: bytes) -> None:
        """Delete a request, and return the items of its result."""
        now = milliseconds()

        def body(tr: Transaction) -> None:
            tr.options.set_timeout(_MAX_WITHDRAWAL)
            self._requests.delete(tr, now, request)

        for _ in range(_WITHDRAWALS):
            with suppress(*error_classes()):  # otherwise a sweep deletes the request
                run(db, body)
                break

    def sweep(self, db: Database) -> None:
        """Delete the requests of dead processes, and return the items staged for them."""
        while not run(db, partial(self._requests.sweep, now=milliseconds())):
            pass


class _Pops(Generic[_T]):
    """A batch of pops: the transactions that it needs until it is served."""

    def __init__(
        self,
        layout: Layout,
        items: Items,
        codec: RowCodec[_T],
        requests: Requests,
        batch: Batch[Pop],
        name: bytes,
        now: int,
        expected: int,
    ) -> None:
        self._layout = layout
        self._items = items
        self._codec = codec
        self._requests = requests
        self._batch = batch
        self.name = name
        self._now = now
        self._expected = expected
        self._races = 0
        self.tries = 0
        self.request: bytes | None = None
        self.may_stage = True
        self.is_contended = False
        self.leading_as: bytes | None = None
        self.may_keep_leading = False
        self.takes_over = False
        self.read_version: int | None = None
        self._is_older = False

    def body(self, tr: Transaction) -> _Outcome[_T]:
        """Take the items or a result, serve, or wait: the body of the transaction."""
        outcome = self._attempt(tr)
        if outcome.taken is not None:
            self._batch.settle(tr, outcome.taken)
        return outcome

    def _attempt(self, tr: Transaction) -> _Outcome[_T]:
        self.tries += 1
        if self.tries == 1 and self.read_version is not None:
            tr.set_read_version(self.read_version)
        if self.tries == 2:
            tr.options.set_max_retry_delay(MAX_RETRY_DELAY)
        is_first = self.tries == 1 and not self.is_contended and self.leading_as is None
        if is_first or not self.may_stage:
            if self._expected > 1 and self.may_stage:
                _wait_for_first(self._prefetch(tr))
            self._races += 1
            self._join(tr)
            taken = self._decoded(tr, self._delete_first(tr, self._batch))
            return _Outcome(taken, wrote=any(taken) or self._is_older)
        # Start all reads before waiting for the first.
        leader = tr.snapshot[self._requests.leader]
        requests = self._requests.begin_read(tr) if self.leading_as else None
        prefetched = self._prefetch(tr) if self.leading_as else None
        if self.request is not None:
            result = self._collect(tr, self.request)
            if result is not None:
                return result
        holder = leader.value
        if holder not in (None, self.leading_as, self.name) and not self.takes_over:
            return self._wait(tr)
        tr.add_read_conflict_key(self._requests.leader)
        self._races += 1
        if self._races % (_RACES + 1) == 0:
            return self._become_leader(tr)
        if requests is None:
            requests = self._requests.begin_read(tr)
            prefetched = self._prefetch(tr)
        _wait_for_first(prefetched)
        return self._serve(tr, holder, self._requests.live(tr, requests))

    def _join(self, tr: Transaction) -> None:
        n = len(self._batch)
        self._batch.join(tr)
        # The read version may be older than a pop, which may follow a push of its thread. Then the
        # commit has to confirm that there are no items.
        self._is_older = self.read_version is not None or len(self._batch) > n

    def _prefetch(self, tr: Transaction) -> RangeResult | None:
        """Start to read the rows that several pops will probably take; `None` for one pop."""
        if self._expected == 1:
            return None
        begin, end = self._layout.all_items
        if self._batch[0][1]:
            return tr.snapshot.get_range(begin, end, limit=1, reverse=True)
        limit = min(2 * self._expected, MAX_ITEMS)
        return tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)

    def _become_leader(self, tr: Transaction) -> _Outcome[_T]:
        """Name this process as the leader.

        A process whose pops never conflict does not check for a leader. So make the pops that are
        under way conflict, at both ends of the queue.
        """
        tr[self._requests.leader] = self.name
        begin, end = self._layout.all_items
        tr.add_write_conflict_range(begin, begin + b"\x00")
        tr.add_write_conflict_range(end[:-1] + b"\xfe", end)
        return self._wait(tr, leading_as=self.name)

    def _wait(self, tr: Transaction, leading_as: bytes | None = None) -> _Outcome[_T]:
        """Write a request unless there is one, and watch it."""
        request = self.request
        if request is None:
            self._batch.join(tr)
            request = self._requests.write(tr, self.name, self._batch)
        watch = tr.watch(request) if leading_as is None else None
        wrote = leading_as is not None or self.request is None
        return _Outcome(leading_as=leading_as, request=request, watch=watch, wrote=wrote)

    def _collect(self, tr: Transaction, request: bytes) -> _Outcome[_T] | None:
        """Take the result of this batch's request; `None` if it has none."""
        self._batch.depend(tr)
        waits = tr[request]
        results = self._requests.take(tr, request)
        if results is None:
            if not waits.present():
                self.request = None  # a sweep considered this process dead, because it was slow
            return None
        try:
            item = self._items.levels.item
            taken = self._decoded(tr, [[item(*row) for row in rows] for rows in results])
        except UndecodableItem as error:
            self._requests.unstage(tr, self._now, results)
            return _Outcome([], error=error)
        self._items.tally(tr, self._now, acked=sum(map(len, results)))
        return _Outcome(taken)

    def _serve(
        self, tr: Transaction, holder: bytes | None, requests: list[Request]
    ) -> _Outcome[_T]:
        """Take the first items, stage the next ones for the requests, keep or pass on the lead."""
        requests_to_serve = [request for request in requests if request.key != self.request]
        self._join(tr)
        own_pops = len(self._batch)
        is_leader = holder in (self.leading_as, self.name) and holder is not None
        keeps = self.may_keep_leading or (is_leader and not requests_to_serve)
        following = requests_to_serve.pop(0) if requests_to_serve and not keeps else None
        pops = [*self._batch, *chain.from_iterable(each.pops for each in requests_to_serve)]
        drawn = self._delete_first(tr, pops)
        taken = self._decoded(tr, drawn[:own_pops])
        if holder is None and not requests and not any(taken):
            return _Outcome(taken, wrote=self._is_older)
        if self.request is not None:
            tr.clear(self.request)
        remaining = iter(drawn[own_pops:])
        for key, pops in requests_to_serve:
            result = list(islice(remaining, len(pops)))
            if not result:
                break
            self._requests.stage(tr, self._now, key, result)
        if keeps:
            if not is_leader:
                holder = tr[self._requests.leader] = self.name
        elif following is not None or holder is not None:
            self._requests.pass_leadership(tr, following)
        return _Outcome(
            taken,
            leading_as=holder if keeps else None,
            met_others=bool(requests_to_serve or following),
        )

    def _delete_first(self, tr: Transaction, pops: list[Pop]) -> list[list[StoredItem]]:
        """Delete the items of the first pops, as far as one transaction has room; return them.

        The first pop gets all its items, regardless of their size. The items of pops of other hosts
        are stored again as results, so they must fit. What another process of this host waits for
        must fit a message.
        """
        drawn: list[list[StoredItem]] = []
        size = 0
        is_full = False
        for at_max, group in groupby(pops, itemgetter(1)):
            counts = list(map(itemgetter(0), group))
            first = self._items.first(tr, sum(counts), at_max)
            begin = 0
            for n in counts:
                items = first[begin : begin + n]
                if len(pops) > 1:
                    size += sum(map(self._layout.largest_payload, items))
                is_full = size > BATCH_BYTES
                if (drawn and is_full) or not self._fits_message(len(drawn), items):
                    is_full = True
                    break
                drawn.append(items)
                begin += len(items)
            self._items.delete_first(tr, self._now, first[:begin])
            if is_full:
                break
        return drawn

    def _fits_message(self, index: int, items: list[StoredItem]) -> bool:
        """Return whether the items of a pop fit a message, if another process waits for them."""
        is_local = index >= len(self._batch) or self._batch.is_own(index)
        return is_local or sum(map(self._layout.largest_payload, items)) <= MAX_CONTENT

    def _decoded(self, tr: Transaction, drawn: list[list[StoredItem]]) -> list[list[_T]]:
        decode = partial(self._codec.decode, tr)
        is_own = self._batch.is_own
        # Other processes decode their items themselves.
        taken: list[list[Any]] = [
            [*map(decode, items)] if is_own(index) else items for index, items in enumerate(drawn)
        ]
        for item in chain.from_iterable(drawn):
            self._layout.clear_owned(tr, self._layout.position(item.key), item.value)
        return taken


def _wait_for_first(rows: Iterable[KeyValue] | None) -> None:
    """Wait for the first rows of a range; meanwhile other threads can join the batch."""
    if rows is not None:
        next(iter(rows), None)
