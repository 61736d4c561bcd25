"""Unique keys within a transaction: at most one item that has not ended holds a key.

An item holds its key while it is ready or delayed, and while it is claimed unless a claim frees the
key. The row of a key has the position of the item that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import WANT_ALL, Layout
from fdbqueue.layout.values import encode_holder
from fdbqueue.operations.parallel import read_all
from fdbqueue.operations.timers import set_timer
from fdbqueue.operations.transitions import Change
from fdbqueue.operations.waking import Waiters
from fdbqueue.types import Transaction

_ENDED = ("dead", "done")
_MAX_DROPPED = 100  # keys whose periods are over that a push with a period deletes


class UniqueKeys:
    """The unique keys of one queue. It maintains them; see `transitions.Maintainer`.

    If the next tick of a schedule waits until an item has ended, it is due once the item frees its
    key, or ends.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def begin(self, tr: Transaction, now: int, changes: Sequence[Change]) -> Callable[[], None]:
        """Return a function that stores and clears the keys of items."""
        return lambda: self._follow(tr, changes)

    def _follow(self, tr: Transaction, changes: Sequence[Change]) -> None:
        layout = self._layout
        for _, before, after, _ in changes:
            held, holds = _held_by(before), _held_by(after)
            if holds is not None and after is not None:
                if held is None or (before is not None and before.key != after.key):
                    tr[layout.unique_key(holds)] = layout.position(after.key)
                continue
            if held is not None:
                tr.clear(layout.unique_key(held))
            if before is None:
                continue
            header = before.item.header
            is_over = before.state not in _ENDED and (after is None or after.state in _ENDED)
            if header.schedule is not None and header.blocks and (held is not None or is_over):
                set_timer(tr, layout, 0, layout.schedule_reference(header.schedule))
                Waiters(layout, layout.waiters).wake(tr, 1)  # a client may sleep until later

    # Periods

    def begin_period(self, tr: Transaction, name: str, position: bytes, ends: int) -> None:
        """Let an item that was pushed hold a key until its period ends."""
        holder = encode_holder(position, ends)
        tr[self._layout.unique_key(name)] = holder
        tr[self._layout.dated_key(self._layout.unique_ends, ends, name)] = holder

    def end_period(self, tr: Transaction, name: str, ends: int) -> None:
        """Free a key whose period is over."""
        tr.clear(self._layout.unique_key(name))
        tr.clear(self._layout.dated_key(self._layout.unique_ends, ends, name))

    def drop_ended_periods(self, tr: Transaction, now: int, limit: int = _MAX_DROPPED) -> int:
        """Delete up to `limit` keys whose periods are over, without conflicts.

        Args:
            tr: A transaction.
            now: The time in milliseconds since 1970.
            limit: The maximum number of keys.

        Returns:
            The number of keys.
        """
        layout = self._layout
        begin, end = layout.dated_before(layout.unique_ends, now + 1)
        rows = [*tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)]
        for row in rows:
            name = layout.unpack_dated_key(layout.unique_ends, row.key)
            # Unless another push has the key meanwhile.
            tr.compare_and_clear(layout.unique_key(name), row.value)
            tr.clear(row.key)
        return len(rows)

    # Items that return

    def held_again(self, tr: Transaction, rows: list[ItemRow]) -> list[ItemRow]:
        """Return rows of items that return, with the unique keys that their claims have freed.

        An item whose key another one holds meanwhile waits without it.
        """
        headers = [row.item.header for row in rows]
        freed = [None if header.unique else header.held_while_waiting for header in headers]
        keys = [key for key in freed if key is not None]
        values = read_all(tr, map(self._layout.unique_key, keys))
        free = {key for key, value in zip(keys, values) if value is None}
        returned: list[ItemRow] = []
        for row, header, key in zip(rows, headers, freed):
            is_free = key in free
            free.discard(key or "")  # the first item of a key gets it
            returned.append(row.with_header(header._replace(unique=key)) if is_free else row)
        return returned


def _held_by(row: ItemRow | None) -> str | None:
    """Return the unique key that the item of a row holds, or `None`."""
    return None if row is None or row.state in _ENDED else row.item.header.unique
