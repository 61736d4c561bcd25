"""The rows that an item owns besides its own, deleted with it.

See the table of maintainers in `docs/design/transitions.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdbqueue.layout.batches import is_link
from fdbqueue.layout.items import ItemRow
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import NO_HEADER, Header
from fdbqueue.operations.transitions import Change
from fdbqueue.types import Transaction


class OwnedRows:
    """The rows that one queue's items own."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def follow(self, tr: Transaction, now: int, changes: Sequence[Change]) -> None:
        """Store and delete what items own."""
        for _, before, after, end in changes:
            if before is not None:
                self._delete(tr, before, after)
            if after is not None:
                self._store(tr, before, after)
                if after.finished_at and end is not None:
                    self.store_result(tr, after.key, end.returned)

    def store_result(self, tr: Transaction, key: bytes, returned: bytes | None) -> None:
        """Store a done item's result, as JSON."""
        if returned is not None:
            tr[self._layout.returned + self._layout.position(key)] = returned

    def _delete(self, tr: Transaction, before: ItemRow, after: ItemRow | None) -> None:
        layout, item = self._layout, before.item
        header, position = item.header, layout.position(item.key)
        if item.is_in_pieces and (after is None or after.item.content != item.content):
            tr.clear_range(*layout.range_of(layout.pieces_prefix(item.content)))
        if after is not None and after.key == before.key:
            self._end_waits(tr, position, header, after.item.header)
            return
        if header.failed_attempts or before.state == "dead":
            self._move_attempts(tr, position, after)
        if before.finished_at:
            tr.clear(layout.returned + position)
        if after is not None:
            return  # moved, with its steps
        if header.origin is not None:
            tr.clear(layout.moved + header.origin)
        if header.steps:
            tr.clear_range(*layout.range_of(layout.owned_prefix(layout.steps, position)))
        self._end_waits(tr, position, header, NO_HEADER)

    def _move_attempts(self, tr: Transaction, position: bytes, after: ItemRow | None) -> None:
        layout = self._layout
        attempts = layout.attempts_range(position)
        if after is not None:
            for row in [*tr.get_range(*attempts)]:
                number = layout.unpack_attempt_key(row.key)[1]
                tr[layout.attempt_key(layout.position(after.key), number)] = row.value
        tr.clear_range(*attempts)

    def _end_waits(
        self, tr: Transaction, position: bytes, header: Header, following: Header
    ) -> None:
        layout = self._layout
        if header.waits and header.waits != following.waits:
            tr.clear(layout.signal_waits + header.waits)
        if header.awaits and not following.awaits:
            for rows in (layout.batches, layout.batch_counts):
                tr.clear(rows + (header.origin or position))

    def _store(self, tr: Transaction, before: ItemRow | None, after: ItemRow) -> None:
        layout, new = self._layout, after.item.header
        header = NO_HEADER if before is None else before.item.header
        has_moved = before is None or before.key != after.key
        if new.origin is not None and has_moved:
            tr[layout.moved + new.origin] = layout.position(after.key)
        if new.batch != header.batch and is_link(new.batch):
            tr[layout.linked] = b""
