"""What a transaction's own writes make of what it reads: read-your-writes.

Source: FoundationDB, Developer Guide, "Reading your writes" and "Conflict ranges";
`fdbclient/ReadYourWrites.actor.cpp` decides which reads still depend on the database, and so still
conflict: a key that the transaction set or cleared does not, one that it changed by an atomic
operation does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from fdbqueue.embedded.mutations import ATOMICS, Mutation, MutationType
from fdbqueue.embedded.ranges import Range, RangeSet, key_after
from fdbqueue.errors import FDBError

__all__ = ["NO_VALUE", "WriteMap", "stamped_key_range"]

NO_VALUE = b"no value"
"""This very object stands for the value that a written key does not have."""


class _Write:
    """What was written to one key: a known value, or operations on whatever the database has."""

    __slots__ = ("independent", "operations", "unreadable", "value")

    def __init__(self, independent: bool, value: bytes | None, unreadable: bool) -> None:
        self.independent = independent
        self.value = value
        self.operations: list[tuple[int, bytes]] = []
        self.unreadable = unreadable

    def apply(self, kind: int, param: bytes) -> None:
        if self.independent:
            self.value = ATOMICS[kind](self.value, param)
        else:
            self.operations.append((kind, param))

    def over(self, value: bytes | None) -> bytes | None:
        """The value that a read sees where the database has `value`."""
        if self.independent:
            return self.value
        for kind, param in self.operations:
            value = ATOMICS[kind](value, param)
        return value


def stamped_key_range(key: bytes, read_version: int) -> Range:
    """Where the key of `set_versionstamped_key` may come to lie, however the stamp turns out."""
    template, at = key[:-4], int.from_bytes(key[-4:], "little", signed=True)
    low = template[:at] + read_version.to_bytes(8, "big") + b"\0\0" + template[at + 10 :]
    high = template[:at] + b"\xff" * 10 + template[at + 10 :]
    return low, key_after(high)


class WriteMap:
    """The writes of one transaction, by key and range."""

    def __init__(self) -> None:
        self._writes: dict[bytes, _Write] = {}
        self._keys: list[bytes] = []
        self._cleared = RangeSet()
        self._unreadable = RangeSet()

    def add(self, mutation: Mutation, read_version: int) -> None:
        """Take in the next write of the transaction."""
        kind, key, param = mutation
        if kind == MutationType.CLEAR_RANGE:
            self._clear_range(key, param)
        elif kind == MutationType.SET_VERSIONSTAMPED_KEY:
            # Nobody knows which key it will be: what was written before is hidden as well.
            begin, end = stamped_key_range(key, read_version)
            self._forget(begin, end)
            self._cleared.remove(begin, end)
            self._unreadable.add(begin, end)
        else:
            self._write(kind, key, param)

    def _clear_range(self, begin: bytes, end: bytes) -> None:
        self._forget(begin, end)
        self._unreadable.remove(begin, end)
        self._cleared.add(begin, end)

    def _forget(self, begin: bytes, end: bytes) -> None:
        first, last = bisect_left(self._keys, begin), bisect_left(self._keys, end)
        for key in self._keys[first:last]:
            del self._writes[key]
        del self._keys[first:last]

    def _write(self, kind: int, key: bytes, param: bytes) -> None:
        write = self._writes.get(key)
        stamped = kind == MutationType.SET_VERSIONSTAMPED_VALUE
        unreadable = stamped or (write.unreadable if write is not None else key in self._unreadable)
        if kind == MutationType.SET or stamped:
            if write is None:
                insort(self._keys, key)
            self._writes[key] = _Write(True, param, unreadable)
            return
        if write is None:
            insort(self._keys, key)
            write = self._writes[key] = _Write(key in self._cleared, None, unreadable)
        write.apply(kind, param)

    def get(self, key: bytes, in_database: bytes | None) -> bytes | None:
        """The value that a read of `key` sees, given the one in the database."""
        write = self._writes.get(key)
        if write is not None:
            if write.unreadable:
                raise FDBError(1036)
            return write.over(in_database)
        if self._unreadable and key in self._unreadable:
            raise FDBError(1036)
        return None if self._cleared and key in self._cleared else in_database

    def touches(self, key: bytes) -> bool:
        """Whether the transaction wrote to `key`."""
        return key in self._writes or key in self._cleared

    def needs_database(self, key: bytes) -> bool:
        """Whether a read of `key` depends on what the database has."""
        write = self._writes.get(key)
        if write is not None:
            return not write.independent
        return not (self._cleared and key in self._cleared)

    def dependent_parts(self, begin: bytes, end: bytes) -> list[Range]:
        """The parts of a range whose reads depend on what the database has."""
        parts = RangeSet([(begin, end)])
        for cleared in self._cleared.within(begin, end):
            parts.remove(*cleared)
        for key in self._keys_within(begin, end):
            if self._writes[key].independent:
                parts.remove(key, key_after(key))
            else:
                parts.add(key, key_after(key))
        return list(parts)

    def _keys_within(self, begin: bytes, end: bytes) -> list[bytes]:
        return self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]

    def merge(
        self,
        rows: Iterable[tuple[bytes, bytes]],
        begin: bytes,
        end: bytes,
        reverse: bool,
        written: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a range as the transaction sees them.

        With `written`, a key to which `compare_and_clear` left no value is there too, as
        `NO_VALUE`. Raises 1036 where the reading would pass a key that only the commit makes known.
        """
        own = self._keys_within(begin, end)
        if reverse:
            own.reverse()
        barrier = self._barrier(own, begin, end, reverse)
        position = 0
        for key, value in rows:
            while position < len(own) and (own[position] > key if reverse else own[position] < key):
                yield from self._own_row(own[position], None, barrier, reverse, written)
                position += 1
            if position < len(own) and own[position] == key:
                yield from self._own_row(key, value, barrier, reverse, written)
                position += 1
            elif not (self._cleared and key in self._cleared):
                self._check_barrier(key, barrier, reverse)
                yield key, value
        for key in own[position:]:
            yield from self._own_row(key, None, barrier, reverse, written)
        if barrier is not None:
            raise FDBError(1036)

    def _own_row(
        self,
        key: bytes,
        in_database: bytes | None,
        barrier: bytes | None,
        reverse: bool,
        written: bool,
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_barrier(key, barrier, reverse)
        value = self._writes[key].over(in_database)
        if value is not None:
            yield key, value
        elif written:
            yield key, NO_VALUE

    def _barrier(self, own: list[bytes], begin: bytes, end: bytes, reverse: bool) -> bytes | None:
        """Where the reading meets a key that cannot be read: its begin, or its end in reverse."""
        parts = self._unreadable.within(begin, end)
        parts += [(key, key_after(key)) for key in own if self._writes[key].unreadable]
        if reverse:
            return max((part_end for _, part_end in parts), default=None)
        return min((part_begin for part_begin, _ in parts), default=None)

    @staticmethod
    def _check_barrier(key: bytes, barrier: bytes | None, reverse: bool) -> None:
        if barrier is not None and (key < barrier if reverse else key >= barrier):
            raise FDBError(1036)
