"""Read-your-writes: the effect of a transaction's own writes on its reads.

A read of a key that the transaction set or cleared does not depend on the database, so it cannot
conflict. A read of a key that the transaction changed by an atomic operation does.

Source: FoundationDB, Developer Guide, "Reading your writes" and "Conflict ranges"; the conflict
rules are those of `fdbclient/ReadYourWrites.actor.cpp`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from fdbqueue.embedded.mutations import ATOMICS, Mutation, MutationType
from fdbqueue.embedded.ranges import Range, RangeSet, key_after
from fdbqueue.errors import FDBError

MUTATION_OVERHEAD = 44
"""The bytes that FoundationDB counts for a mutation in addition to its contents."""

NO_VALUE = b"no value"
"""A marker, compared by identity, for a written key that has no value."""


# As plain integers, which compare faster.
_SET, _CLEAR_RANGE = int(MutationType.SET), int(MutationType.CLEAR_RANGE)
_SET_STAMPED_KEY = int(MutationType.SET_VERSIONSTAMPED_KEY)
_SET_STAMPED_VALUE = int(MutationType.SET_VERSIONSTAMPED_VALUE)

# Operations of which two have the effect of one, whatever the sizes of their parameters.
_ASSOCIATIVE = {
    *(MutationType.BIT_AND, MutationType.APPEND_IF_FITS),
    *(MutationType.BYTE_MIN, MutationType.BYTE_MAX),
}


class _Write:
    """The writes to one key: a known value, or operations on a value that is not known."""

    __slots__ = ("independent", "operations", "unreadable", "value")

    def __init__(self, independent: bool, value: bytes | None, unreadable: bool) -> None:
        self.independent = independent
        self.value = value
        self.operations: list[tuple[int, bytes]] = []
        self.unreadable = unreadable

    def apply(self, kind: int, param: bytes) -> None:
        if self.independent and not self.unreadable:
            self.value = ATOMICS[kind](self.value, param)
        else:
            self.operations.append((kind, param))

    def over(self, value: bytes | None) -> bytes | None:
        """Return the value that a read sees if the database has `value`."""
        if self.independent:
            return self.value
        for kind, param in self.operations:
            value = ATOMICS[kind](value, param)
        return value

    def size(self, key: bytes) -> int:
        """Return the bytes of the mutations that are left after merging."""
        merged: list[bytes] = []
        if self.independent and not self.unreadable:
            merged = [key_after(key) if self.value is None else self.value]
        elif self.unreadable:
            merged = [param for _, param in self.operations]
        else:
            last = -1
            for kind, param in self.operations:
                if kind == last and (kind in _ASSOCIATIVE or len(param) == len(merged[-1])):
                    merged[-1] = ATOMICS[kind](merged[-1], param) or b""
                else:
                    merged.append(param)
                last = kind if kind != MutationType.COMPARE_AND_CLEAR else -1
        return sum(MUTATION_OVERHEAD + len(key) + len(param) for param in merged)


def stamped_key_range(key: bytes, read_version: int) -> Range:
    """Return the range of keys that a versionstamped key may become."""
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
        self._has_unreadable = False  # whether that set was ever used
        self._size = 0  # of versionstamped keys, and of writes that they hide
        # Write conflict ranges that the program added, and where FoundationDB divides the ranges
        # that are read later because of them. It counts each part.
        self._conflicts: RangeSet | None = None
        self._cuts: list[bytes] = []

    def add(self, mutation: Mutation, read_version: int) -> None:
        """Add the next write of the transaction."""
        kind, key, param = mutation
        if kind == _CLEAR_RANGE:
            self._forget(key, param)
            if self._has_unreadable:
                self._unreadable.remove(key, param)
            self._cleared.add(key, param)
        elif kind == _SET_STAMPED_KEY:
            # The final key is unknown, so earlier writes in the range are hidden as well.
            begin, end = stamped_key_range(key, read_version)
            self._size += MUTATION_OVERHEAD + len(key) + len(param)
            self._size += self._size_within(begin, end)
            self._forget(begin, end)
            self._cleared.remove(begin, end)
            self._unreadable.add(begin, end)
            self._has_unreadable = True
        else:
            self._write(kind, key, param)

    def _forget(self, begin: bytes, end: bytes) -> None:
        first, last = bisect_left(self._keys, begin), bisect_left(self._keys, end)
        for key in self._keys[first:last]:
            del self._writes[key]
        del self._keys[first:last]

    def _write(self, kind: int, key: bytes, param: bytes) -> None:
        write = self._writes.get(key)
        stamped = kind == _SET_STAMPED_VALUE
        if write is None:
            insort(self._keys, key)
            unreadable = stamped or (self._has_unreadable and key in self._unreadable)
        else:
            unreadable = stamped or write.unreadable
        if kind == _SET or stamped:
            if write is None or not write.unreadable:
                write = self._writes[key] = _Write(True, param, unreadable)
            if not unreadable:
                return
        elif write is None:
            write = self._writes[key] = _Write(key in self._cleared, None, unreadable)
        write.apply(kind, param)

    def add_conflict(self, begin: bytes, end: bytes) -> None:
        """Note a write conflict range that the program added."""
        conflicts = self._conflicts = self._conflicts or RangeSet()
        for cut in (begin, end):
            at = bisect_left(self._cuts, cut)
            if cut not in conflicts and self._cuts[at : at + 1] != [cut]:
                self._cuts.insert(at, cut)
        conflicts.add(begin, end)

    def size(self) -> int:
        """Return the bytes of the mutations that are left after merging, as FoundationDB does."""
        return self._size + self._size_within(b"", b"\xff\xff")

    def _size_within(self, begin: bytes, end: bytes) -> int:
        size = 0
        cleared = RangeSet(self._cleared.within(begin, end))
        for key in self._keys_within(begin, end):
            size += self._writes[key].size(key)
            if key in cleared:
                cleared.remove(key, key_after(key))
        return size + sum(MUTATION_OVERHEAD + len(low) + len(high) for low, high in cleared)

    def get(self, key: bytes, in_database: bytes | None) -> bytes | None:
        """Return the value that a read of `key` sees, given the database's value."""
        write = self._writes.get(key)
        if write is not None:
            if write.unreadable:
                raise FDBError(1036)
            return write.over(in_database)
        if self._has_unreadable and key in self._unreadable:
            raise FDBError(1036)
        return None if key in self._cleared else in_database

    def needs_database(self, key: bytes) -> bool:
        """Return whether a read of `key` depends on the database."""
        write = self._writes.get(key)
        if write is not None:
            return not write.independent
        return key not in self._cleared

    def dependent_parts(self, begin: bytes, end: bytes) -> list[Range]:
        """Return the parts of a range whose reads depend on the database.

        The parts are those that FoundationDB counts: a written key is a part of its own.
        """
        if end == key_after(begin):
            return [(begin, end)] if self.needs_database(begin) else []
        unwritten = RangeSet([(begin, end)])
        for cleared in self._cleared.within(begin, end):
            unwritten.remove(*cleared)
        parts: list[Range] = []
        for key in self._keys_within(begin, end):
            after = key_after(key)
            unwritten.remove(key, after)
            if not self._writes[key].independent:
                parts.append((key, after))
        for low, high in unwritten:
            for cut in self._cuts[bisect_right(self._cuts, low) : bisect_left(self._cuts, high)]:
                parts.append((low, cut))
                low = cut
            parts.append((low, high))
        return parts

    def _keys_within(self, begin: bytes, end: bytes) -> list[bytes]:
        return self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]

    def readable(self, begin: bytes, end: bytes, reverse: bool) -> Range:
        """Return the part of a range that a read can pass before a key that nobody knows yet.

        Only the commit determines versionstamped keys and values.
        """
        parts = self._unreadable.within(begin, end)
        own = self._keys_within(begin, end)
        parts += [(key, key_after(key)) for key in own if self._writes[key].unreadable]
        if reverse:
            return max((part_end for _, part_end in parts), default=begin), end
        return begin, min((part_begin for part_begin, _ in parts), default=end)

    def merge(
        self, rows: Iterable[tuple[bytes, bytes]], begin: bytes, end: bytes, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a readable range as the transaction sees them.

        A key that `compare_and_clear` left without a value is included, as `NO_VALUE`.
        """
        own = self._keys_within(begin, end)
        if reverse:
            own.reverse()
        position = 0
        for key, value in rows:
            while position < len(own) and (own[position] > key if reverse else own[position] < key):
                yield self._own_row(own[position], None)
                position += 1
            if position < len(own) and own[position] == key:
                yield self._own_row(key, value)
                position += 1
            elif not (self._cleared and key in self._cleared):
                yield key, value
        for key in own[position:]:
            yield self._own_row(key, None)

    def _own_row(self, key: bytes, in_database: bytes | None) -> tuple[bytes, bytes]:
        value = self._writes[key].over(in_database)
        return key, NO_VALUE if value is None else value
