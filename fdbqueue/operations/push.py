"""Pushes within a transaction: agree on the options, stay below the bound, append the payloads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple

from fdbqueue.errors import OptionsMismatch, QueueFull
from fdbqueue.layout.values import decode_options, encode_count, encode_options
from fdbqueue.operations.items import Items, LocatedItem, NewItem, Tail
from fdbqueue.operations.names import register
from fdbqueue.operations.slots import Places
from fdbqueue.operations.sweep import Sweep
from fdbqueue.types import Options, Transaction

_log = logging.getLogger("fdbqueue")

_items_of = attrgetter("items")

ITEM_BYTES = 250
"""The bytes of a transaction that an item takes, in addition to its payload."""

_FLEXIBLE = ("max_size", "max_attempts", "keep_seconds", "keep_number")
"""Options that a client may omit when it opens a queue, and may change later."""


def reconcile_options(given: Options, stored: Options) -> Options:
    """Return the stored options, which hold.

    Log a warning if a limit that was given differs: the clients of a deployment that changes it
    must go on. Raise `OptionsMismatch` if another option differs.
    """
    for option in ("kind", "codec", "priorities", "ageing", *_FLEXIBLE):
        wanted, actual = getattr(given, option), getattr(stored, option)
        if wanted == actual or (option in _FLEXIBLE and wanted is None):
            continue
        mismatch = OptionsMismatch(option, wanted, actual)
        if option not in _FLEXIBLE:
            raise mismatch
        _log.warning("%s. The stored value holds.", mismatch)
    return stored


class PushRequest(NamedTuple):
    """The items of one push call.

    Attributes:
        items: The items to push.
        as_many_as_fit: Whether to store the first items if there is no room for all. Otherwise the
            push stores all items or none.
    """

    items: list[NewItem]
    as_many_as_fit: bool = False

    @property
    def size(self) -> int:
        """The bytes that it takes of a shared transaction."""
        return sum(len(item.payload) + ITEM_BYTES for item in self.items)


class Pusher:
    """The pushes of one queue. Each method is part of a transaction.

    The first push stores the queue's options. Every push reads them, so all clients follow the same
    options, even if the options changed after a client opened the queue.

    In a bounded queue, a transaction takes one place for each item that it adds. An item occupies a
    place from its push until it ends: while it is ready, delayed or claimed. Pops,
    acknowledgements, expiry, removal and death end an item. A claim, its release, a retried failure
    and an expired lease only move it, and the number of taken places stays the same. So only pushes
    and retries of dead letters take places. (`put_back` takes none: it may exceed the bound.) The
    transaction reads the counters in its own snapshot, so their sum is exact. Unbounded queues pay
    nothing.

    `Places` says how pushes keep to the bound without conflicting with each other far from it. All
    operations other than those above leave the number of taken places unchanged or lower it.
    """

    def __init__(self, items: Items, sweep: Sweep, options: Options, places: Places) -> None:
        self.layout = items.layout
        self._items = items
        self._sweep = sweep
        self._given = options
        self.options = options
        """The options that the last push read or stored."""
        self._stored = b""
        self._places = places

    def set_options(self, tr: Transaction, now: int, changes: dict[str, Any]) -> bool:
        """Store new values of options; return true, because this wrote something."""
        # Accept any stored value from now on.
        given: dict[str, Any] = dict.fromkeys(changes.keys() & {*_FLEXIBLE})
        self._given = replace(self._given, **given)
        self._agree(tr, tr.get(self.layout.options).value)
        if "paused" in changes:
            self._items.tally(tr, now, paused=changes["paused"] - self.options.paused)
        changed = replace(self.options, **changes)
        has_kept = (self.options.keep_seconds, self.options.keep_number) != (None, None)
        if has_kept and not changed.keeps_done:
            changed = replace(changed, keep_number=0)  # there may be done items to delete
        tr[self.layout.options] = encode_options(changed)
        return True

    def push(self, tr: Transaction, now: int, requests: list[PushRequest]) -> list[list[bytes]]:
        """Append items to their levels; return the keys of each push's new items.

        A push that the queue has no room for has no keys. With `as_many_as_fit` it has the keys of
        the items that fit.
        """
        # Start all reads before waiting for the first.
        begin, end = self.layout.waiters_and_options
        n = sum(map(len, map(_items_of, requests)))
        tr.add_read_conflict_key(self.layout.options)
        snapshot = tr.snapshot
        newest = snapshot.get_range(begin, end, limit=1 + n, reverse=True)
        known_bound = self.options.max_size
        taken = None if known_bound is None else self._begin_count(tr)
        tails: dict[bytes, Tail] = {}
        for item in chain.from_iterable(map(_items_of, requests)):
            level = item.level
            if level.prefix not in tails:
                tails[level.prefix] = Tail(snapshot, level)
        waiters = [*newest]
        has_options = waiters and waiters[0].key == self.layout.options
        stored = waiters.pop(0).value if has_options else None
        if stored != self._stored:
            self._agree(tr, stored)
        fitting = [*map(_items_of, requests)]
        bound = self.options.max_size
        if bound is not None:
            if taken is None or bound != known_bound:
                taken = self._begin_count(tr)
            fitting = self._fitting(tr, requests, taken(), bound)
        keys = self._items.append(tr, now, chain.from_iterable(fitting), tails)
        for waiter in waiters[: len(keys)]:
            tr.clear(waiter.key)
        remaining = iter(keys)
        return [[*islice(remaining, len(items))] for items in fitting]

    def push_unique(
        self, tr: Transaction, now: int, item: NewItem, relies_on_full: bool
    ) -> LocatedItem | None:
        """Push an item unless an unfinished item has its unique key; return the item with the key.

        An item with the key that has expired makes room first. The result is `None` if the queue is
        full. The transaction conflicts with every change of the item with the key.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            item: The item to push.
            relies_on_full: Whether the rest of the transaction may depend on the queue being full.
        """
        key = self.layout.unique_key(str(item.header.unique))
        found = self._find_unique(tr, now, key)
        if found is None and self.push(tr, now, [PushRequest([item])])[0]:
            found = self._find_unique(tr, now, key)
        if found is None and relies_on_full:
            self.rely_on_full(tr)
        return found

    def _find_unique(self, tr: Transaction, now: int, key: bytes) -> LocatedItem | None:
        position = tr[key].value
        found = None if position is None else self._sweep.find_at(tr, now, position)
        # The sweep of the item may have made it a dead letter, which has given up its key.
        return None if found is None or found.state == "dead" else found

    def reserve(self, tr: Transaction) -> None:
        """Take a place for the retry of a dead letter; raise `QueueFull` if no place is free."""
        options = self._items.options.read(tr)
        if options is None or options.max_size is None:
            return
        bound = options.max_size
        taken = self._begin_count(tr)()
        if taken >= bound:
            self.rely_on_full(tr)
            raise QueueFull(bound, 1)
        self._places.take(tr, self.layout.places, taken, bound, 1)

    def _begin_count(self, tr: Transaction) -> Callable[[], int]:
        """Start to count the taken places.

        The reads are snapshot reads, which see the transaction's own writes.

        Cost: the counters, at most 260 small rows.

        Returns:
            A function that waits for the reads and returns the count.
        """
        counters = self._items.begin_counters(tr.snapshot)
        return lambda: counters().unfinished

    def rely_on_full(self, tr: Transaction) -> None:
        """Conflict with every operation that frees a place, so that the queue is full at commit."""
        layout = self.layout
        for key in (layout.tallies, layout.level_counts):
            tr.add_read_conflict_key(key)
        tr.add_read_conflict_range(*layout.range_of(layout.level_counts))

    def _agree(self, tr: Transaction, stored: bytes | None) -> None:
        """Adopt the stored options; store the given ones if there are none yet."""
        if stored is None:
            self.options = self._given
            tr[self.layout.options] = encode_options(self._given)
            if self.layout.name is not None:
                register(tr, self.layout.name, self.layout.subspace)
            return
        self.options = reconcile_options(self._given, decode_options(stored))
        self._stored = stored

    def _fitting(
        self, tr: Transaction, pushes: list[PushRequest], taken: int, bound: int
    ) -> list[list[NewItem]]:
        fitting: list[list[NewItem]] = []
        room = bound - taken
        for push in pushes:
            items = push.items
            if len(items) > room:
                items = items[: max(0, room)] if push.as_many_as_fit else []
            room -= len(items)
            fitting.append(items)
        pushed = bound - taken - room
        if pushed:
            self._places.take(tr, self.layout.places, taken, bound, pushed)
        rejected = sum(len(push.items) for push in pushes) - pushed
        if rejected:
            tr.add(self.layout.total_rejected, encode_count(rejected))
        return fitting
