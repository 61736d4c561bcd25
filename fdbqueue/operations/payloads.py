"""Payloads within a transaction: small ones in the row of their item, others in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    MARKS,
    MAX_INLINE,
    NO_HEADER,
    PIECES,
    UUID_SIZE,
    Header,
    pieces_reference,
    with_header,
)
from fdbqueue.types import ReadTransaction, Transaction

_PIECE_SIZE = 90_000  # bytes; FoundationDB takes values up to 100,000


def write_payload(
    tr: Transaction, layout: Layout, random: bytes, payload: bytes, header: Header = NO_HEADER
) -> bytes:
    """Return the value of an item with this payload; write the pieces of a large payload."""
    value = payload
    if len(payload) > MAX_INLINE or payload.startswith(MARKS):
        value = pieces_reference(random, len(payload))
        write_pieces(tr, layout.pieces_prefix(value), payload)
    return value if header is NO_HEADER else with_header(header, value)


def write_pieces(tr: Transaction, prefix: bytes, payload: bytes) -> None:
    """Store bytes of any size in several values behind a prefix."""
    for number, offset in enumerate(range(0, len(payload), _PIECE_SIZE)):
        tr[Layout.piece_key(prefix, number)] = payload[offset : offset + _PIECE_SIZE]


def begin_payload(tr: ReadTransaction, layout: Layout, content: bytes) -> Callable[[], bytes]:
    """Start to read the payload of an item, given its content; return a function that waits."""
    if not content.startswith(PIECES):
        return lambda: content
    pieces = tr.get_range(*layout.range_of(layout.pieces_prefix(content)))
    return lambda: b"".join(row.value for row in pieces)


def read_payload(tr: ReadTransaction, layout: Layout, content: bytes) -> bytes:
    """Return the payload of an item, given its content; read the pieces of a large payload."""
    return begin_payload(tr, layout, content)()


def with_small_row(tr: Transaction, layout: Layout, item: StoredItem) -> StoredItem:
    """Return an item whose row has room for what other states add to it.

    Clients in other languages store any payload in the row. A large one is moved into pieces.
    """
    if len(item.content) <= MAX_INLINE:
        return item
    id = hashlib.sha256(layout.position(item.key)).digest()[:UUID_SIZE]  # the key may have no UUID
    value = write_payload(tr, layout, id, item.content, item.header)
    return StoredItem(item.key, value, item.level, item.turn)
