"""Counters, as atomic operations change them: 64 bits, little endian."""

from __future__ import annotations

__all__ = ["MINUS_ONE", "ONE", "ZERO", "decode_count", "encode_count"]

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
