"""Find an item, or the items in a state, by their rows. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter

from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.layout.values import Lease, decode_lease
from fdbqueue.operations.items import Items
from fdbqueue.types import ReadTransaction, State

_key_of = attrgetter("key")


class Lookup:
    """The items of one queue as they are stored. Each method is part of a transaction.

    Under contention, a process stages items for the pops of others. They count as claimed until
    these processes take them, or are considered dead: then the items become ready again.
    """

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items

    def listed(
        self,
        tr: ReadTransaction,
        begin: bytes,
        end: bytes,
        limit: int,
        reverse: bool,
        state: State,
    ) -> Iterator[ItemRow]:
        """Iterate over the items in a state, which are read as they are needed.

        Args:
            tr: A transaction.
            begin: The first key, as that of a ready item.
            end: The key behind the last one, as that of a ready item.
            limit: The maximum number of items, 0 for all.
            reverse: Iterate in the opposite order of keys.
            state: The state.
        """
        layout = self._layout
        prefix, position = layout.prefix_of[state], layout.position
        first, last = prefix + position(begin), prefix + position(end)
        stored = (
            self._items.located(state, layout.items + row.key[len(prefix) :], row.value)
            for row in tr.get_range(first, last, limit=limit, reverse=reverse)
        )
        if state != "claimed":
            return stored
        staged = [row for row in self._staged(tr) if begin <= row.key < end]
        staged.sort(key=_key_of, reverse=reverse)
        return islice(merge(stored, staged, key=_key_of, reverse=reverse), limit or None)

    def indexed(
        self,
        tr: ReadTransaction,
        begin: bytes,
        end: bytes,
        limit: int,
        reverse: bool,
        index: bytes,
    ) -> list[ItemRow]:
        """Return up to `limit` ready items of an index, in a range of keys."""
        position = self._layout.position
        first, last = index + position(begin), index + position(end)
        rows = tr.get_range(first, last, limit=limit, reverse=reverse)
        found = self._items.at_positions(tr, [row.key[len(index) :] for row in rows])
        return [ItemRow("ready", item, item.header.attempts) for item in found]

    def locate(self, tr: ReadTransaction, reference: bytes) -> ItemRow | None:
        """Return the item with this reference in any state; `None` if it ended."""
        return self._items.find(tr, reference) or self.find_staged(tr, reference)

    def find_staged(self, tr: ReadTransaction, reference: bytes) -> ItemRow | None:
        """Return the item with this reference if it is staged; few are, and not in an index."""
        layout = self._layout
        for row in self._staged(tr):
            position, origin = layout.position(row.key), row.item.header.origin
            if reference in (position, origin, layout.unpack_item_key(row.key)[-1]):
                return row
        return None

    def begin_lease(self, tr: ReadTransaction, found: ItemRow) -> Callable[[], Lease | None]:
        """Start to read the lease of an item; the result is `None` if it has none."""
        if not found.token:
            return lambda: None
        layout = self._layout
        timer = tr[layout.timer_key(layout.leases, found.lease_end, layout.position(found.key))]
        return lambda: decode_lease(timer.value or b"")

    def _staged(self, tr: ReadTransaction) -> Iterator[ItemRow]:
        layout = self._layout
        rows = tr.get_range(*layout.range_of(layout.results), streaming_mode=WANT_ALL)
        for key, value in layout.staged_items(rows):
            item = self._items.levels.item(key, value)
            yield ItemRow("claimed", item, item.header.attempts)
