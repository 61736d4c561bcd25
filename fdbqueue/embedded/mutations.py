"""FoundationDB's mutations, among them its atomic operations, as pure functions on values.

Each takes the stored value (`None` if there is none) and the parameter, and returns the new value
(`None` to clear the key).

Source: FoundationDB, Developer Guide, "Atomic operations", and the API reference of `MutationType`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import TypeAlias

from fdbqueue.embedded.limits import VALUE_SIZE_LIMIT

Operation: TypeAlias = Callable[[bytes | None, bytes], bytes | None]


class MutationType(IntEnum):
    """The types of mutations, with the numbers of FoundationDB's API."""

    SET = 0
    CLEAR_RANGE = 1
    ADD = 2
    BIT_AND = 6
    BIT_OR = 7
    BIT_XOR = 8
    APPEND_IF_FITS = 9
    MAX = 12
    MIN = 13
    SET_VERSIONSTAMPED_KEY = 14
    SET_VERSIONSTAMPED_VALUE = 15
    BYTE_MIN = 16
    BYTE_MAX = 17
    COMPARE_AND_CLEAR = 20


def _resized(value: bytes | None, size: int) -> bytes:
    """Cut the value, or pad it with zero bytes, to the size of the parameter."""
    return (value or b"")[:size].ljust(size, b"\0")


def _add(value: bytes | None, param: bytes) -> bytes:
    size = len(param)
    if value is None:
        return param
    total = int.from_bytes(value[:size], "little") + int.from_bytes(param, "little")
    return (total & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _bitwise(combine: Callable[[int, int], int]) -> Operation:
    def operation(value: bytes | None, param: bytes) -> bytes:
        size = len(param)
        left = int.from_bytes(_resized(value, size), "little")
        return combine(left, int.from_bytes(param, "little")).to_bytes(size, "little")

    return operation


_and = _bitwise(int.__and__)


def _append_if_fits(value: bytes | None, param: bytes) -> bytes:
    joined = (value or b"") + param
    return joined if len(joined) <= VALUE_SIZE_LIMIT else (value or b"")


_as_number = partial(int.from_bytes, byteorder="little")


def _max(value: bytes | None, param: bytes) -> bytes:
    return max(_resized(value, len(param)), param, key=_as_number)


def _min(value: bytes | None, param: bytes) -> bytes:
    return min(_resized(value, len(param)), param, key=_as_number)


ATOMICS: dict[int, Operation] = {
    MutationType.SET: lambda value, param: param,
    MutationType.ADD: _add,
    # `bit_and` and `min` store the parameter if the key has no value (since API version 510); an
    # empty value counts as a value.
    MutationType.BIT_AND: lambda value, param: param if value is None else _and(value, param),
    MutationType.BIT_OR: _bitwise(int.__or__),
    MutationType.BIT_XOR: _bitwise(int.__xor__),
    MutationType.APPEND_IF_FITS: _append_if_fits,
    MutationType.MAX: _max,
    MutationType.MIN: lambda value, param: param if value is None else _min(value, param),
    MutationType.BYTE_MIN: lambda value, param: param if value is None else min(value, param),
    MutationType.BYTE_MAX: lambda value, param: param if value is None else max(value, param),
    MutationType.COMPARE_AND_CLEAR: lambda value, param: None if value == param else value,
}

Mutation: TypeAlias = tuple[int, bytes, bytes]
"""One write of a transaction: its type, its key and its parameter (the end, for a range)."""
