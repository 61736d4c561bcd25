"""Dead letters within a transaction: items that failed too often."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fdbqueue.errors import UndecodableItem
from fdbqueue.layout import (
    MINUS_ONE,
    ONE,
    Layout,
    decode_metadata,
    encode_metadata,
    with_header,
)
from fdbqueue.layout.codecs import RowCodec
from fdbqueue.layout.values import utc_time
from fdbqueue.operations.items import Items, LocatedItem, ReturnedItem
from fdbqueue.types import DeadLetter, ReadTransaction, Transaction

__all__ = ["DeadLetters"]


class DeadLetters:
    """The dead letters of one queue. Each method is part of a transaction."""

    def __init__(self, layout: Layout, items: Items, codec: RowCodec[Any]) -> None:
        self._layout = layout
        self._items = items
        self._codec = codec

    def add(
        self,
        tr: Transaction,
        position: bytes,
        value: bytes,
        *,
        attempts: int,
        now: int,
        error: str | None,
    ) -> None:
        """Make an item a dead letter, and free its unique key.

        Args:
            tr: A transaction.
            position: The position of the item.
            value: Its value.
            attempts: How many times it was claimed.
            now: The time in milliseconds since 1970.
            error: The error of its last attempt.
        """
        self._layout.free_unique(tr, value)
        stored = encode_metadata((attempts, now, error), value)
        self._items.park(tr, self._layout.dead, position, stored)
        tr.add(self._layout.total_died, ONE)

    def decode(self, tr: ReadTransaction, key: bytes, stored: bytes) -> DeadLetter:
        """Return the dead letter that is stored under a key."""
        layout = self._layout
        (attempts, died_at, error), value = decode_metadata(stored)
        item_key = layout.items + key[len(layout.dead) :]
        item = None
        with suppress(UndecodableItem):  # the reason for its death
            item = self._codec.decode(tr, self._items.levels.item(item_key, value))
        return DeadLetter(item, self._codec.id_of(item_key), attempts, utc_time(died_at), error)

    def retry(self, tr: Transaction, dead: LocatedItem, reserve: Callable[[Any], None]) -> bool:
        """Return a dead letter to its position; return false if its unique key is in use.

        `reserve(tr)` takes a place below the bound of the queue, or raises `QueueFull`.
        """
        layout = self._layout
        position = layout.position(dead.item.key)
        header = dead.item.header
        if header.unique is not None and tr[layout.unique_key(header.unique)].present():
            return False
        reserve(tr)
        if header.unique is not None:
            tr[layout.unique_key(header.unique)] = position
        self._items.unpark(tr, layout.dead, position)
        tr.add(layout.total_died, MINUS_ONE)
        # The item may have expired since, but the caller wants to retry it.
        header = header._replace(attempts=0, expires=None)
        returned = ReturnedItem(position, with_header(header, dead.item.content))
        self._items.requeue(tr, [returned])
        return True

    def drop(self, tr: Transaction, dead: LocatedItem) -> bool:
        """Delete a dead letter; return true, because it existed."""
        self._items.unpark(tr, self._layout.dead, self._layout.position(dead.item.key))
        self._layout.clear_pieces(tr, dead.item.value)
        return True
