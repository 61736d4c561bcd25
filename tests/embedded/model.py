"""A simple model of a transactional key-value store, to compare the engine with.

A version is a dictionary. A transaction replays its writes for every read.
"""

from __future__ import annotations

from typing import Any

KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]


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


class ModelTransaction:
    """One transaction on the model.

    Attributes:
        stored: The rows that it has found.
        operations: What it wrote so far.
    """

    def __init__(self, stored: dict[bytes, bytes], reads_own: bool = True) -> None:
        self.stored = stored
        self.reads_own = reads_own
        self.operations: list[tuple[Any, ...]] = []

    def view(self) -> dict[bytes, bytes]:
        """Return what it sees."""
        rows = self.replayed() if self.reads_own else self.stored
        return dict(sorted(rows.items()))

    def replayed(self) -> dict[bytes, bytes]:
        """Return the rows after its commit."""
        rows = dict(self.stored)
        for operation in self.operations:
            if operation[0] == "clear_range":
                rows = {k: v for k, v in rows.items() if not operation[1] <= k < operation[2]}
                continue
            name, key, param = operation
            value = param if name == "set" else atomic(name, rows.get(key), param)
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
        return rows

    def _written(self) -> set[bytes]:
        """Return the keys written and not cleared since; `compare_and_clear` counts as a write."""
        keys: set[bytes] = set()
        for operation in self.operations if self.reads_own else ():
            if operation[0] == "clear_range":
                keys = {key for key in keys if not operation[1] <= key < operation[2]}
            else:
                keys.add(operation[1])
        return keys

    def get_key(self, key: bytes, or_equal: bool, offset: int) -> bytes:
        found = self.selected(key, or_equal, offset)
        # A key without a value is counted but not returned.
        rows = list(self.view())
        if offset > 0:
            return min((k for k in rows if k >= found), default=b"\xff")
        return max((k for k in rows if k <= found), default=b"")

    def selected(self, key: bytes, or_equal: bool, offset: int) -> bytes:
        """Resolve a selector of a range."""
        start = key + b"\x00" if or_equal else key
        keys = sorted(self._written() | set(self.view()))
        at = sum(k < start for k in keys) + offset - 1
        return b"" if at < 0 else b"\xff" if at >= len(keys) else keys[at]
