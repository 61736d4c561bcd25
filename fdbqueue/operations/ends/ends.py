"""The end of an item within a transaction: one place for what depends on it.

Each operation that ends an item, or makes it a dead letter, calls `note_end` once for it:

| Operation | Outcome |
| --- | --- |
| acknowledgement | `"done"`, `"discarded"`, or `"cancelled"` if the item was cancelled meanwhile |
| failure or the end of a lease, the last time | `"dead"` |
| removal of a ready or delayed item, also by a cancellation | `"removed"` |
| expiry | `"expired"` |
| pop | `"popped"` |

The removal of a dead letter or of a done item is no second end. Neither does a queue that is
cleared end its items. A dead letter that is retried can end again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdbqueue.layout.batches import End
from fdbqueue.layout.values import HEADER_MARK, Header, header_of
from fdbqueue.operations.ends.batches import end_job
from fdbqueue.types import Transaction

if TYPE_CHECKING:
    from fdbqueue.operations.items import Items


REMOVED, EXPIRED, POPPED = End("removed"), End("expired"), End("popped")


def note_end(
    tr: Transaction, items: Items, now: int, position: bytes, value: bytes, end: End
) -> None:
    """Do what follows from the end of an item. An item without a header costs nothing.

    Args:
        tr: The transaction that ends it.
        items: The items of its queue.
        now: The time in milliseconds since 1970.
        position: Its position.
        value: The value that it had while it was ready or claimed.
        end: How it has ended.
    """
    if value.startswith(HEADER_MARK):
        _follow(tr, items, now, position, header_of(value)[0], end)


def _follow(
    tr: Transaction, items: Items, now: int, position: bytes, header: Header, end: End
) -> None:
    """Do what follows from the end of an item with a header."""
    if header.batch:
        end_job(tr, items.layout, now, header.batch, position, end)
