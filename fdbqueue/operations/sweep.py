"""Sweeps: leases end, delayed items become available, items expire."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import WANT_ALL, shard_prefix
from fdbqueue.layout.values import NEVER
from fdbqueue.operations.items import EXPIRED, Items
from fdbqueue.operations.parallel import stored_at
from fdbqueue.operations.timers import VERSIONS, clear_timers, has_expired, timer_over
from fdbqueue.operations.transitions import Change
from fdbqueue.operations.waking import wake
from fdbqueue.types import KeyValue, State, Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.claims import ClaimedItems
    from fdbqueue.operations.jobs.schedules import Schedules

_FOREIGN_LOOK = 10_000  # milliseconds between looks for leases of another cluster

_FEW = 32
_SHARDS_IN_TURN = 8
MAX_SWEPT = 256
"""Maximum number of items of each kind in one sweep."""


def _up_to(limit: int, of_shards: Iterable[list[KeyValue]]) -> list[list[KeyValue]]:
    """Return the first timers of the shards, up to a number of them altogether."""
    found: list[list[KeyValue]] = []
    for timers in of_shards:
        some = timers[:limit]
        limit -= len(some)
        if some:
            found.append(some)
    return found


class Swept(NamedTuple):
    """The progress of a sweep: whether nothing due, and no expired item, is left."""

    all: bool
    expired: bool
    wrote: bool


class Sweep:
    """The sweeps of one queue. A client sweeps before it takes items.

    If many items are due, the earliest become available first. Expired items are never taken.
    """

    def __init__(self, items: Items, claimed: ClaimedItems, schedules: Schedules) -> None:
        self._layout = items.layout
        self._items = items
        self._claimed = claimed
        self._schedules = schedules
        self._turn = 0  # the next shard to sweep in turn
        self._foreign_look = 0  # the time of the last look for leases of another cluster

    def sweep(self, tr: Transaction, now: int) -> Swept:
        """Sweep up to 256 items of each kind; conflict with any change of them."""
        return self.begin_sweep(tr, now, tr.get_read_version().wait(), in_claim=False)()

    def begin_sweep(
        self,
        tr: Transaction,
        now: int,
        version: int,
        in_claim: bool = True,
        in_turn: bool = False,
    ) -> Callable[[], Swept]:
        """Start the reads of a sweep; with `in_turn`, of a few shards.

        A sweep in a claim looks at 32 items of each kind. If more are due, it only deletes expired
        items: all clients would conflict on the others.
        """
        wrote, limit = False, _FEW if in_claim else MAX_SWEPT
        shards = self._shards(tr, in_turn)
        # A try of the transaction that fails after this has looked in vain; the next look helps.
        if abs(now - self._foreign_look) >= _FOREIGN_LOOK:
            self._foreign_look = now
            wrote = self._claimed.end_foreign(tr, now, limit=_FEW)
        layout = self._layout
        indexes = (layout.leases, version), (layout.dues, now), (layout.expiries, now)
        # Read only what is due: a queue may have very many timers.
        due = [
            layout.timers_until(index + shard, last) for shard in shards for index, last in indexes
        ]
        reads = [tr.snapshot.get_range(*each, limit=limit, streaming_mode=WANT_ALL) for each in due]

        def finish() -> Swept:
            leases, dues, expiries = (
                _up_to(limit, map(list, reads[kind :: len(indexes)]))
                for kind in range(len(indexes))
            )
            numbers = [sum(map(len, each)) for each in (leases, dues, expiries)]
            is_all = max(numbers[:2]) < limit
            moves = sum(numbers[:2]) > 0 and (is_all or not in_claim)
            is_behind = False
            for timers in expiries:
                self._end_timers(tr, now, "ready", timers)
            if moves:
                # Leases last: an item that returns has its unique key again unless another has it.
                for timers in dues:
                    self._end_timers(tr, now, "delayed", timers)
                for timers in leases:
                    self._claimed.end_over(tr, now, timers)
                keys = [timer.key for timer in chain.from_iterable(dues)]
                references = [layout.unpack_timer_key(layout.dues, key)[1] for key in keys]
                is_behind = self._schedules.tick_all(tr, now, references)
                wake(tr, layout.waiters, self._items.groups.end_holds(tr, now, references))
                if layout.queue_reference in references:
                    self._items.rate.look_again(tr, now)
            return Swept(
                all=max(numbers) < limit and not is_behind,
                expired=numbers[2] < limit,
                wrote=wrote or moves or numbers[2] > 0,
            )

        return finish

    def _shards(self, tr: Transaction, in_turn: bool) -> list[bytes]:
        number = self._items.options.known_shards(tr)
        numbers = range(number)
        if in_turn and number > _SHARDS_IN_TURN:
            self._turn = (self._turn + _SHARDS_IN_TURN) % number
            numbers = range(self._turn, self._turn + _SHARDS_IN_TURN)
        return [shard_prefix(each % number) for each in numbers]

    def find(self, tr: Transaction, now: int, reference: bytes) -> ItemRow | None:
        """Return an item, swept if its timer is over; `None` if it ended."""
        found = self._items.at(tr, reference)
        timer = found and timer_over(tr, self._layout, found, now)
        if found is None or timer is None:
            return found
        rows = list(tr.get_range(timer, timer + b"\x00", limit=1))
        if found.state == "claimed":
            self._claimed.end_over(tr, now, rows)
        else:
            self._end_timers(tr, now, found.state, rows)
        return self._items.at(tr, reference)

    def _end_timers(self, tr: Transaction, now: int, state: State, timers: list[KeyValue]) -> None:
        layout, changes = self._layout, list[Change]()
        index = layout.dues if state == "delayed" else layout.expiries
        ends = [layout.unpack_timer_key(index, timer.key) for timer in timers]
        end_of = {position: end for end, position in ends}
        found = stored_at(tr, layout.prefix_of[state], end_of)
        clear_timers(tr, timers)
        for position, stored in found:
            row = self._items.levels.row(state, layout.items + position, stored)
            if state == "ready":
                tr.add_read_conflict_key(row.key)
            if has_expired(row.item.header.expires, now):
                changes.append(Change("expired", row, None, EXPIRED))
            elif state == "delayed":
                header = row.item.header._replace(since=end_of[position])
                ready = ItemRow("ready", row.item.with_header(header), row.attempts)
                changes.append(Change("due", row, ready))
        self._items.transitions.perform(tr, now, changes)

    def seconds_left(self, tr: Transaction, now: int) -> float:
        """Return the seconds until a lease ends or an item is due, or `math.inf`."""
        layout, shards = self._layout, self._items.options.known_shards(tr)
        first = partial(tr.snapshot.get_range, limit=1)
        leases, dues = (
            [first(*each) for each in layout.shard_ranges(index, shards)]
            for index in (layout.leases, layout.dues)
        )
        left = math.inf
        for row in chain.from_iterable(leases):
            end = layout.unpack_timer_key(layout.leases, row.key)[0]
            left = min(left, (end - tr.get_read_version().wait()) / VERSIONS)
        for row in chain.from_iterable(dues):
            due = layout.unpack_timer_key(layout.dues, row.key)[0]
            left = min(left, math.inf if due == NEVER else (due - now) / 1000)
        return max(0.0, left)
