"""The values of counters, items and queue options."""

from __future__ import annotations

import functools
import hashlib
import re
import struct
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, NamedTuple

from fdb import tuple as fdb_tuple

from fdbqueue.errors import LayoutVersionMismatch
from fdbqueue.types import Options, PriorityKind

__all__ = [
    "HEADER_MARK",
    "LAYOUT_VERSION",
    "MINUS_ONE",
    "NO_HEADER",
    "ONE",
    "ZERO",
    "ClaimedItem",
    "Header",
    "decode_claim",
    "decode_count",
    "decode_lease",
    "decode_level",
    "decode_metadata",
    "decode_options",
    "decode_progress",
    "decode_push",
    "decode_receipt",
    "encode_claim",
    "encode_count",
    "encode_lease",
    "encode_level",
    "encode_metadata",
    "encode_options",
    "encode_progress",
    "encode_push",
    "encode_receipt",
    "header_of",
    "push_digest",
    "utc_time",
    "with_header",
]

LAYOUT_VERSION = 5

HEADER_MARK = b"\xffheader:"
"""The first bytes of an item's value if the value has a header."""

# An encoded value has three parts: the size of the metadata, the metadata, and the item's value.
_SIZE = struct.Struct(">H")

_LEASE = struct.Struct(">QQ")

_TOKEN = re.compile(rb"\x01([^\x00]*(?:\x00\xff[^\x00]*)*)\x00")  # bytes in the tuple layer

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bytes)}


class Header(NamedTuple):
    """The metadata that precede an item's payload in every state. Most items need none.

    Attributes:
        attempts: The number of failed attempts to process the item.
        expires: The time at which it expires, in milliseconds since 1970; `None` for never.
        unique: Its unique key, or `None`.
    """

    attempts: int = 0
    expires: int | None = None
    unique: str | None = None


NO_HEADER = Header()


def header_of(value: bytes) -> tuple[Header, bytes]:
    """Split the value of an item into its header and the rest.

    >>> header_of(with_header(Header(attempts=3), b"payload"))
    (Header(attempts=3, expires=None, unique=None), b'payload')
    >>> header_of(b"payload")
    (Header(attempts=0, expires=None, unique=None), b'payload')
    """
    if not value.startswith(HEADER_MARK):
        return NO_HEADER, value
    metadata, rest = decode_metadata(value[len(HEADER_MARK) :])
    return Header(*metadata), rest


def with_header(header: Header, value: bytes) -> bytes:
    """Return the value of an item with this header."""
    return value if header == NO_HEADER else HEADER_MARK + encode_metadata(header, value)


def encode_metadata(metadata: tuple[Any, ...], value: bytes) -> bytes:
    """Return the stored form of a delayed, claimed or dead item: metadata, then its value."""
    packed: bytes = fdb_tuple.pack(metadata)
    return _SIZE.pack(len(packed)) + packed + value


@functools.lru_cache(1024)
def _packed(metadata: tuple[Any, ...]) -> bytes:
    packed: bytes = fdb_tuple.pack(metadata)
    return packed


@functools.lru_cache(1024)
def _unpacked(packed: bytes) -> tuple[Any, ...]:
    metadata: tuple[Any, ...] = fdb_tuple.unpack(packed)
    return metadata


def decode_metadata(stored: bytes) -> tuple[tuple[Any, ...], bytes]:
    """Return the metadata and the value of a delayed, claimed or dead item."""
    end = _SIZE.size + _SIZE.unpack_from(stored)[0]
    metadata: tuple[Any, ...] = fdb_tuple.unpack(stored[_SIZE.size : end])
    return metadata, stored[end:]


class ClaimedItem(NamedTuple):
    """A claimed item as it is stored.

    Attributes:
        token: The identity of the claim.
        lease_end: The version of the database at which the lease ends.
        delivery_count: How many times the item has been claimed so far.
        slots: The slots that it holds.
        value: The value that it has while it waits.
    """

    token: bytes
    lease_end: int
    delivery_count: int
    slots: tuple[bytes, ...]
    value: bytes


def encode_claim(item: ClaimedItem) -> bytes:
    """Return the stored form of a claimed item.

    Equal to `encode_metadata((token, lease_end, delivery_count, *slots), value)`, and several times
    faster. A test compares both.

    >>> item = ClaimedItem(b"token", 300, 1, (), b"value")
    >>> decode_claim(encode_claim(item)) == item
    True
    """
    token, end, delivery_count, slots, value = item
    size = (end.bit_length() + 7) // 8
    metadata = b"\x01%b\x00%c%b%b" % (
        token.replace(b"\x00", b"\x00\xff"),
        0x14 + size,
        end.to_bytes(size, "big"),
        _packed((delivery_count, *slots)),
    )
    return _SIZE.pack(len(metadata)) + metadata + value


def decode_claim(stored: bytes) -> ClaimedItem:
    """Return a claimed item, given its stored form."""
    value_begin = _SIZE.size + _SIZE.unpack_from(stored)[0]
    token = _TOKEN.match(stored, _SIZE.size)
    assert token is not None
    begin = token.end() + 1
    end = begin + stored[begin - 1] - 0x14
    delivery_count, *slots = _unpacked(stored[end:value_begin])
    return ClaimedItem(
        token[1].replace(b"\x00\xff", b"\x00"),
        int.from_bytes(stored[begin:end], "big"),
        delivery_count,
        tuple(slots),
        stored[value_begin:],
    )


def encode_lease(seconds: float, now: int) -> bytes:
    """Return the value of a lease's timer.

    Args:
        seconds: The length of the lease.
        now: Its beginning by the clock of the client, in milliseconds since 1970.

    Example:
        >>> decode_lease(encode_lease(30, 1_700_000_000_000))
        (30001, 1700000030001)
    """
    length = int(seconds * 1000) + 1
    return _LEASE.pack(length, now + length)


def decode_lease(value: bytes) -> tuple[int, int] | None:
    """Return the length of a lease and its end by the clock, both in milliseconds.

    `None` for a timer of an earlier release, or of a repair: the lease ends by its version alone.
    """
    length_and_end: tuple[int, int] | None = _LEASE.unpack(value) if value else None
    return length_and_end


def encode_options(options: Options) -> bytes:
    """Return the stored form of a queue's options."""
    kind, codec, _, *settings = (getattr(options, name) for name in Options.__slots__)
    priorities = options.priorities
    names: str | tuple[str, ...] | None = None
    if isinstance(priorities, tuple):
        names = tuple(element.__name__ for element in priorities)
    elif priorities is not None:
        names = priorities.__name__
    value: bytes = fdb_tuple.pack((LAYOUT_VERSION, kind, codec, names, *settings))
    return value


@functools.lru_cache(1024)
def decode_options(value: bytes) -> Options:
    """Return the options of a queue; raise `LayoutVersionMismatch` for another version."""
    version, *rest = fdb_tuple.unpack(value)
    if version != LAYOUT_VERSION:
        raise LayoutVersionMismatch(version, LAYOUT_VERSION)
    names: str | tuple[str, ...] | None
    kind, codec, names, *settings = rest
    priorities: PriorityKind | None = None
    if isinstance(names, tuple):
        priorities = tuple(_KINDS[name] for name in names)
    elif names is not None:
        priorities = _KINDS[names]
    return Options(kind, codec, priorities, *settings)


ONE = (1).to_bytes(8, "little")
MINUS_ONE = (-1).to_bytes(8, "little", signed=True)
ZERO = bytes(8)
_HALF = 2**64


@functools.lru_cache(256)
def encode_count(count: int) -> bytes:
    """Return a number in the form that atomic `add` expects.

    >>> decode_count(encode_count(-3))
    -3
    """
    return count.to_bytes(8, "little", signed=True)


def decode_count(value: bytes | None) -> int:
    """Return the number in a counter; zero for a missing counter.

    >>> decode_count(None)
    0
    """
    return 0 if value is None else int.from_bytes(value, "little", signed=True)


@functools.lru_cache(64)
def encode_level(waiting: int, taken: int) -> bytes:
    """Return the change of a counter of waiting items and of items taken, for atomic `add`.

    Both are in one integer of 16 bytes: 2**64 * taken + waiting.

    >>> decode_level(encode_level(3, 0))
    (3, 0)
    """
    return ((taken * _HALF + waiting) % _HALF**2).to_bytes(16, "little")


def decode_level(value: bytes) -> tuple[int, int]:
    """Return the number of waiting items, and of items taken, in a counter of both."""
    waiting = decode_count(value[:8])
    return waiting, (int.from_bytes(value, "little") - waiting) // _HALF


def encode_receipt(sequence: int, try_number: int) -> bytes:
    """Return the receipt of one try of a client's operation with this sequence number.

    >>> decode_receipt(encode_receipt(7, 0))
    (7, 0)
    """
    value: bytes = fdb_tuple.pack((sequence, try_number))
    return value


def decode_receipt(value: bytes) -> tuple[int, int]:
    """Return the sequence number of the operation and the number of the try."""
    sequence, try_number = fdb_tuple.unpack(value)
    return sequence, try_number


def utc_time(milliseconds: float) -> datetime:
    """Return a time from its milliseconds since 1970.

    >>> utc_time(0).isoformat()
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def encode_progress(lines: int, digest: bytes) -> bytes:
    """Return the progress of an import: the number of stored lines, and their digest.

    >>> decode_progress(encode_progress(7, b"digest"))
    (7, b'digest')
    """
    value: bytes = fdb_tuple.pack((lines, digest))
    return value


def decode_progress(value: bytes) -> tuple[int, bytes]:
    """Return the number of lines that an import has stored, and their digest."""
    lines, digest = fdb_tuple.unpack(value)
    return lines, digest


def encode_push(hour: int, digest: bytes, ids: list[str]) -> bytes:
    """Return the record of a push with an idempotency key: hour, digest and item ids.

    >>> decode_push(encode_push(480_000, b"digest", ["id"]))
    (480000, b'digest', ['id'])
    """
    value: bytes = fdb_tuple.pack((hour, digest, *ids))
    return value


def decode_push(value: bytes) -> tuple[int, bytes, list[str]]:
    """Return the hour, the digest and the item ids of a push with an idempotency key."""
    hour, digest, *ids = fdb_tuple.unpack(value)
    return hour, digest, ids


def push_digest(as_many_as_fit: bool, entries: Iterable[tuple[bytes, str]]) -> bytes:
    """Return the digest of a push; each entry is a payload and the text of a priority."""
    parts = (part for entry in entries for part in entry)
    return hashlib.sha256(fdb_tuple.pack((as_many_as_fit, *parts))).digest()
