"""Changes of single items within a transaction: remove, cancel or move them, end their delays."""

from __future__ import annotations

from collections.abc import Iterable

from fdbqueue.layout.batches import End, is_link
from fdbqueue.layout.items import ItemRow, Level, StoredItem
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.layout.values import with_header
from fdbqueue.operations.items import Items, Tail
from fdbqueue.operations.parallel import stored_at
from fdbqueue.operations.payloads import own_id, with_small_row, write_payload
from fdbqueue.operations.transitions import Change
from fdbqueue.types import KeyValue, Options, ReadTransaction, State, Transaction

MOVABLE: tuple[State, ...] = ("ready", "delayed", "dead")
"""The states of items that can be moved."""

_REMOVED = End("removed")


class Changes:
    """The changes of items that a caller names. Each method is part of a transaction."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items
        self._perform = items.transitions.perform

    def remove(self, tr: Transaction, now: int, row: ItemRow) -> bool:
        """Remove an item in any state but claimed; return false for a claimed one.

        A done item does not count as removed: it has been completed.
        """
        if row.state == "claimed":
            return False
        end = _REMOVED if row.state in ("ready", "delayed") else None
        self._rely_on(tr, row)
        self._perform(tr, now, [Change("removed", row, None, end)])
        return True

    def cancel(self, tr: Transaction, now: int, row: ItemRow, why: str | None = None) -> bool:
        """End a ready or delayed item, and keep it as done if the queue does so; return true.

        It counts as removed in either case.
        """
        options = self._items.options.read(tr.snapshot)
        done = None
        if options is not None and options.keeps_done:
            item = row.item.with_header(row.item.header._replace(waits=b"", awaits=False))
            done = ItemRow("done", item, row.attempts, finished_at=now, error=why)
            done = done._replace(outcome="cancelled")
        self._rely_on(tr, row)
        self._perform(tr, now, [Change("cancelled", row, done, _REMOVED)])
        return True

    def _rely_on(self, tr: Transaction, row: ItemRow) -> None:
        """Conflict with a client that takes a ready item, which a search has read by a snapshot."""
        if row.state == "ready":
            tr.add_read_conflict_key(row.key)

    def run_now(self, tr: Transaction, now: int, row: ItemRow) -> bool:
        """Make a delayed item ready; return true, because it existed."""
        item = row.item.with_header(row.item.header._replace(since=now, unknown=None))
        self._perform(tr, now, [Change("run now", row, ItemRow("ready", item, row.attempts))])
        return True

    def join(self, tr: Transaction, now: int, row: ItemRow, batches: list[bytes]) -> None:
        """Let a waiting or claimed item count in more batches when it ends.

        These are the batches of its followers. A transaction that takes, ends or moves it meanwhile
        conflicts: it reads the row of the item.
        """
        layout, item = self._layout, with_small_row(tr, self._layout, row.item)
        followers = item.header.followers
        for number, batch in enumerate(batches, followers):
            tr[layout.follower_key(layout.position(row.key), number)] = batch
        if any(map(is_link, batches)):
            tr[layout.linked] = b""
        item = item.with_header(item.header._replace(followers=followers + len(batches)))
        self._perform(tr, now, [Change("marked", row, row._replace(item=item))])

    def move(
        self,
        tr: Transaction,
        now: int,
        row: ItemRow,
        payload: bytes | None,
        level: Level,
        tails: dict[bytes, Tail],
    ) -> bytes:
        """Move a ready, delayed or dead item to the end of a level; return its new key.

        The item keeps its random part, its header, the steps of its job, and with `None` its
        payload. `tails` are those of earlier moves of the transaction, behind which it goes, by
        prefix.
        """
        layout, item = self._layout, row.item
        position, header = layout.position(item.key), item.header
        attempts: list[KeyValue] = []
        if header.failed_attempts or row.state == "dead":
            attempts += tr.get_range(*layout.attempts_range(position))
        header = header._replace(origin=header.origin or position)
        tail = tails.get(level.prefix) or Tail(tr.snapshot, level)
        tails[level.prefix] = tail
        count = tail.take_count(tr.get_read_version().wait())
        random = layout.unpack_item_key(item.key)[-1]
        key = layout.item_key(level.prefix, count, random)
        if payload is None:
            value = with_header(header, item.content)
        else:
            value = write_payload(tr, layout, own_id(layout, key), payload, header)
        self._rely_on(tr, row)
        moved = row._replace(item=StoredItem(key, value, level))
        self._perform(tr, now, [Change("moved", row, moved)])
        for stored in attempts:
            number = layout.unpack_attempt_key(stored.key)[1]
            tr[layout.attempt_key(layout.position(key), number)] = stored.value
        return key

    # Done items

    def done_at(self, tr: ReadTransaction, rows: Iterable[KeyValue]) -> list[ItemRow]:
        """Return the done items of some rows of the index of times."""
        layout = self._layout
        positions = [layout.unpack_timer_key(layout.done_times, row.key)[1] for row in rows]
        return [
            self._items.levels.row("done", layout.items + position, stored)
            for position, stored in stored_at(tr, layout.done, positions)
        ]

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
        begin, end = layout.range_of(layout.done_times)
        counters = self._items.begin_counters(tr.snapshot)
        rows = [*tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)]
        excess = oldest = 0
        if options.keep_number is not None:
            excess = counters().tallies["done"] - options.keep_number
        if options.keep_seconds is not None:
            oldest = now - 1000 * options.keep_seconds
        old = [
            row
            for number, row in enumerate(rows)
            if number < excess or layout.unpack_timer_key(layout.done_times, row.key)[0] < oldest
        ]
        if not old:
            return 0
        tr.add_read_conflict_range(begin, old[-1].key + b"\x00")
        done = self.done_at(tr.snapshot, old)
        tr.clear_range(begin, old[-1].key + b"\x00")
        self._perform(tr, now, [Change("trimmed", row, None) for row in done])
        return len(old)
