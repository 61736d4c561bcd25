"""Done items within a transaction: keep them with their results, find them, and trim them."""

from __future__ import annotations

from collections.abc import Iterable

from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.layout.values import Done, decode_metadata, encode_metadata
from fdbqueue.operations.items import (
    Items,
    LocatedItem,
    clear_kept,
    free_unique,
    stored_at,
)
from fdbqueue.types import KeyValue, Options, ReadTransaction, Transaction


class DoneItems:
    """The done items of a queue that keeps some. Each method is part of a transaction."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items

    def finish(self, tr: Transaction, position: bytes, value: bytes, done: Done) -> None:
        """Keep an item that was claimed and is done. The caller counts it."""
        layout = self._layout
        free_unique(tr, layout, value)
        stored = encode_metadata(done, value)
        self._items.park(tr, layout.done, position, stored)
        tr[layout.timer_key(layout.done_times, done.finished_at, position)] = b""

    def store_result(self, tr: Transaction, position: bytes, result: bytes) -> None:
        """Store the result of a done item: what its handler has returned, as JSON."""
        tr[self._layout.returned + position] = result

    def at(self, tr: ReadTransaction, rows: Iterable[KeyValue]) -> list[LocatedItem]:
        """Return the done items of some rows of the index of times."""
        layout = self._layout
        positions = [layout.unpack_timer_key(layout.done_times, row.key)[1] for row in rows]
        return [
            self._items.located("done", layout.items + position, stored)
            for position, stored in stored_at(tr, layout.done, positions)
        ]

    def forget(self, tr: Transaction, position: bytes, value: bytes) -> None:
        """Delete a done item, with what it owns, except its entry in the index of times."""
        layout = self._layout
        self._items.unpark(tr, layout.done, position)
        tr.clear(layout.returned + position)
        clear_kept(tr, layout, position, value)

    def trim(self, tr: Transaction, now: int, options: Options, limit: int) -> int:
        """Delete up to `limit` done items, the oldest first, that the queue no longer keeps.

        Conflicts with others that do so, and with nothing else.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            options: The options of the queue.
            limit: The maximum number of items.

        Returns:
            The number of deleted items.
        """
        layout = self._layout
        times = layout.done_times
        begin, end = layout.range_of(times)
        counters = self._items.begin_counters(tr.snapshot)
        rows = [*tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)]
        excess = oldest = 0
        if options.keep_number is not None:
            excess = counters().tallies["done"] - options.keep_number
        if options.keep_seconds is not None:
            oldest = now - 1000 * options.keep_seconds
        timers = [layout.unpack_timer_key(times, row.key) for row in rows]
        old = [
            position
            for number, (time, position) in enumerate(timers)
            if number < excess or time < oldest
        ]
        if not old:
            return 0
        end = rows[len(old) - 1].key + b"\x00"
        tr.add_read_conflict_range(begin, end)
        tr.clear_range(begin, end)
        for position, stored in stored_at(tr.snapshot, layout.done, old):
            self.forget(tr, position, decode_metadata(stored)[1])
        self._items.tally(tr, now, done=-len(old))
        return len(old)
