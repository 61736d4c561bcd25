"""FoundationDB's mutations as pure functions of the stored value and the parameter.

Source: FoundationDB, Developer Guide, "Atomic operations", and the API reference of `MutationType`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from fdbqueue.embedded.arguments import VALUE_SIZE_LIMIT

Operation: TypeAlias = Callable[[bytes | None, bytes], bytes | None]


class MutationType(IntEnum):
    """The types of mutations, with FoundationDB's numbers."""

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


SET, CLEAR_RANGE = int(MutationType.SET), int(MutationType.CLEAR_RANGE)
STAMPED_KEY = int(MutationType.SET_VERSIONSTAMPED_KEY)
STAMPED_VALUE = int(MutationType.SET_VERSIONSTAMPED_VALUE)
"""Plain integers compare faster."""


def _numeric(combine: Callable[[int, int], int]) -> Operation:
    def operation(value: bytes | None, param: bytes) -> bytes:
        size = len(param)
        stored = int.from_bytes((value or b"")[:size], "little")
        result = combine(stored, int.from_bytes(param, "little"))
        return result.to_bytes(size + 1, "little")[:size]  # a sum may have a byte more

    return operation


def _or_param(operation: Callable[[bytes, bytes], bytes | None]) -> Operation:
    return lambda value, param: param if value is None else operation(value, param)


def _append_if_fits(value: bytes | None, param: bytes) -> bytes:
    joined = (value or b"") + param
    return joined if len(joined) <= VALUE_SIZE_LIMIT else (value or b"")


ATOMICS: dict[int, Operation] = {
    MutationType.SET: lambda value, param: param,
    MutationType.ADD: _numeric(int.__add__),
    MutationType.BIT_AND: _or_param(_numeric(int.__and__)),
    MutationType.BIT_OR: _numeric(int.__or__),
    MutationType.BIT_XOR: _numeric(int.__xor__),
    MutationType.APPEND_IF_FITS: _append_if_fits,
    MutationType.MAX: _numeric(max),
    MutationType.MIN: _or_param(_numeric(min)),
    MutationType.BYTE_MIN: _or_param(min),
    MutationType.BYTE_MAX: _or_param(max),
    MutationType.COMPARE_AND_CLEAR: lambda value, param: None if value == param else value,
}

Mutation: TypeAlias = tuple[int, bytes, bytes]
"""The type, the key and the parameter of a write (the end, for a range)."""
