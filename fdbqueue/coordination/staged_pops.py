"""Pops that meet those of other processes: one process serves them all, the others sleep."""

from __future__ import annotations

import _thread
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count, groupby, islice
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from fdbqueue.coordination.clock import LONGEST_BACKOFF, uuids
from fdbqueue.coordination.combiner import Batch
from fdbqueue.coordination.watches import sleep_on
from fdbqueue.database.binding import error_classes
from fdbqueue.database.receipts import run_once
from fdbqueue.database.retrying import run
from fdbqueue.errors import UndecodableItem
from fdbqueue.layout import Layout
from fdbqueue.layout.codecs import RowCodec
from fdbqueue.operations.items import BATCH_BYTES, WANT_ALL, Rows
from fdbqueue.operations.schedule import VERSIONS
from fdbqueue.types import Database, KeyValue, Transaction

__all__ = ["LEASE", "StagedPops"]

_T = TypeVar("_T")

Pop: TypeAlias = tuple[int, bool]
"""How many items, and whether from the end of the highest priority."""

_Request: TypeAlias = tuple[bytes, list[Pop]]
"""Its key, and the pops that wait."""

LEASE = 5.0  # seconds after which a request is that of a dead process
_LEASE_VERSIONS = int(LEASE * VERSIONS)

# Who waits for longer looks after things itself: the one that served is dead, or stopped.
_PATIENCE = 0.1  # seconds, and up to as many again

_TURN = 0.030  # seconds for which a process serves the others, if its own threads go on popping
_LULL = 0.002  # seconds after which, or up to as many more, it is seen that they do not

_WITHDRAWALS = 3  # times that a pop which failed tries to clear up,
_LONGEST_WITHDRAWAL = 1_000  # for so many milliseconds each

_CONTENDED = 1.0  # seconds for which a process expects the contention that it met to last

# What one transaction hands out, besides `BATCH_BYTES`.
MOST_ITEMS = 200
_MOST_REQUESTS = 64

# For so many seconds after a commit, one that is to write reads at its version and need not ask for
# a newer one: if that saw too little, it conflicts.
_FRESH = 0.005

_RACES = 2  # attempts in a row to take the first items, before others are told to stand back


@dataclass(slots=True)
class _Outcome(Generic[_T]):
    """The result of one transaction for a batch of pops."""

    taken: list[list[_T]] | None = None
    """What the first pops of the batch get; `None` while they have to wait."""
    turn: bytes | None = None
    """The name under which the process goes on serving the others."""
    met_others: bool = False
    request: bytes | None = None
    """The key of the request that waits."""
    watch: Any = None
    error: UndecodableItem | None = None
    wrote: bool = True


def _wrote(outcome: _Outcome[Any]) -> bool:
    return outcome.wrote


class StagedPops(Generic[_T]):
    """The pops of one process on one queue and database, together with those of other processes.

    They take the first items in one transaction of their own, as long as that meets no conflict.
    After one, the process looks whether another one has the *turn*. If so, it leaves a request,
    which conflicts with nothing, and sleeps on a watch. The process that has the turn serves: in
    one transaction its own pops take the first items, the requests get the next ones as their
    results, in the order in which they were made, and the turn is kept or passed on to one of those
    who wait. Who is served takes its result by another transaction, and only then has the items.

    Nothing depends on the turn but speed. Each transaction conflicts on the keys that it relies on:
    the items that it takes, the requests that it serves, who has the turn. So each item goes to one
    pop, in strict order, whoever else tries. Who is not served in time tries to serve. A request
    whose process died is dropped after `LEASE` seconds, and the items of its result go back to
    their places; a process that was only slow finds that nothing is left of either, and starts
    again. All that is written is written exactly once, as by `run_once`.

    Source: FoundationDB documentation, Design Recipes, "Priority Queues", Extensions.
    """

    def __init__(self, layout: Layout, rows: Rows, codec: RowCodec[_T]) -> None:
        self._layout = layout
        self._rows = rows
        self._codec = codec
        (self._id,) = uuids(1)
        self._turn: bytes | None = None
        self._turn_ends = 0.0
        self._contended_until = 0.0
        self._last_version = 0
        self._fresh_until = 0.0
        self._numbers = count()
        self._batches = 0
        self._is_busy = False
        self._is_watched = False
        self._size = 1
        self._next_sweep = 0.0

    def perform(self, db: Database, batch: Batch[Pop]) -> Sequence[list[_T]]:
        """Do pops in order; those that one transaction has no room for are left out."""
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + LEASE
            self.sweep(db)
        self._batches = next(self._numbers)
        name = b"%b%d" % (self._id, self._batches)
        pops = _Pops(self._layout, self._rows, self._codec, batch, name, self._size)
        pops.is_contended = now < self._contended_until
        pops.turn = self._turn
        if now < self._fresh_until and (pops.turn is not None or not pops.is_contended):
            pops.read_version = self._last_version
        if pops.turn is None:
            self._turn_ends = now + _TURN
        self._is_busy = True
        try:
            outcome, taken = self._until_served(db, pops)
        finally:
            self._is_busy = False
        if pops.tries > 1 or outcome.met_others:
            self._contended_until = time.monotonic() + _CONTENDED
        self._turn = outcome.turn
        if self._turn is not None and not self._is_watched:
            # An interrupt within this call leaves nothing behind, as one in `Thread.start` may.
            _thread.start_new_thread(self._keep_watch, (db,))
        self._size = len(taken)
        if outcome.error is not None:
            raise outcome.error
        return taken

    def _until_served(self, db: Database, pops: _Pops[_T]) -> tuple[_Outcome[_T], list[list[_T]]]:
        try:
            while True:
                pops.may_keep_turn = time.monotonic() < self._turn_ends
                outcome = run_once(db, pops.attempt, self._layout.receipts, _wrote, self._note)
                if outcome.taken is not None:
                    return outcome, outcome.taken
                pops.request = outcome.request
                pops.turn = outcome.turn
                if outcome.turn is None:
                    patience = _PATIENCE * random.uniform(1, 2)
                    pops.takes_over = sleep_on([outcome.watch], patience) is None
                self._turn_ends = time.monotonic() + _TURN
        except BaseException:
            if pops.request is not None:
                self._withdraw(db, pops.request)
            raise

    def _note(self, tr: Transaction) -> None:
        version = tr.get_committed_version()
        if version > 0:
            self._last_version = version
            self._fresh_until = time.monotonic() + _FRESH

    def _keep_watch(self, db: Database) -> None:
        while self._turn is not None and not self._is_watched:
            self._is_watched = True
            self._watch_turn(db)
            self._is_watched = False

    def _watch_turn(self, db: Database) -> None:
        """Pass the turn on if no thread of this process pops any more."""
        seen = 0
        while (name := self._turn) is not None:
            time.sleep(_LULL)
            if self._is_busy or seen != self._batches:
                seen = self._batches
                continue
            self._turn = None
            with suppress(*error_classes()):  # those who wait will take it, at the latest
                run(db, lambda tr: self._pass_on(tr, name))

    def _pass_on(self, tr: Transaction, name: bytes) -> None:
        if tr[self._layout.turn].value == name:
            requests = _young(tr, self._layout, _read_requests(tr, self._layout))
            _pass_turn(tr, self._layout, next(iter(requests), None))

    def _withdraw(self, db: Database, request: bytes) -> None:
        """Take a request back, and what it may have got."""

        def body(tr: Transaction) -> None:
            tr.options.set_timeout(_LONGEST_WITHDRAWAL)
            self._return(tr, request)

        for _ in range(_WITHDRAWALS):
            with suppress(*error_classes()):  # if none goes through, it will be swept
                run(db, body)
                break

    def _return(self, tr: Transaction, request: bytes) -> int:
        """Put a request's result back into its place; the bytes that this took."""
        begin, end = self._layout.result_range(request)
        pieces = [row.value for row in tr.get_range(begin, end, streaming_mode=WANT_ALL)]
        self._rows.restore(tr, chain.from_iterable(self._layout.read_result(pieces)))
        tr.clear_range(begin, end)
        del tr[request]
        return sum(map(len, pieces))

    def sweep(self, db: Database) -> None:
        """Put back what processes that died got, and drop their requests."""
        layout = self._layout

        def body(tr: Transaction) -> bool:
            version = max(0, tr.get_read_version().wait() - _LEASE_VERSIONS)
            left = BATCH_BYTES
            for begin, end in (layout.requests_before(version), layout.results_before(version)):
                for row in tr.snapshot.get_range(begin, end, limit=MOST_ITEMS):
                    left -= self._return(tr, layout.request_key(*layout.request_of(row.key)))
                    if left < 0:
                        return False
            return True

        while not run(db, body):
            pass


class _Pops(Generic[_T]):
    """A batch of pops: what its transactions do until it is served."""

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        codec: RowCodec[_T],
        batch: Batch[Pop],
        name: bytes,
        expected: int,
    ) -> None:
        self._layout = layout
        self._rows = rows
        self._codec = codec
        self._batch = batch
        self.name = name
        self._expected = expected
        self._races = 0
        self.tries = 0
        self.request: bytes | None = None
        self.is_contended = False
        self.turn: bytes | None = None
        self.may_keep_turn = False
        self.takes_over = False
        self.read_version: int | None = None

    def attempt(self, tr: Transaction) -> _Outcome[_T]:
        """Take the items, or a result; or serve; or wait. The body of a transaction."""
        self.tries += 1
        if self.tries == 1 and self.read_version is not None:
            tr.set_read_version(self.read_version)
        if self.tries == 2:
            tr.options.set_max_retry_delay(LONGEST_BACKOFF)
        if self.tries == 1 and not self.is_contended and self.turn is None:
            _await(self._read_ahead(tr))
            self._races += 1
            taken = self._decoded(tr, self._draw(tr, self._batch.join()))
            return _Outcome(taken, wrote=self._must_commit(taken))
        # Every read is under way before the first is waited for.
        turn = tr.snapshot[self._layout.turn]
        requests = _read_requests(tr, self._layout) if self.turn else None
        ahead = self._read_ahead(tr) if self.turn else None
        if self.request is not None:
            result = self._collect(tr, self.request)
            if result is not None:
                return result
        holder = turn.value
        if holder not in (None, self.turn, self.name) and not self.takes_over:
            return self._wait(tr)
        tr.add_read_conflict_key(self._layout.turn)
        self._races += 1
        if self._races % (_RACES + 1) == 0:
            return self._take_turn(tr)
        if requests is None:
            requests = _read_requests(tr, self._layout)
            ahead = self._read_ahead(tr)
        _await(ahead)
        return self._serve(tr, holder, _young(tr, self._layout, requests))

    def _must_commit(self, taken: list[list[_T]]) -> bool:
        """Return whether items were taken, or the absence of items has to be confirmed."""
        return any(taken) or self.read_version is not None

    def _read_ahead(self, tr: Transaction) -> Any:
        """Begin to read what the transaction will need."""
        if self._expected == 1:
            return None
        begin, end = self._layout.range_of(self._layout.items)
        if self._batch.requests[0][1]:
            return tr.snapshot.get_range(begin, end, limit=1, reverse=True)
        limit = min(2 * self._expected, MOST_ITEMS)
        return tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)

    def _take_turn(self, tr: Transaction) -> _Outcome[_T]:
        """Let everybody know that this process serves from now on.

        A process that pops all the time and is never late for a commit would not look: so pops
        under way have to conflict, at either end.
        """
        tr[self._layout.turn] = self.name
        begin, end = self._layout.range_of(self._layout.items)
        tr.add_write_conflict_range(begin, begin + b"\x00")
        tr.add_write_conflict_range(end[:-1] + b"\xfe", end)
        return self._wait(tr, turn=self.name)

    def _wait(self, tr: Transaction, turn: bytes | None = None) -> _Outcome[_T]:
        """Leave a request, if there is none, and watch it."""
        request = self.request
        if request is None:
            request = self._layout.request_key(tr.get_read_version().wait(), self.name)
            tr[request] = self._layout.encode_request(self._batch.join(), is_next=False)
            tr.add_read_conflict_key(self._layout.turn_ends)
        watch = tr.watch(request) if turn is None else None
        wrote = turn is not None or self.request is None
        return _Outcome(turn=turn, request=request, watch=watch, wrote=wrote)

    def _collect(self, tr: Transaction, request: bytes) -> _Outcome[_T] | None:
        """Take the result of the request; `None` if it has none."""
        waits = tr[request]
        begin, end = self._layout.result_range(request)
        pieces = [row.value for row in tr.get_range(begin, end, streaming_mode=WANT_ALL)]
        if not pieces:
            if not waits.present():
                self.request = None  # this process was so slow that it passed for dead
            return None
        tr.clear_range(begin, end)
        results = self._layout.read_result(pieces)
        try:
            taken = [[self._codec.decode(tr, *row) for row in rows] for rows in results]
        except UndecodableItem as error:
            self._rows.restore(tr, chain.from_iterable(results))
            return _Outcome([], error=error)
        for _, value in chain.from_iterable(results):
            self._layout.end(tr, value)
        self._rows.count_total(tr, -sum(map(len, results)))
        return _Outcome(taken)

    def _serve(
        self, tr: Transaction, holder: bytes | None, requests: list[_Request]
    ) -> _Outcome[_T]:
        """Take the first items; give the next ones to those who wait, or the turn."""
        layout = self._layout
        others = [(key, pops) for key, pops in requests if key != self.request]
        own = self._batch.join()
        has_turn = holder in (self.turn, self.name) and holder is not None
        keeps = self.may_keep_turn or (has_turn and not others)
        following = others.pop(0) if others and not keeps else None
        pops = [*own, *chain.from_iterable(wanted for _, wanted in others)]
        drawn = self._draw(tr, pops)
        taken = self._decoded(tr, drawn[: len(own)])
        if holder is None and not requests and not any(taken):
            return _Outcome(taken, wrote=self._must_commit(taken))  # nobody waits for nothing
        if self.request is not None:
            del tr[self.request]
        results = iter(drawn[len(own) :])
        for key, wanted in others:
            got = list(islice(results, len(wanted)))
            if not got:
                break
            tr.add_read_conflict_key(key)
            del tr[key]
            self._rows.put_aside(tr, key, got)
        if keeps:
            if not has_turn:
                holder = tr[layout.turn] = self.name
        elif following is not None or holder is not None:
            _pass_turn(tr, layout, following)
        return _Outcome(taken, turn=holder if keeps else None, met_others=bool(others or following))

    def _draw(self, tr: Transaction, pops: list[Pop]) -> list[list[Any]]:
        """Take the rows of the first pops out of the queue, as many as there is room for.

        The first one, which is this process's own, gets what it wants, whatever that is. What the
        others get may be stored again, and must fit.
        """
        if len(pops) == 1:
            rows = self._rows.first(tr, *pops[0])
            self._rows.drop_first(tr, rows)
            return [rows]
        drawn: list[list[Any]] = []
        size = 0
        for at_max, group in groupby(pops, itemgetter(1)):
            counts = [n for n, _ in group]
            first = iter(self._rows.first(tr, sum(counts), at_max))
            taken: list[Any] = []
            for n in counts:
                got = list(islice(first, n))
                size += sum(self._layout.largest_payload(row.value) for row in got)
                if size > BATCH_BYTES and drawn:
                    break
                drawn.append(got)
                taken += got
            self._rows.drop_first(tr, taken)
            if size > BATCH_BYTES:
                break
        return drawn

    def _decoded(self, tr: Transaction, drawn: list[list[Any]]) -> list[list[_T]]:
        taken = [[self._codec.decode(tr, row.key, row.value) for row in rows] for rows in drawn]
        for row in chain.from_iterable(drawn):
            self._layout.end(tr, row.value)
        return taken


def _await(rows: Iterable[KeyValue] | None) -> None:
    """Wait for the first rows of a range; others can join meanwhile."""
    if rows is not None:
        next(iter(rows), None)


def _read_requests(tr: Transaction, layout: Layout) -> Any:
    begin, end = layout.range_of(layout.requests)
    return tr.snapshot.get_range(begin, end, limit=_MOST_REQUESTS, streaming_mode=WANT_ALL)


def _young(tr: Transaction, layout: Layout, rows: Iterable[KeyValue]) -> list[_Request]:
    """The requests of processes that live, as far as one can tell."""
    found = [(row.key, row.value) for row in rows]
    if not found:
        return []
    dead = layout.requests_before(tr.get_read_version().wait() - _LEASE_VERSIONS)[1]
    return [(key, layout.decode_request(value)) for key, value in found if key >= dead]


def _pass_turn(tr: Transaction, layout: Layout, following: _Request | None) -> None:
    """Give the turn to one who waits, or to nobody if nobody waits."""
    if following is None:
        # A request that comes meanwhile must not be left without anybody who serves it.
        tr.add_read_conflict_range(*layout.range_of(layout.requests))
        tr.add_write_conflict_key(layout.turn_ends)
        del tr[layout.turn]
        return
    key, pops = following
    tr.add_read_conflict_key(key)
    tr[key] = layout.encode_request(pops, is_next=True)
    tr[layout.turn] = layout.request_of(key)[1]
