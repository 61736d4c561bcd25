"""The end of delays within a transaction: when they are over, or a caller ends them."""

from __future__ import annotations

from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import decode_metadata, header_of, with_header
from fdbqueue.operations.items import Items, LocatedItem
from fdbqueue.types import KeyValue, Transaction


class Delays:
    """The delayed items of a queue, which `Items.delay` stores."""

    def __init__(self, layout: Layout, items: Items) -> None:
        self._layout = layout
        self._items = items

    def make_available(self, tr: Transaction, now: int, timers: list[KeyValue]) -> None:
        """Make the items of these delays available."""
        layout = self._layout
        dues = [layout.unpack_timer_key(layout.dues, timer.key) for timer in timers]
        # Start all reads before waiting for the first.
        delayed = [tr[layout.delayed + position] for _, position in dues]
        n = 0
        self._items.clear_timers(tr, timers)
        for (due, position), stored in zip(dues, delayed):
            self._items.unpark(tr, layout.delayed, position)
            if stored.value is not None:
                header, content = header_of(decode_metadata(stored.value)[1])
                value = with_header(header._replace(since=due), content)
                self._items.insert(tr, now, layout.items + position, value)
                n += 1
        if n:
            self._items.tally(tr, now, delayed=-n)

    def run_now(self, tr: Transaction, now: int, delayed: LocatedItem) -> bool:
        """Make a delayed item ready; return true, because it existed."""
        self._items.undelay(tr, self._layout.position(delayed.key), delayed.metadata[0])
        header = delayed.item.header._replace(since=now)
        self._items.insert(tr, now, delayed.key, with_header(header, delayed.item.content))
        self._items.count_returned(tr, now, 1, delayed=-1)
        return True
