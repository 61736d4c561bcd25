"""Pushes: agree on the options, stay below the bound, append the payloads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from fdbqueue.errors import PushTooLarge
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.values import NEVER, decode_holder, encode_options, milliseconds_of
from fdbqueue.operations.changes import Changes, Update
from fdbqueue.operations.items import ITEM_BYTES, Items, NewItem, Tail
from fdbqueue.operations.limits.bounds import Bounds, Rooms
from fdbqueue.operations.options import has_kept
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.shards import check_shards
from fdbqueue.types import Transaction

_log = logging.getLogger("fdbqueue")

_items_of = attrgetter("items")
_group_of = attrgetter("level.group")

_MAX_PUSH = 9_900_000  # bytes; a transaction has up to 10,000,000
_MAY_BE_LARGE = 5_000_000
_LARGEST = 3_000  # bytes that an item with the longest names takes, in addition to its payload

_UNBOUNDED: Callable[[], Rooms] = dict

FindAt: TypeAlias = Callable[[Transaction, int, bytes], ItemRow | None]


class PushRequest(NamedTuple):
    """The items of one push call: all or none, or with `as_many_as_fit` the first."""

    items: list[NewItem]
    as_many_as_fit: bool = False

    @property
    def size(self) -> int:
        """Its bytes of a shared transaction."""
        return sum(len(item.payload) + ITEM_BYTES for item in self.items)


class Pushed(NamedTuple):
    """The stored item, or the unfinished holder of its unique key (`found`)."""

    key: bytes
    found: ItemRow | None
    is_new: bool


class Pusher:
    """The pushes of one queue."""

    def __init__(self, items: Items, find_at: FindAt, changes: Changes, bounds: Bounds) -> None:
        self.layout = items.layout
        self._items = items
        self._options = items.options
        self._find_at = find_at
        self._changes = changes
        self._bounds = bounds

    def set_options(self, tr: Transaction, now: int, changes: dict[str, Any]) -> None:
        """Store new values of options."""
        self._options.accept(changes)
        options = self._options.agree(tr)
        if "rate" in changes:
            self._items.rate.change(tr, now, changes["rate"])
        changed = replace(options, **{"keep_number": options.keep_number or None, **changes})
        check_shards(changed)
        if "shards" in changes:
            changed = self._items.shards.change(tr, options, changed)
        if "paused" in changes:
            self._items.tally(tr, now, paused=changes["paused"] - options.paused)
        if has_kept(options) and not changed.keeps_done:
            changed = replace(changed, keep_number=0)  # there may be done items to delete
        tr[self.layout.options] = encode_options(changed)

    def push(
        self,
        tr: Transaction,
        now: int,
        requests: list[PushRequest],
        relies_on_full: bool = False,
    ) -> list[list[bytes]]:
        """Append items to their levels; return each push's new keys, perhaps fewer without room.

        With `relies_on_full`, a refusal conflicts with every operation that makes room.
        """
        begin, end = self.layout.waiters_and_options
        options, given = self._options, requests
        if options.agreed.shards_before:
            options.agree(tr)  # an old number of shards would move groups
        expected = options.agreed
        if expected.shards or expected.shards_before:
            place = partial(self._items.shards.place, tr, expected)
            requests = [each._replace(items=place(each.items)) for each in requests]
        items = [*chain.from_iterable(map(_items_of, requests))]
        n = len(items)
        tr.add_read_conflict_key(self.layout.options)
        snapshot = tr.snapshot
        newest = snapshot.get_range(begin, end, limit=1 + n, reverse=True)
        begun = _UNBOUNDED
        if options.has_bounds:
            begun = self._bounds.begin(tr, options.agreed, map(_group_of, items))
        tails: dict[bytes, Tail] = {}
        for item in items:
            level = item.level
            if level.prefix not in tails:
                tails[level.prefix] = Tail(snapshot, level)
                if level.group is not None:
                    self._items.groups.prefetch(tr, level)
        waiters = [*newest]
        has_options = waiters and waiters[0].key == self.layout.options
        stored = waiters.pop(0).value if has_options else None
        if stored is None or stored != options.stored:
            options.agree_with(tr, stored)
            begun = self._bounds.begin(tr, options.agreed, map(_group_of, items))
            agreed = options.agreed
            if (agreed.shards, agreed.shards_before) != (expected.shards, expected.shards_before):
                return self.push(tr, now, given, relies_on_full)
        fitting = [*map(_items_of, requests)]
        if rooms := begun():
            fitting = self._bounds.fitting(tr, requests, rooms)
        keys = self._items.append(tr, now, chain.from_iterable(fitting), tails)
        if relies_on_full and len(keys) < n:
            self._bounds.rely_on_full(tr, items)
        for waiter in waiters[: len(keys)]:
            tr.clear(waiter.key)
        remaining = iter(keys)
        # Most transactions have one request.
        pushed = (
            [keys] if len(fitting) == 1 else [[*islice(remaining, len(each))] for each in fitting]
        )
        if n > 1:
            _check_size(tr, [*chain.from_iterable(fitting)])
        return pushed

    def push_unique(
        self, tr: Transaction, now: int, push: PushRequest, relies_on_full: bool
    ) -> list[Pushed]:
        """Push items, except where another item holds the unique key; return the items for all.

        Without room, the result is empty, or ends before the first item without room. The
        transaction conflicts with every change of the holders.
        """
        layout = self.layout
        names = [item.header.unique_key for item in push.items]
        given = [(name, item) for name, item in zip(names, push.items) if name is not None]
        values = read_all(tr, [layout.unique_key(name) for name, _ in given])
        held = {
            name: self._holder(tr, now, name, value, item)
            for (name, item), value in zip(given, values)
        }
        free = {name for name, holder in held.items() if holder is None}
        new: list[NewItem] = []
        for item, name in zip(push.items, names):
            if name is None or name in free:
                new.append(item)
                free.discard(name or "")  # the first item of a key gets it
        request = push._replace(items=new)
        keys = self.push(tr, now, [request], relies_on_full)[0] if new else []
        stored = {item.random: key for item, key in zip(new, keys)}
        _check_size(tr, new)
        pushed: list[Pushed] = []
        for item, name in zip(push.items, names):
            key = stored.get(item.random)
            holder = None if key is None else Pushed(key, None, is_new=True)
            if holder is None and name is not None:
                row = layout.unique_key(name)
                holder = held[name] or self._holder(tr, now, name, tr[row].value, item)
            if holder is None:  # the queue has no room
                return pushed if push.as_many_as_fit else []
            pushed.append(holder)
        return pushed

    def _holder(
        self, tr: Transaction, now: int, name: str, value: bytes | None, new: NewItem
    ) -> Pushed | None:
        if value is None:
            return None
        position, ends = decode_holder(value)
        if ends is not None and ends <= now:
            self._items.unique_keys.end_period(tr, name, ends)
            return None
        found = self._find_at(tr, now, position)
        # The sweep of the item may have made it a dead letter, which has given up its key.
        if ends is None and (found is None or found.state == "dead"):
            return None
        if new.at_most is not None and found is not None:
            found = self._replaced(tr, now, found, new, new.at_most)
        return Pushed(self.layout.items + position, found, is_new=False)

    def _replaced(
        self, tr: Transaction, now: int, row: ItemRow, new: NewItem, at_most: float
    ) -> ItemRow:
        """Replace an item if it waits and has not begun; return it."""
        if row.state not in ("ready", "delayed") or row.item.header.has_begun:
            return row
        due = None
        if row.due != NEVER and not row.attempts:  # a retry is not moved, however often this is
            pushed = milliseconds_of(self.layout.unpack_item_key(row.key)[-1])
            due = int(min(new.due or 0, pushed + at_most))
        update = Update(row.item.level, new.payload, new.random, due)
        return self._changes.update(tr, now, row, update)


def _check_size(tr: Transaction, items: list[NewItem]) -> None:
    if sum(len(item.payload) + _LARGEST for item in items) < _MAY_BE_LARGE:
        return
    approximate: Any = tr
    size: int = approximate.get_approximate_size().wait()
    if size > _MAX_PUSH:
        raise PushTooLarge(len(items), size, _MAX_PUSH)
