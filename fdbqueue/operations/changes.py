"""Changes to single items by a caller, and the end of old done items."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from fdbqueue.layout.batches import End, is_link
from fdbqueue.layout.items import ItemRow, Level, StoredItem
from fdbqueue.layout.jobs import renamed_call
from fdbqueue.layout.keys import WANT_ALL
from fdbqueue.layout.values import NEVER, with_header
from fdbqueue.operations.items import Items, Tail
from fdbqueue.operations.parallel import stored_at
from fdbqueue.operations.payloads import own_id, read_payload, with_small_row, write_payload
from fdbqueue.operations.transitions import Change
from fdbqueue.types import KeyValue, Options, ReadTransaction, Transaction

_REMOVED = End("removed")


class Update(NamedTuple):
    """The level of a waiting item, and what else of it changes; `None` keeps the payload or time.

    Attributes:
        id: The id of a large payload's pieces.
        due: When the item is due; a past time for at once.
    """

    level: Level
    payload: bytes | None = None
    id: bytes = b""
    due: int | None = None


class Changes:
    """The changes of the items of one queue."""

    def __init__(self, items: Items) -> None:
        self._layout = items.layout
        self._items = items
        self._perform = items.transitions.perform

    def remove(self, tr: Transaction, now: int, row: ItemRow) -> bool:
        """Remove an item; return false for a claimed one."""
        if row.state == "claimed":
            return False
        end = _REMOVED if row.state in ("ready", "delayed") else None
        self._rely_on(tr, row)
        self._perform(tr, now, [Change("removed", row, None, end)])
        return True

    def cancel(self, tr: Transaction, now: int, row: ItemRow) -> None:
        """End a ready or delayed item, kept as done if the queue does so; it counts as removed."""
        done = None
        if self._items.options.read(tr.snapshot).keeps_done:
            item = row.item.with_header(row.item.header._replace(waits=b"", awaits=False))
            done = ItemRow("done", item, row.attempts, finished_at=now, outcome="cancelled")
        self._rely_on(tr, row)
        self._perform(tr, now, [Change("cancelled", row, done, _REMOVED)])

    def tell(self, tr: Transaction, now: int, row: ItemRow, after_children: bool) -> None:
        """Cancel a waiting job that has begun: it runs once more to learn so.

        With `after_children`, a job that runs others goes on when they have ended.
        """
        header = row.item.header
        told: dict[str, Any] = {"cancelled": now, "cancelled_step": header.step, "waits": b""}
        runs_others = row.due == NEVER and not header.waits
        if row.state == "delayed" and not (after_children and runs_others):
            self.run_now(tr, now, row, **told)
        else:
            self._rely_on(tr, row)
            marked = row.with_header(header._replace(**told))
            self._perform(tr, now, [Change("marked", row, marked)])

    def _rely_on(self, tr: Transaction, row: ItemRow) -> None:
        """Conflict with clients that take an item found by a snapshot read."""
        if row.state == "ready":
            tr.add_read_conflict_key(row.key)

    def run_now(self, tr: Transaction, now: int, row: ItemRow, **fields: Any) -> None:
        """Make a delayed item ready; `fields` change its header."""
        self.update(tr, now, row, Update(row.item.level, due=now), **fields)

    def join(self, tr: Transaction, now: int, row: ItemRow, batches: list[bytes]) -> None:
        """Let a waiting or claimed item count in its followers' batches when it ends."""
        layout, item = self._layout, with_small_row(tr, self._layout, row.item)
        followers = item.header.followers
        prefix = layout.owned_prefix(layout.followers, layout.position(row.key))
        for number, batch in enumerate(batches, followers):
            tr[layout.entry_key(prefix, number)] = batch
        if any(map(is_link, batches)):
            tr[layout.linked] = b""
        item = item.with_header(item.header._replace(followers=followers + len(batches)))
        self._perform(tr, now, [Change("marked", row, row._replace(item=item))])

    def update(
        self, tr: Transaction, now: int, row: ItemRow, new: Update, **fields: Any
    ) -> ItemRow:
        """Change a ready or delayed item, and `fields` of its header; return its row.

        It goes to the end of another level, or keeps its place.
        """
        layout, item = self._layout, row.item
        key, content, due, level = item.key, item.content, row.due, new.level
        if level is not item.level:
            level = self._items.shards.level_for(tr, level, item.level)
        header = item.header._replace(**fields)
        self._rely_on(tr, row)
        if level.prefix != item.level.prefix:
            header = header._replace(origin=header.origin or layout.position(key))
            count = Tail(tr.snapshot, level).take_count(tr.get_read_version().wait())
            key = layout.item_key(level.prefix, count, layout.unpack_item_key(key)[-1])
        if new.payload is not None:
            content = write_payload(tr, layout, new.id, new.payload)
            header = header._replace(unknown=None)
        if new.due is not None:
            due = new.due if new.due > now else 0
        if row.state == "delayed" and not due:
            header = header._replace(since=now, unknown=None)
        stored = StoredItem(key, with_header(header, content), level)
        updated = ItemRow("delayed" if due else "ready", stored, row.attempts, due)
        self._perform(tr, now, [Change("updated", row, updated)])
        return updated

    def rename_job(self, tr: Transaction, now: int, row: ItemRow, old: str, new: str) -> bool:
        """Give the job of an item another name; return false if it has not the old one.

        A client that runs it goes on.
        """
        layout, item = self._layout, row.item
        payload = renamed_call(read_payload(tr, layout, item.content), old, new)
        if payload is None:
            return False
        if item.is_in_pieces:
            tr.clear_range(*layout.range_of(layout.pieces_prefix(item.content)))
        value = write_payload(tr, layout, own_id(layout, item.key), payload, item.header)
        self._rely_on(tr, row)
        renamed = row._replace(item=StoredItem(item.key, value, item.level))
        self._perform(tr, now, [Change("marked", row, renamed)])
        return True

    # Done items

    def done_at(self, tr: ReadTransaction, rows: Iterable[KeyValue]) -> list[ItemRow]:
        """Return the done items of rows of the index by time."""
        layout = self._layout
        positions = [layout.unpack_timer_key(layout.done_times, row.key)[1] for row in rows]
        return [
            self._items.levels.row("done", layout.items + position, stored)
            for position, stored in stored_at(tr, layout.done, positions)
        ]

    def trim(self, tr: Transaction, now: int, options: Options, limit: int) -> int:
        """Delete up to `limit` old done items, oldest first; return their number.

        Conflicts only with other trims.
        """
        layout = self._layout
        ranges = layout.shard_ranges(layout.done_times, options.shards or 1)
        counters = self._items.begin_counters(tr.snapshot)
        begun = [
            tr.snapshot.get_range(*each, limit=limit, streaming_mode=WANT_ALL) for each in ranges
        ]
        excess = oldest = 0
        if options.keep_number is not None:
            excess = counters().tallies["done"] - options.keep_number
        if options.keep_seconds is not None:
            oldest = now - 1000 * options.keep_seconds
        time_of = partial(layout.unpack_timer_key, layout.done_times)
        rows = sorted(chain.from_iterable(begun), key=lambda row: time_of(row.key))[:limit]
        old = [
            row
            for number, row in enumerate(rows)
            if number < excess or time_of(row.key)[0] < oldest
        ]
        if not old:
            return 0
        trimmed = [Change("trimmed", row, None) for row in self.done_at(tr.snapshot, old)]
        for begin, end in ranges:
            last = max((row.key for row in old if begin <= row.key < end), default=None)
            if last is not None:
                tr.add_read_conflict_range(begin, last + b"\x00")
                tr.clear_range(begin, last + b"\x00")
        self._perform(tr, now, trimmed)
        return len(old)
