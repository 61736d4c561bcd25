"""Find an item, or the items in a state, by their rows. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.values import Lease, decode_lease
from fdbqueue.operations.items import Items
from fdbqueue.types import ReadTransaction, State


class Lookup:
    """The items of one queue as they are stored. Each method is part of a transaction.

    Under contention, a process stages items for the pops of others. They count as claimed, and
    nothing finds them until these processes take them, or are considered dead: then the items
    become ready again.
    """

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._row = items.levels.row

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
        return (
            self._row(state, layout.items + row.key[len(prefix) :], row.value)
            for row in tr.get_range(first, last, limit=limit, reverse=reverse)
        )

    def begin_lease(self, tr: ReadTransaction, found: ItemRow) -> Callable[[], Lease | None]:
        """Start to read the lease of an item; the result is `None` if it has none."""
        if not found.token:
            return lambda: None
        layout = self._layout
        timer = tr[layout.timer_key(layout.leases, found.lease_end, layout.position(found.key))]
        return lambda: decode_lease(timer.value or b"")
