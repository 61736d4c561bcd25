"""Changes of single items in any state within a transaction: remove and move."""

from __future__ import annotations

from fdbqueue.layout.items import Level
from fdbqueue.layout.keys import Layout
from fdbqueue.operations.done import DoneItems
from fdbqueue.operations.failures import Failures
from fdbqueue.operations.items import Items, LocatedItem, NewItem, Tail
from fdbqueue.types import KeyValue, State, Transaction

MOVABLE: tuple[State, ...] = ("ready", "delayed", "dead")
"""The states of items that can be moved."""


class Changes:
    """The changes of items that a caller names. Each method is part of a transaction."""

    def __init__(self, layout: Layout, items: Items, failures: Failures, done: DoneItems) -> None:
        self._layout = layout
        self._items = items
        self._failures = failures
        self._done = done

    def remove(self, tr: Transaction, now: int, found: LocatedItem) -> bool:
        """Remove an item in any state but claimed; return false for a claimed one.

        A done item does not count as removed: it has been completed.
        """
        layout = self._layout
        if found.state == "claimed":
            return False
        position = layout.position(found.item.key)
        if found.state == "ready":
            self._items.take(tr, now, found.item, None)
            self._items.tally(tr, now, removed=1)
        elif found.state == "delayed":
            self._items.undelay(tr, position, found.metadata[0])
            self._items.tally(tr, now, removed=1, delayed=-1)
            layout.clear_owned(tr, position, found.item.value)
        elif found.state == "dead":
            self._failures.drop(tr, now, found)
        else:
            tr.clear(layout.timer_key(layout.done_times, found.metadata[0], position))
            self._done.forget(tr, position, found.item.value)
            self._items.tally(tr, now, done=-1)
        return True

    def move(
        self,
        tr: Transaction,
        now: int,
        found: LocatedItem,
        payload: bytes,
        level: Level,
        tails: dict[bytes, Tail],
    ) -> bytes:
        """Move a ready, delayed or dead item to the end of a level; return its new key.

        `tails` are those of earlier moves of the transaction, by prefix, behind which it goes.
        """
        layout, (state, item, metadata) = self._layout, found
        position = layout.position(item.key)
        attempts: list[KeyValue] = []
        if item.header.attempts or state == "dead":
            attempts += tr.get_range(*layout.attempts_range(position))
        # The item keeps its random part and its header.
        random = layout.unpack_item_key(item.key)[-1]
        header = item.header
        if self._items.ids_are_positions:
            header = header._replace(origin=header.origin or position)
        due = metadata[0] if state == "delayed" else None
        new = NewItem(level, payload, random, due, header)
        tail = tails.get(level.prefix) or Tail(tr.snapshot, level)
        tails[level.prefix] = tail
        if state == "dead":
            key = self._failures.move(tr, position, found, new, tail)
        else:
            if state == "ready":
                self._items.take(tr, now, item, None)
                self._items.tally(tr, now, moved=1)
            else:
                self._items.undelay(tr, position, metadata[0])
                layout.clear_owned(tr, position, item.value)
                self._items.tally(tr, now, moved=1, delayed=-1)
            (key,) = self._items.append(tr, now, [new], {level.prefix: tail})
        for row in attempts:
            number = layout.unpack_attempt_key(row.key)[1]
            tr[layout.attempt_key(layout.position(key), number)] = row.value
        return key
