"""Changes of single items within a transaction: remove them, move them, end their delays."""

from __future__ import annotations

from fdbqueue.layout.batches import End
from fdbqueue.layout.items import Level
from fdbqueue.layout.values import Dead, Header, encode_metadata, with_header
from fdbqueue.operations.batches import REMOVED
from fdbqueue.operations.done import DoneItems
from fdbqueue.operations.items import (
    Items,
    LocatedItem,
    NewItem,
    Tail,
    clear_kept,
)
from fdbqueue.operations.payloads import write_payload
from fdbqueue.types import KeyValue, State, Transaction

MOVABLE: tuple[State, ...] = ("ready", "delayed", "dead")
"""The states of items that can be moved."""

_REMOVED: dict[State, dict[str, int]] = {
    "ready": {"removed": 1},
    "delayed": {"removed": 1, "delayed": -1},
    "dead": {"removed": 1, "dead": -1},
    "done": {"done": -1},
}
"""The changes of the tallies when an item is removed that is in a state."""


class Changes:
    """The changes of items that a caller names. Each method is part of a transaction."""

    def __init__(self, items: Items, done: DoneItems) -> None:
        self._layout = items.layout
        self._items = items
        self._done = done

    def remove(self, tr: Transaction, now: int, found: LocatedItem) -> bool:
        """Remove an item in any state but claimed; return false for a claimed one.

        A done item does not count as removed: it has been completed.
        """
        if found.state == "claimed":
            return False
        self._delete(tr, now, found, REMOVED)
        self._items.tally(tr, now, **_REMOVED[found.state])
        return True

    def _delete(self, tr: Transaction, now: int, found: LocatedItem, end: End | None) -> None:
        """Delete an item in any state but claimed, with what it owns. The caller counts it.

        `end` is how a ready or delayed item ends; `None` if it moves.
        """
        layout, items = self._layout, self._items
        position, value = layout.position(found.key), found.item.value
        if found.state == "ready":
            items.take(tr, now, found.item, end)
        elif found.state == "delayed":
            items.undelay(tr, now, position, found.due)
            items.end(tr, now, found.item, end)
        elif found.state == "dead":
            items.unpark(tr, layout.dead, position)
            clear_kept(tr, layout, position, value)
            tr.clear_range(*layout.attempts_range(position))
        else:
            tr.clear(layout.timer_key(layout.done_times, found.finished_at, position))
            self._done.forget(tr, position, value)

    def run_now(self, tr: Transaction, now: int, delayed: LocatedItem) -> bool:
        """Make a delayed item ready; return true, because it existed."""
        header = delayed.item.header._replace(since=now)
        self._items.insert(tr, now, delayed.key, with_header(header, delayed.item.content))
        self._items.undelay(tr, now, self._layout.position(delayed.key), delayed.due)
        self._items.count_returned(tr, now, 1, delayed=-1)
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
        layout, state, item = self._layout, found.state, found.item
        position = layout.position(item.key)
        attempts: list[KeyValue] = []
        if item.header.failed_attempts or state == "dead":
            attempts += tr.get_range(*layout.attempts_range(position))
        # The item keeps its random part and its header.
        random = layout.unpack_item_key(item.key)[-1]
        header = item.header
        if self._items.ids_are_positions:
            header = header._replace(origin=header.origin or position)
        due = found.due if state == "delayed" else None
        new = NewItem(level, payload, random, due, header)
        tail = tails.get(level.prefix) or Tail(tr.snapshot, level)
        tails[level.prefix] = tail
        # Its steps are not those of a position, and stay; so does the batch that it waits for.
        header = item.header._replace(steps=0, waits=b"", awaits=False)
        bare = self._items.levels.item(item.key, with_header(header, item.content))
        self._delete(tr, now, found._replace(item=bare), None)
        if state == "dead":
            key = self._store_dead(tr, found, new, tail)
        else:
            self._items.tally(tr, now, moved=1, delayed=-1 if state == "delayed" else 0)
            (key,) = self._items.append(tr, now, [new], {level.prefix: tail})
        for row in attempts:
            number = layout.unpack_attempt_key(row.key)[1]
            tr[layout.attempt_key(layout.position(key), number)] = row.value
        return key

    def _store_dead(self, tr: Transaction, dead: LocatedItem, new: NewItem, tail: Tail) -> bytes:
        """Store a dead letter at the end of a level; return its new key.

        This changes no counter, and leaves its unique key to the item that may have taken it.
        """
        layout = self._layout
        count = tail.take_count(tr.get_read_version().wait())
        key = layout.item_key(new.level.prefix, count, new.random)
        position = layout.position(key)
        value = write_payload(tr, layout, new.random, new.payload, new.header)
        stored = encode_metadata(Dead(dead.attempts, dead.died_at, dead.error), value)
        self._items.park(tr, layout.dead, position, stored)
        self._items.index_header(tr, position, Header(origin=new.header.origin))
        return key
