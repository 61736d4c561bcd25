"""Unique keys: at most one unfinished item holds a key.

An item holds its key while ready or delayed, and while claimed unless a claim frees the key. An
item that is staged for a pop holds none. The key's row has the position of the holder.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import encode_holder
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.timers import drop_ended, set_timer
from fdbqueue.operations.transitions import Change
from fdbqueue.types import ENDED, Transaction

_MAX_DROPPED = 100  # keys whose periods are over that a push with a period deletes


class UniqueKeys:
    """The unique keys of one queue. A tick that waits for an item is due once its key is free."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def follow(self, tr: Transaction, now: int, changes: Sequence[Change]) -> None:
        """Store and clear the keys of items; delete some after their periods."""
        layout, has_period = self._layout, False
        for why, before, after, _ in changes:
            if why == "pushed" and after is not None:
                has_period |= self._begin_period(tr, after)
            held, holds = _held_by(before), _held_by(after)
            if holds is not None and after is not None:
                if held is None or (before is not None and before.key != after.key):
                    tr[layout.unique_key(holds)] = encode_holder(layout.position(after.key), None)
                continue
            if held is not None:
                tr.clear(layout.unique_key(held))
            if before is None:
                continue
            header = before.item.header
            is_over = before.state not in ENDED and (after is None or after.state in ENDED)
            if header.schedule is not None and header.blocks and (held is not None or is_over):
                set_timer(tr, layout, 0, layout.schedule_reference(header.schedule))
        if has_period:
            self.drop_ended_periods(tr, now)

    # Periods

    def _begin_period(self, tr: Transaction, row: ItemRow) -> bool:
        layout, name, ends = self._layout, row.item.header.key, row.item.header.key_ends
        if name is None or ends is None:
            return False
        holder = encode_holder(layout.position(row.key), ends)
        tr[layout.unique_key(name)] = holder
        tr[layout.entry_key(layout.unique_ends, ends, name)] = holder
        return True

    def end_period(self, tr: Transaction, name: str, ends: int) -> None:
        """Free a key after its period."""
        tr.clear(self._layout.unique_key(name))
        tr.clear(self._layout.entry_key(self._layout.unique_ends, ends, name))

    def drop_ended_periods(self, tr: Transaction, now: int, limit: int = _MAX_DROPPED) -> int:
        """Delete up to `limit` keys after their periods, without conflicts; count them."""
        layout = self._layout
        return drop_ended(tr, layout, now, layout.unique_ends, layout.unique_keys, limit)

    # Items that return

    def hold_again(self, tr: Transaction, changes: list[Change]) -> list[Change]:
        """Give returning items the unique keys that they no longer hold, if still free."""
        wanted = [_wanted_by(change) for change in changes]
        keys = [key for key in wanted if key is not None]
        values = read_all(tr, map(self._layout.unique_key, keys))
        free = {key for key, value in zip(keys, values) if value is None}
        returned: list[Change] = []
        for change, key in zip(changes, wanted):
            after = change.after
            if after is not None and key is not None:
                unique = key if key in free else None
                free.discard(key)  # the first item of a key gets it
                after = after.with_header(after.item.header._replace(unique=unique))
            returned.append(change._replace(after=after))
        return returned


def _wanted_by(change: Change) -> str | None:
    after = change.after
    if after is None or after.state in ENDED or _held_by(change.before) is not None:
        return None
    header = after.item.header
    return header.unique if header.has_begun else header.held_while_waiting


def _held_by(row: ItemRow | None) -> str | None:
    if row is None or row.state in ENDED or row.is_staged:
        return None
    return row.item.header.unique
