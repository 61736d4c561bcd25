"""The values of counters, of items and of the queue's options."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from fdb import tuple as fdb_tuple

from fdbqueue.errors import LayoutVersionMismatch
from fdbqueue.types import Options

__all__ = [
    "HEADER_MARK",
    "LAYOUT_VERSION",
    "MINUS_ONE",
    "NO_HEADER",
    "ONE",
    "ZERO",
    "Header",
    "decode_count",
    "decode_facts",
    "decode_options",
    "decode_progress",
    "decode_push",
    "encode_count",
    "encode_facts",
    "encode_options",
    "encode_progress",
    "encode_push",
    "header_of",
    "push_digest",
    "with_header",
]

LAYOUT_VERSION = 4

HEADER_MARK = b"\xffheader:"
"""Begins the value of an item that has a header."""

# What stands before the value of an item that has facts about it: how long they are.
_SIZE = struct.Struct(">H")

_KINDS = {kind.__name__: kind for kind in (int, float, str, bytes)}


class Header(NamedTuple):
    """What goes with an item wherever it is, before its payload; most items need none.

    How often it was claimed and came back, when it expires, in milliseconds since 1970, and the key
    under which it is unique.
    """

    attempts: int = 0
    expires: int | None = None
    unique: str | None = None


NO_HEADER = Header()


def header_of(value: bytes) -> tuple[Header, bytes]:
    """The header of an item, and its value without that.

    >>> header_of(with_header(Header(attempts=3), b"payload"))
    (Header(attempts=3, expires=None, unique=None), b'payload')
    >>> header_of(b"payload")
    (Header(attempts=0, expires=None, unique=None), b'payload')
    """
    if not value.startswith(HEADER_MARK):
        return NO_HEADER, value
    facts, rest = decode_facts(value[len(HEADER_MARK) :])
    return Header(*facts), rest


def with_header(header: Header, value: bytes) -> bytes:
    """The value of an item with this header."""
    return value if header == NO_HEADER else HEADER_MARK + encode_facts(header, value)


def encode_facts(facts: tuple[Any, ...], value: bytes) -> bytes:
    """What is stored of an item that is not at its place: facts about it, and its value."""
    return _packed_facts(tuple(facts)) + value


@functools.lru_cache(64)
def _packed_facts(facts: tuple[Any, ...]) -> bytes:
    """They are often those of several items: of one claim, for example."""
    packed: bytes = fdb_tuple.pack(facts)
    return _SIZE.pack(len(packed)) + packed


def decode_facts(stored: bytes) -> tuple[tuple[Any, ...], bytes]:
    """The facts about an item, and its value."""
    end = _SIZE.size + _SIZE.unpack_from(stored)[0]
    facts: tuple[Any, ...] = fdb_tuple.unpack(stored[_SIZE.size : end])
    return facts, stored[end:]


def encode_options(options: Options) -> bytes:
    """What is stored of the options of a queue."""
    kind, codec, priorities, *others = (getattr(options, name) for name in Options.__slots__)
    if isinstance(priorities, tuple):
        priorities = tuple(each.__name__ for each in priorities)
    elif priorities is not None:
        priorities = priorities.__name__
    value: bytes = fdb_tuple.pack((LAYOUT_VERSION, kind, codec, priorities, *others))
    return value


@functools.lru_cache(1024)
def decode_options(value: bytes) -> Options:
    """The options of a queue; raises `LayoutVersionMismatch` if another layout wrote them."""
    version, *rest = fdb_tuple.unpack(value)
    if version != LAYOUT_VERSION:
        raise LayoutVersionMismatch(version, LAYOUT_VERSION)
    kind, codec, priorities, *others = rest
    if isinstance(priorities, tuple):
        priorities = tuple(_KINDS[name] for name in priorities)
    elif priorities is not None:
        priorities = _KINDS[priorities]
    return Options(kind, codec, priorities, *others)


ONE = (1).to_bytes(8, "little")
MINUS_ONE = (-1).to_bytes(8, "little", signed=True)
ZERO = bytes(8)


def encode_count(count: int) -> bytes:
    """A number as atomic `add` takes it.

    >>> decode_count(encode_count(-3))
    -3
    """
    return count.to_bytes(8, "little", signed=True)


def decode_count(value: bytes | None) -> int:
    """The number in a counter; a counter that is not there is zero.

    >>> decode_count(None)
    0
    """
    return 0 if value is None else int.from_bytes(value, "little", signed=True)


def encode_progress(lines: int, digest: bytes) -> bytes:
    """Return what an import notes: how many lines it has stored, and their digest.

    >>> decode_progress(encode_progress(7, b"digest"))
    (7, b'digest')
    """
    value: bytes = fdb_tuple.pack((lines, digest))
    return value


def decode_progress(value: bytes) -> tuple[int, bytes]:
    """Return how many lines an import has stored, and their digest."""
    lines, digest = fdb_tuple.unpack(value)
    return lines, digest


def encode_push(hour: int, digest: bytes, ids: list[str]) -> bytes:
    """Return what a push with an idempotency key notes: its hour, its digest, the items' ids.

    >>> decode_push(encode_push(480_000, b"digest", ["id"]))
    (480000, b'digest', ['id'])
    """
    value: bytes = fdb_tuple.pack((hour, digest, *ids))
    return value


def decode_push(value: bytes) -> tuple[int, bytes, list[str]]:
    """Return the hour, the digest and the items' ids of a push with an idempotency key."""
    hour, digest, *ids = fdb_tuple.unpack(value)
    return hour, digest, ids


def push_digest(as_many_as_fit: bool, entries: Iterable[tuple[bytes, str]]) -> bytes:
    """Return the digest of a push, of which each entry is a payload and the text of a priority."""
    parts = (part for entry in entries for part in entry)
    return hashlib.sha256(fdb_tuple.pack((as_many_as_fit, *parts))).digest()
