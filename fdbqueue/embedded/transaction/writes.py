"""The writes of transactions and databases."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fdbqueue.embedded.arguments import as_key, strinc
from fdbqueue.embedded.mutations import SET, STAMPED_KEY, STAMPED_VALUE, MutationType
from fdbqueue.types import KeyLike, KeyOrSelector, ValueLike


class Writes(ABC):
    """The writes of a transaction. On a database, each is a separate transaction."""

    @abstractmethod
    def mutate(self, kind: int, key: KeyLike, param: ValueLike) -> None:
        """Write a mutation of one key."""

    @abstractmethod
    def clear(self, key: KeyOrSelector) -> None:
        """Clear a key."""

    @abstractmethod
    def clear_range(self, begin: KeyOrSelector | None, end: KeyOrSelector | None) -> None:
        """Clear all keys from `begin` (inclusive) to `end` (exclusive)."""

    def clear_range_startswith(self, prefix: KeyLike) -> None:
        """Clear all keys that start with `prefix`."""
        prefix = as_key(prefix)
        self.clear_range(prefix, strinc(prefix))

    def set(self, key: KeyLike, value: ValueLike) -> None:
        """Set the value of a key."""
        self.mutate(SET, key, value)

    __setitem__ = set

    def set_versionstamped_key(self, key: KeyLike, param: ValueLike) -> None:
        """Set a key with the commit's versionstamp at the offset in its last four bytes."""
        self.mutate(STAMPED_KEY, key, param)

    def set_versionstamped_value(self, key: KeyLike, param: ValueLike) -> None:
        """Set a value with the commit's versionstamp at the offset in its last four bytes."""
        self.mutate(STAMPED_VALUE, key, param)

    def __delitem__(self, key: KeyLike | slice) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    def add(self, key: KeyLike, param: ValueLike) -> None:
        """Add a little-endian integer. A missing value counts as zero."""
        self.mutate(MutationType.ADD, key, param)

    def bit_and(self, key: KeyLike, param: ValueLike) -> None:
        """Apply a bitwise "and". A missing value becomes the parameter."""
        self.mutate(MutationType.BIT_AND, key, param)

    def bit_or(self, key: KeyLike, param: ValueLike) -> None:
        """Apply a bitwise "or". A missing value counts as zeros."""
        self.mutate(MutationType.BIT_OR, key, param)

    def bit_xor(self, key: KeyLike, param: ValueLike) -> None:
        """Apply a bitwise "xor". A missing value counts as zeros."""
        self.mutate(MutationType.BIT_XOR, key, param)

    def max(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the larger of two little-endian integers."""
        self.mutate(MutationType.MAX, key, param)

    def min(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the smaller of two little-endian integers. A missing value becomes the parameter."""
        self.mutate(MutationType.MIN, key, param)

    def byte_max(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the value that sorts later, byte by byte."""
        self.mutate(MutationType.BYTE_MAX, key, param)

    def byte_min(self, key: KeyLike, param: ValueLike) -> None:
        """Keep the value that sorts earlier. A missing value becomes the parameter."""
        self.mutate(MutationType.BYTE_MIN, key, param)

    def append_if_fits(self, key: KeyLike, param: ValueLike) -> None:
        """Append to the value, unless the result would exceed 100,000 bytes."""
        self.mutate(MutationType.APPEND_IF_FITS, key, param)

    def compare_and_clear(self, key: KeyLike, param: ValueLike) -> None:
        """Clear the key if its value equals the parameter."""
        self.mutate(MutationType.COMPARE_AND_CLEAR, key, param)
