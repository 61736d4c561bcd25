"""Payloads: small ones in their item's row, others in pieces."""

from __future__ import annotations

import hashlib
import math

from fdbqueue.layout.items import StoredItem
from fdbqueue.layout.keys import Layout
from fdbqueue.layout.values import (
    MARKS,
    MAX_INLINE,
    NO_HEADER,
    PIECES,
    UUID_SIZE,
    Header,
    payload_size,
    pieces_reference,
    with_header,
)
from fdbqueue.types import RangeResult, ReadTransaction, Transaction

_PIECE_SIZE = 90_000  # bytes; FoundationDB takes values up to 100,000


def write_payload(
    tr: Transaction, layout: Layout, random: bytes, payload: bytes, header: Header = NO_HEADER
) -> bytes:
    """Return the value of an item with this payload; write the pieces of a large one."""
    value = payload
    if len(payload) > MAX_INLINE or payload.startswith(MARKS):
        value = pieces_reference(random, len(payload))
        write_pieces(tr, layout.pieces_prefix(value), payload)
    return value if header is NO_HEADER else with_header(header, value)


def write_pieces(tr: Transaction, prefix: bytes, payload: bytes) -> None:
    """Store bytes in pieces behind a prefix."""
    for number, offset in enumerate(range(0, len(payload), _PIECE_SIZE)):
        tr[Layout.entry_key(prefix, number)] = payload[offset : offset + _PIECE_SIZE]


def number_of_pieces(content: bytes) -> int:
    """Return the number of a content's pieces."""
    return math.ceil(payload_size(content) / _PIECE_SIZE)


def read_payloads(tr: ReadTransaction, layout: Layout, contents: list[bytes]) -> list[bytes]:
    """Return the payloads of some contents."""
    pieces: dict[bytes, RangeResult] = {}
    for content in contents:
        if content.startswith(PIECES):
            pieces[content] = tr.get_range(*layout.range_of(layout.pieces_prefix(content)))
    if not pieces:
        return contents
    whole = {content: b"".join(row.value for row in rows) for content, rows in pieces.items()}
    return [whole.get(content, content) for content in contents]


def read_payload(tr: ReadTransaction, layout: Layout, content: bytes) -> bytes:
    """Return the payload of a content."""
    return read_payloads(tr, layout, [content])[0]


def own_id(layout: Layout, key: bytes) -> bytes:
    """Return an id for the pieces of a payload written after the push."""
    return hashlib.sha256(layout.position(key)).digest()[:UUID_SIZE]


def with_small_row(tr: Transaction, layout: Layout, item: StoredItem) -> StoredItem:
    """Return an item with a large payload in pieces; another client may store it in the row."""
    if len(item.content) <= MAX_INLINE:
        return item
    value = write_payload(tr, layout, own_id(layout, item.key), item.content, item.header)
    return StoredItem(item.key, value, item.level, item.turn)
