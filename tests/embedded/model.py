"""A simple model of a transactional key-value store, to compare the engine with.

It keeps every version as a dictionary, replays a transaction's writes for every read, and notes
conflicts as sets of the smallest parts into which the few keys of a test cut the key space.
"""

from __future__ import annotations

from typing import Any

KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]
BOUNDS = [b"", *KEYS, *(key + b"\x00" for key in KEYS), b"\xff"]


def part_of(begin: bytes, end: bytes) -> set[bytes]:
    """Return the parts of the key space in a range, each named by its first key."""
    return {bound for bound in BOUNDS if begin <= bound < end}


def _number(value: bytes | None, size: int) -> int:
    return int.from_bytes((value or b"")[:size], "little")


def atomic(name: str, value: bytes | None, param: bytes) -> bytes | None:
    """Apply an atomic operation as its documentation defines it, on integers."""
    size = len(param)
    old, new = _number(value, size), _number(param, size)
    if name == "add":
        return ((old + new) % (1 << 8 * size)).to_bytes(size, "little")
    if name == "bit_or":
        return (old | new).to_bytes(size, "little")
    if name == "bit_xor":
        return (old ^ new).to_bytes(size, "little")
    if name == "max":
        return max(old, new).to_bytes(size, "little")
    if name == "append_if_fits":
        return (value or b"") + param
    if name == "compare_and_clear":
        return None if value == param else value
    if value is None:  # on a missing key the other operations store the parameter
        return param
    if name == "bit_and":
        return (old & new).to_bytes(size, "little")
    if name == "min":
        return min(old, new).to_bytes(size, "little")
    return min(value, param) if name == "byte_min" else max(value, param)


ATOMICS = [
    "add",
    "bit_and",
    "bit_or",
    "bit_xor",
    "max",
    "min",
    "append_if_fits",
    "byte_min",
    "byte_max",
    "compare_and_clear",
]


class ModelStore:
    """All versions, and the parts that each commit wrote."""

    def __init__(self) -> None:
        self.versions: list[dict[bytes, bytes]] = [{}]
        self.written: list[set[bytes]] = [set()]


class ModelTransaction:
    """One transaction on the model."""

    def __init__(self, store: ModelStore) -> None:
        self.store = store
        self.version = len(store.versions) - 1
        self.operations: list[tuple[Any, ...]] = []
        self.reads: set[bytes] = set()
        self.writes: set[bytes] = set()
        self.own: set[bytes] = set()  # parts whose content no longer depends on the database

    def view(self, snapshot: bool = False) -> dict[bytes, bytes]:
        return self._replayed(self.store.versions[self.version])

    def _replayed(self, base: dict[bytes, bytes]) -> dict[bytes, bytes]:
        rows = dict(base)
        for operation in self.operations:
            if operation[0] == "clear_range":
                rows = {k: v for k, v in rows.items() if not operation[1] <= k < operation[2]}
                continue
            name, key, param = operation
            value = param if name == "set" else atomic(name, rows.get(key), param)
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
        return dict(sorted(rows.items()))

    def _depend(self, begin: bytes, end: bytes, snapshot: bool) -> None:
        if not snapshot:
            self.reads |= part_of(begin, end) - self.own

    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        self._depend(key, key + b"\x00", snapshot)
        return self.view().get(key)

    def get_range(
        self, begin: bytes, end: bytes, limit: int, reverse: bool, snapshot: bool
    ) -> list[tuple[bytes, bytes]]:
        rows = [(k, v) for k, v in self.view().items() if begin <= k < end]
        rows = rows[::-1] if reverse else rows
        if limit and len(rows) >= limit:
            rows = rows[:limit]
            last = rows[-1][0]
            if reverse:
                self._depend(last, end, snapshot)
            else:
                self._depend(begin, last + b"\x00", snapshot)
        else:
            self._depend(begin, end, snapshot)
        return rows

    def written(self) -> set[bytes]:
        """Return the keys written and not cleared since; `compare_and_clear` counts as a write."""
        keys: set[bytes] = set()
        for operation in self.operations:
            if operation[0] == "clear_range":
                keys = {key for key in keys if not operation[1] <= key < operation[2]}
            else:
                keys.add(operation[1])
        return keys

    def get_key(self, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> bytes:
        start = key + b"\x00" if or_equal else key
        found = self.selected(key, or_equal, offset)
        # A key without a value is counted but not returned.
        rows = list(self.view())
        if offset > 0:
            found = min((k for k in rows if k >= found), default=b"\xff")
            self._depend(start, found + b"\x00", snapshot)
        else:
            found = max((k for k in rows if k <= found), default=b"")
            self._depend(found, start, snapshot)
        return found

    def selected(self, key: bytes, or_equal: bool, offset: int) -> bytes:
        """Resolve a selector of a range without adding a conflict."""
        start = key + b"\x00" if or_equal else key
        keys = sorted(self.written() | set(self.view()))
        at = sum(k < start for k in keys) + offset - 1
        return b"" if at < 0 else b"\xff" if at >= len(keys) else keys[at]

    def write(self, name: str, key: bytes, param: bytes) -> None:
        self.operations.append((name, key, param))
        self.writes |= part_of(key, key + b"\x00")
        if name == "set":
            self.own |= part_of(key, key + b"\x00")

    def clear_range(self, begin: bytes, end: bytes) -> None:
        if begin == end:
            return
        self.operations.append(("clear_range", begin, end))
        self.writes |= part_of(begin, end)
        self.own |= part_of(begin, end)

    def commit(self) -> bool:
        """Return true if the transaction commits, false if it conflicts."""
        if not self.operations and not self.writes:
            return True
        if any(self.reads & written for written in self.store.written[self.version + 1 :]):
            return False
        self.store.versions.append(self._replayed(self.store.versions[-1]))
        self.store.written.append(self.writes)
        return True
