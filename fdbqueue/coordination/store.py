"""The engine behind a queue object."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

from fdbqueue.coordination.claims import Claims
from fdbqueue.coordination.combiner import MAX_ITEMS, Combiner, Perform, sharing
from fdbqueue.coordination.pops import Pop, PopRequests, Pops, StagedPops, number_of
from fdbqueue.coordination.reads import Reads
from fdbqueue.coordination.sans_io import Call, SansIO, Submit
from fdbqueue.coordination.sweeper import Sweeper
from fdbqueue.coordination.waiting import Lines, Wanted, until_found, until_worth_looking
from fdbqueue.database.binding import engine_of, is_database
from fdbqueue.database.clock import client_name, milliseconds, retry_delay, uuids
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.pages import in_batches
from fdbqueue.database.retrying import read, run
from fdbqueue.errors import LeaseLost, WrongState, error_text
from fdbqueue.layout.batches import may_be_member
from fdbqueue.layout.items import ItemRow, Level
from fdbqueue.layout.keys import shard_prefix
from fdbqueue.layout.rows import RowCodec
from fdbqueue.layout.values import NEVER, Header
from fdbqueue.operations.changes import Changes, Update
from fdbqueue.operations.claims import (
    AckRequest,
    ClaimedItems,
    ClaimRequest,
    EndWith,
    Extension,
)
from fdbqueue.operations.failures import Failures, traceback_text
from fdbqueue.operations.items import (
    BATCH_BYTES,
    ITEM_BYTES,
    Items,
    NewItem,
)
from fdbqueue.operations.jobs.schedules import Schedules
from fdbqueue.operations.jobs.steps import DurableSteps
from fdbqueue.operations.limits.bounds import Bounds
from fdbqueue.operations.limits.places import Slots
from fdbqueue.operations.maintainers.alerts import Alerts
from fdbqueue.operations.maintainers.batches import leave_batches
from fdbqueue.operations.names import check_name
from fdbqueue.operations.options import LIMITING
from fdbqueue.operations.payloads import read_payload
from fdbqueue.operations.push import Pusher, PushRequest
from fdbqueue.operations.sweep import Sweep
from fdbqueue.operations.timers import due_after
from fdbqueue.operations.waking import Waiters, has_items
from fdbqueue.types import (
    ENDED,
    STATES,
    Claim,
    Database,
    Future,
    Item,
    Options,
    ReadTransaction,
    State,
    Task,
    Transaction,
    Transactor,
)

_T = TypeVar("_T", bound=Item | Task)
_R = TypeVar("_R")

_log = logging.getLogger("fdbqueue")

_value_of, _priority_of = attrgetter("value"), attrgetter("level.priority")
_size_of = attrgetter("size")
_unique_keys_of = attrgetter("header.unique", "header.key")


def _size_of_popped(popped: tuple[bytes, bytes, Header]) -> int:
    return len(popped[1]) + ITEM_BYTES


class Store(Generic[_T]):
    """The operations of one queue, in a transaction or on a database.

    The queue object has validated the arguments. A method that may share a transaction or wait
    returns an operation (`sans_io`). A method that takes a claim raises `LeaseLost` if it is over.
    A method that returns a bool returns false for an item that is gone or in another state.
    """

    def __init__(
        self,
        items: Items,
        codec: RowCodec[_T],
        options: Options,
    ) -> None:
        layout = self.layout = items.layout
        self.levels = items.levels
        self.items = items
        self.codec = codec
        self.given_options = options
        self._lines = Lines()
        waiting_pops, left = Waiters(layout, layout.waiting_pops), self._seconds_left_to_pop
        self._any_item = Wanted("pop", self.keys_to_watch, left, waiting_pops)
        self.options = items.options
        items.transitions.followers.append(Alerts(items).follow)
        changes = self.changes = Changes(items)
        slots = self._slots = Slots(items, random.randrange)
        bounds = self._bounds = Bounds(items, random.randrange)
        failures = self._failures = Failures(items, bounds)
        claimed = self.claimed = ClaimedItems(items, codec, failures, retry_delay)
        self.schedules = Schedules(items, bounds)
        self.steps = DurableSteps(items, claimed, changes)
        sweep = self._sweep = Sweep(items, claimed, self.schedules)
        requests = self._pop_requests = PopRequests(layout, items)
        sweeper = self.sweeper = Sweeper(items, sweep, changes, requests)
        waiting_claims, left = Waiters(layout, layout.waiting_claims), sweeper.seconds_left
        self._any_claim = Wanted("claim", self.keys_to_watch_claims, left, waiting_claims)
        self.reads = Reads(items, codec, options, changes, sweep, sweeper)
        pusher = self.pusher = Pusher(items, sweep.find, changes, bounds)
        self._pops = Pops(items, codec)
        receipts = layout.receipts
        self.pushes: Combiner[PushRequest, list[bytes]] = Combiner(
            lambda db: sharing(receipts, pusher.push, db), _size_of, BATCH_BYTES
        )
        self.pops: Combiner[Pop, list[_T]] = Combiner(self._pops_on, number_of, MAX_ITEMS)
        claims = self._claims = Claims(items, claimed, sweep, sweeper, slots)
        self.claims = Combiner(lambda _: claims.perform, _size_of, MAX_ITEMS)
        self.acks: Combiner[AckRequest, LeaseLost | None] = Combiner(
            lambda db: sharing(receipts, claimed.ack_each, db), _size_of, MAX_ITEMS
        )

    def _pops_on(self, db: Database) -> Perform[Pop, list[_T]]:
        if engine_of(db).is_remote:
            return StagedPops(self._pops, self._pop_requests).perform
        return sharing(self.layout.receipts, self._pops.pop_each, db, any)

    def change(
        self,
        tr: Transactor,
        body: Callable[..., _R],
        wrote: Callable[[Any], bool] = lambda result: result is not False,
    ) -> _R:
        """Run `body(tr, now=now)` in a transaction, or on a database exactly once.

        `wrote(result)` returns whether it wrote anything.
        """
        at_once = partial(body, now=milliseconds())
        if is_database(tr):
            return run_once(tr, at_once, self.layout.receipts, wrote)
        return at_once(tr)

    # Push

    def push(
        self, tr: Transactor, items: list[NewItem], as_many_as_fit: bool = False
    ) -> SansIO[list[Any]]:
        """Append items to their levels; return what `push` returns for each; raise `QueueFull`."""
        if not items:
            return []
        push = PushRequest(items, as_many_as_fit)
        pushed: list[Any]
        if self.options.has_bounds and is_database(tr) and self.sweeper.sweep_is_due():
            yield Call(partial(self.sweeper.sweep, tr))  # expired items make room
        if any(map(any, map(_unique_keys_of, items))):
            body = partial(self._push_unique, push=push, in_callers=not is_database(tr))
            pushed = yield Call(partial(self.change, tr, body))
        else:
            if is_database(tr):
                keys = yield Submit(self.pushes, tr, push)
            else:
                alone = partial(self.pusher.push, tr, milliseconds(), [push], relies_on_full=True)
                (keys,) = yield Call(alone)
            pushed = [
                *map(self.codec.pushed, keys, map(_value_of, items), map(_priority_of, items))
            ]
            if _log.isEnabledFor(logging.DEBUG) and is_database(tr):
                self._log("pushed to", pushed)
        if len(pushed) < len(items) and not as_many_as_fit:
            refusal = yield Call(partial(read, tr, partial(self._bounds.refusal, items=items)))
            if refusal is None:  # no bound is left by now
                return (yield from self.push(tr, items))
            raise refusal
        return pushed

    def _push_unique(
        self, tr: Transaction, now: int, push: PushRequest, in_callers: bool
    ) -> list[Any]:
        pushed = self.pusher.push_unique(tr, now, push, in_callers)
        return [*map(partial(self.reads.pushed, tr), push.items, pushed)]

    def put_back(self, tr: Transactor, items: Iterable[_T]) -> None:
        """Return popped items to their positions, on a database in batches."""
        popped = list(map(self.codec.restore, items))
        batches: Iterable[list[tuple[bytes, bytes, Header]]] = [popped]
        if is_database(tr):
            batches = in_batches(popped, _size_of_popped, len(popped), BATCH_BYTES)
        for batch in batches:
            self.change(tr, partial(self.items.put_back, popped=batch))

    def putting_back(self, tr: Transactor, items: list[_T]) -> SansIO[None]:
        """Do `put_back` to the end, even if the operation is cancelled."""
        return Call(partial(self.put_back, tr, items), lambda _: None).alone()

    # Options

    def configure(self, tr: Transactor, changes: dict[str, Any]) -> None:
        """Store options; wake waiting clients if they limit claims and pops."""
        if not changes:
            return
        limits = not LIMITING.isdisjoint(changes)

        def body(tr: Transaction, now: int) -> None:
            if limits:
                self.options.note_limit(tr)
            self.pusher.set_options(tr, now, changes)

        self.change(tr, body)
        if limits:
            self.sweeper.invalidate()

    def check_name(self, tr: ReadTransaction) -> None:
        """Raise `QueueRenamed` if another queue has the name of this one now."""
        if self.layout.name is not None:
            check_name(tr, self.layout.name, self.layout.subspace)

    # Pop

    def pop(self, tr: Transactor, n: int, at_max: bool, wait: float) -> SansIO[list[_T]]:
        """Take the first `n` items; wait for one."""
        if not wait or not n:
            return self._pop_now(tr, n, at_max)
        look = partial(self._pop_now, tr, n, at_max)
        return until_found(self._lines, tr, wait, look, self._any_item)

    def _pop_now(self, tr: Transactor, n: int, at_max: bool) -> SansIO[list[_T]]:
        if n == 0:
            return []
        if not is_database(tr):
            items: list[_T] = yield Call(partial(self._take, tr, n, at_max))
            return items
        if self.sweeper.trim_is_due(is_pop=True):
            yield Call(partial(self.sweeper.trim, tr))
        while True:
            is_ready, taken = self.sweeper.is_ready, list[_T]()
            if self.sweeper.sweep_is_due():
                is_ready = yield Call(partial(self.sweeper.sweep, tr, n))
            if is_ready:
                taken = yield Submit(self.pops, tr, (n, at_max), partial(self.put_back, tr))
            if taken and _log.isEnabledFor(logging.DEBUG):
                self._log("popped from", taken)
            if taken or not self.sweeper.is_behind:
                return taken
            # Other clients took the items that became available, and more items are due.

    def _log(self, verb: str, items: list[Any]) -> None:
        title = self.layout.name or self.layout.subspace.key()
        for item in items:
            if isinstance(item, Item) and item.is_new and item.priority is not None:
                _log.debug("%s %s, priority %s", verb, title, item.priority)

    def _take(self, tr: Transaction, n: int, at_max: bool) -> list[_T]:
        now = milliseconds()
        if not self.sweeper.may_take(tr, now):
            return []
        (items,), _ = self._pops.pop(tr, now, [(n, at_max)], 1)
        return items

    # Wait

    def wait(self, db: Database, seconds: float) -> SansIO[bool]:
        """Sleep until an item can be taken, without taking it."""

        def has_items() -> bool:
            return self.sweeper.sweep(db) and not read(db, self.keys_to_watch)

        def keys(tr: Transaction) -> list[bytes]:
            found = self.keys_to_watch(tr)
            return [*found, self.layout.options] if found else []  # which may get more shards

        wanted = Wanted("wait", keys, self.sweeper.seconds_left)
        return until_found(self._lines, db, seconds, Call(has_items).alone, wanted)

    def keys_to_watch(self, tr: Transaction) -> list[bytes]:
        """Return the keys to watch until an item can be popped; none if one can."""
        self.options.read(tr)  # the queue may have got more shards
        if not self.items.first(tr, 1):
            return self._keys_of_change(tr)
        return [] if self.items.rate.may_pop(tr, milliseconds()) else [self.layout.wake_counter]

    def _seconds_left_to_pop(self, tr: Transaction) -> float:
        return min(self.sweeper.seconds_left(tr), self._pop_requests.seconds_to_sweep(tr))

    def keys_to_watch_claims(self, tr: Transaction) -> list[bytes]:
        """Return the keys to watch until an item can be claimed."""
        options = self.options.read(tr)  # before the first items, which depend on the shards
        first = self._claims.begin_first(tr, 1)
        if self._slots.admit(tr, milliseconds(), 1, options, first):
            return []
        return self._keys_of_change(tr)

    def _keys_of_change(self, tr: Transaction) -> list[bytes]:
        """Return the keys to watch; a ready item may lack a slot."""
        shards = range(self.options.known_shards(tr))
        keys = [self.layout.total_in + shard_prefix(shard) for shard in shards]
        if not self.options.shards:  # the first push stores the options, which may have several
            keys = [self.layout.options]
        return [*keys, self.layout.wake_counter] if has_items(tr, self.layout) else keys

    # Claim

    def claim(
        self,
        tr: Transactor,
        lease: float,
        n: int,
        within: int,
        wait: float,
        client: str | None,
    ) -> SansIO[Claim | None]:
        """Claim any of the first items; wait for one."""
        request = ClaimRequest(n, max(n, within), lease, b"", client or client_name())
        if not wait:
            return self._claim_now(tr, request)
        look = partial(self._claim_now, tr, request)
        return until_found(self._lines, tr, wait, look, self._any_claim)

    def wait_to_claim(self, db: Database) -> SansIO[bool]:
        """Sleep until it is worth claiming."""
        return until_worth_looking(self._lines, db, self._any_claim)

    def _claim_now(self, tr: Transactor, request: ClaimRequest) -> SansIO[Claim | None]:
        request = request._replace(token=uuids(1)[0])
        claim: Claim | None
        if not is_database(tr):
            claim = yield Call(partial(self._claims.perform_in, tr, request))
            return claim
        if self.sweeper.trim_is_due():
            yield Call(partial(self.sweeper.trim, tr))  # before a claim that an error would lose
        claim = yield Submit(self.claims, tr, request, partial(self._release_unless_lost, tr))
        return claim

    def _release_unless_lost(self, db: Database, claim: Claim) -> None:
        with suppress(LeaseLost):  # the items are back already
            self.release(db, claim)

    def ack(self, tr: Transactor, request: AckRequest) -> SansIO[None]:
        """Acknowledge a claim."""
        if is_database(tr):
            lost = yield Submit(self.acks, tr, request)
        else:
            (lost,) = yield Call(partial(self.claimed.ack_each, tr, milliseconds(), [request]))
        if lost is not None:
            raise lost

    def ack_first(self, tr: Transaction, claim: Claim, log: str = "") -> EndWith:
        """Acknowledge a claim before its handler runs."""
        return self.claimed.ack_first(tr, milliseconds(), self.ack_request(claim, log=log))

    def ack_request(
        self,
        claim: Claim,
        returned: bytes | None = None,
        discarded: str | None = None,
        log: str = "",
        cancelled: bool = False,
    ) -> AckRequest:
        """Return the request of an acknowledgement; `returned` is JSON."""
        may_keep = self.options.keeps_done
        if not (may_keep or any(map(may_be_member, claim.items))):
            returned = None
        return AckRequest(claim, may_keep, returned, discarded, log, cancelled)

    def result(self, tr: Transactor, item: _T | str, wait: float) -> SansIO[Any]:
        """Return a done item's result, or wait for it; raise `NoResult`."""
        reference = self.codec.reference(item)
        look = Call(partial(self.reads.result, tr, item)).alone

        def keys(tr: Transaction) -> list[bytes]:
            found = self.items.at(tr, reference)
            if found is None or found.state in ENDED:
                return []
            position = self.layout.position(found.key)
            ends = [self.layout.prefix_of[state] + position for state in sorted(ENDED)]
            return [*ends, self.layout.moved + reference]  # done, dead or moved

        wanted = Wanted(("result", reference), keys)
        finished = yield from until_found(self._lines, tr, wait, look, wanted)
        if finished is None:
            finished = yield Call(partial(self.reads.result, tr, item, must_have_ended=True))
        return finished.result

    def nack(
        self,
        tr: Transactor,
        claim: Claim,
        delay: float | None,
        error: str | BaseException | None,
        dead: bool,
        log: str,
        reason: str = "",
    ) -> None:
        """Return failed items after a delay; `None` backs off exponentially."""
        text, traceback = error_text(error, reason), traceback_text(error)
        delays = [retry_delay(n) if delay is None else delay for n in claim.attempts]
        nack = partial(self.claimed.nack, claim=claim, delays=delays, error=text, dead=dead)
        self.change(tr, partial(nack, traceback=traceback, log=log))

    def extend(self, tr: Transactor, extension: Extension, **fields: Any) -> None:
        """Renew a claim's lease; `fields` change the headers."""
        self.change(tr, partial(self.claimed.extend, extension=extension, **fields))

    def ack_each(self, db: Database, requests: Sequence[AckRequest]) -> list[LeaseLost | None]:
        """Acknowledge claims; return the errors."""
        return self.change(db, partial(self.claimed.ack_each, requests=requests))

    def extend_each(self, db: Database, extensions: Sequence[Extension]) -> list[LeaseLost | None]:
        """Renew the leases of claims in batches; return the errors."""
        errors: list[LeaseLost | None] = []
        for begin in range(0, len(extensions), MAX_ITEMS):
            some = extensions[begin : begin + MAX_ITEMS]
            errors += self.change(db, partial(self.claimed.extend_each, extensions=some))
        return errors

    def release(self, tr: Transactor, claim: Claim, delay: float | None = None) -> None:
        """Return a claim's items."""
        due = due_after(milliseconds(), delay)
        self.change(tr, partial(self.claimed.release, claim=claim, due=due))

    # Single items

    def retry(self, tr: Transactor, item: _T | str, state: State | None, by: str) -> bool:
        """Make a dead or delayed item ready."""
        self.sweeper.sweep(tr)  # expired items make room
        return self._change_if(tr, item, state, partial(self._retry, by=by))

    def _retry(self, tr: Transaction, now: int, found: ItemRow, by: str) -> bool:
        if found.state == "dead":
            return self._failures.retry(tr, now, found, by)
        if found.state != "delayed" or found.due == NEVER:
            return False
        self.changes.run_now(tr, now, found)
        return True

    def retry_from(self, tr: Transactor, item: _T | str, step: str, by: str) -> bool:
        """Make a dead letter ready without a step and all later ones."""
        self.sweeper.sweep(tr)  # expired items make room

        def change(tr: Transaction, now: int, found: ItemRow) -> bool:
            dead, keys = self.steps.without(tr, found, step) or (None, [])
            if dead is None or not self._retry(tr, now, dead, by):
                return False
            for key in keys:
                tr.clear(key)
            return True

        return self._change_if(tr, item, "dead", change)

    def take_back(self, tr: Transactor, item: _T | str) -> bool:
        """Return a claimed item, ending its claim."""
        return self._change_if(tr, item, "claimed", self.claimed.take_back)

    def cancel(
        self, tr: Transactor, item: _T | str, force: bool = False, children: bool = False
    ) -> bool:
        """End an item, or let its job learn that it is cancelled."""

        def change(tr: Transaction, now: int, found: ItemRow) -> bool:
            header = found.item.header
            if "cancel" not in STATES[found.state].changes:
                return False
            if header.cancelled is not None and not force:
                return True
            if found.state == "claimed":
                self.claimed.cancel(tr, now, found, force)
            elif header.has_begun and not force:
                self.changes.tell(tr, now, found, children)
            else:
                self.changes.cancel(tr, now, found)
            return True

        return self._change_if(tr, item, None, change)

    def watch_cancelled(self, db: Database, claims: list[Claim]) -> tuple[Future, list[bool]]:
        """Return a watch of cancellations, and which claims are cancelled."""

        def body(tr: Transaction) -> tuple[Future, list[bool]]:
            look = self.claimed.begin_look(tr, claims)
            return tr.watch(self.layout.cancel_counter), look()

        return run(db, body)

    def remove(self, tr: Transactor, item: _T | str, state: State | None = None) -> bool:
        """Delete an item, as `Changes.remove` does."""
        return self._change_if(tr, item, state, self.changes.remove)

    def rename_job(self, tr: Transactor, item: _T | str, old: str, new: str) -> bool:
        """Give the job of an item in any state another name."""
        return self._change_if(tr, item, None, partial(self.changes.rename_job, old=old, new=new))

    def _change_if(
        self,
        tr: Transactor,
        item: _T | str,
        state: State | None,
        change: Callable[[Transaction, int, ItemRow], bool | None],
    ) -> bool:
        """Change an item in this state, if any; `change` returns false if it did nothing."""
        reference = self.codec.reference(item)

        def body(tr: Transaction, now: int) -> bool:
            found = self._sweep.find(tr, now, reference)
            if found is None or state not in (None, found.state):
                return False
            return change(tr, now, found) is not False

        return self.change(tr, body)

    def update(self, tr: Transactor, item: _T | str, change: Callable[[_T, Level], Update]) -> _T:
        """Change a ready or delayed item; return it; raise `WrongState` or `QueueFull`."""
        reference = self.codec.reference(item)
        id = item if isinstance(item, str) else item.id

        def body(tr: Transaction, now: int) -> _T:
            found = self._sweep.find(tr, now, reference)
            if found is None or "update" not in STATES[found.state].changes:
                raise WrongState(id, "gone" if found is None else found.state)
            payload = read_payload(tr, self.layout, found.item.content)
            new = change(self.codec.decode(found.item, payload), found.item.level)
            if found.item.header.has_begun and (new.payload, new.due) != (None, None):
                raise WrongState(id, "begun")
            if found.due == NEVER and new.due is not None:
                raise WrongState(id, "waiting")
            if new.level.group not in (None, found.item.level.group):
                self._bounds.reserve(tr, new.level.group, in_queue=False)
            updated = self.changes.update(tr, now, found, new)
            return self.codec.decode(updated.item, payload if new.payload is None else new.payload)

        return self.change(tr, body)

    # All items

    def clear(self, tr: Transactor) -> None:
        """Delete all items, with their claims, dead letters and counters."""

        def body(tr: Transaction, now: int, after: bytes) -> bytes | None:
            last = leave_batches(tr, self.layout, now, after)
            if last is None:
                self.items.clear(tr, now)
                self.schedules.begin_again(tr)
            return last

        after: bytes | None = b""
        while after is not None:
            after = self.change(tr, partial(body, after=after))
