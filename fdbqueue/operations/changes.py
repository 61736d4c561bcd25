"""Changes of single items within a transaction: remove, cancel, move or keep them, end delays."""

from __future__ import annotations

from collections.abc import Iterable

from fdbqueue.layout.batches import End
from fdbqueue.layout.items import Level
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.layout.values import (
    NEVER,
    Dead,
    Done,
    Header,
    decode_metadata,
    encode_metadata,
    with_header,
)
from fdbqueue.operations.batches import REMOVED, clear_waits, end_wait, note_end
from fdbqueue.operations.items import (
    Items,
    LocatedItem,
    NewItem,
    Tail,
    clear_kept,
    free_unique,
    stored_at,
)
from fdbqueue.operations.payloads import write_payload
from fdbqueue.types import KeyValue, Options, ReadTransaction, State, Transaction

MOVABLE: tuple[State, ...] = ("ready", "delayed", "dead")
"""The states of items that can be moved."""

_REMOVED: dict[State, dict[str, int]] = {
    "ready": {"removed": 1},
    "delayed": {"removed": 1, "delayed": -1},
    "dead": {"removed": 1, "dead": -1},
    "done": {"done": -1},
}
"""The changes of the tallies when an item is removed that is in a state."""


class DoneItems:
    """The done items of a queue that keeps some. Each method is part of a transaction."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items

    def finish(self, tr: Transaction, position: bytes, value: bytes, done: Done) -> None:
        """Keep an item that has ended. The caller counts it."""
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

    def cancel(
        self, tr: Transaction, now: int, waiting: LocatedItem, why: str | None = None
    ) -> bool:
        """End a ready or delayed item, and keep it as done if the queue does so; return true.

        It counts as removed in either case.
        """
        options = self._items.options.read(tr.snapshot)
        if options is None or not options.keeps_done:
            return self.remove(tr, now, waiting)
        position, value = self._layout.position(waiting.key), waiting.item.value
        self._take_out(tr, now, waiting)
        kept = clear_waits(tr, self._layout, position, value)
        done = Done(now, waiting.attempts, "cancelled", why, None, "", "")
        self._done.finish(tr, position, kept, done)
        note_end(tr, self._layout, now, position, value, REMOVED)
        self._items.tally(tr, now, done=1, **_REMOVED[waiting.state])
        return True

    def _take_out(self, tr: Transaction, now: int, waiting: LocatedItem) -> None:
        """Delete a ready or delayed item, but not what it owns. The caller counts it."""
        if waiting.state == "ready":
            tr.add_read_conflict_key(waiting.key)
            self._items.delete(tr, now, [waiting.item], None)
        else:
            self._items.undelay(tr, now, waiting)

    def _delete(self, tr: Transaction, now: int, found: LocatedItem, end: End | None) -> None:
        """Delete an item in any state but claimed, with what it owns. The caller counts it.

        `end` is how a ready or delayed item ends; `None` if it moves.
        """
        layout, items = self._layout, self._items
        position, value = layout.position(found.key), found.item.value
        if found.state in ("ready", "delayed"):
            self._take_out(tr, now, found)
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
        header = delayed.item.header._replace(since=now, unknown=None)
        self._items.insert(tr, now, delayed.key, with_header(header, delayed.item.content))
        self._items.undelay(tr, now, delayed)
        self._items.count_returned(tr, now, 1, delayed=-1)
        return True

    def end_wait(self, tr: Transaction, now: int, found: LocatedItem) -> bool:
        """Let a delayed item go on if nothing will end its wait; return whether it does."""
        position, header = self._layout.position(found.key), found.item.header
        return found.due == NEVER and end_wait(tr, self._layout, now, position, header)

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
