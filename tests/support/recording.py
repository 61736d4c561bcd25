"""A database that records which keys transactions read, write and conflict on."""

from __future__ import annotations

from typing import Any

from fdbqueue.testing import FaultyDatabase, FaultyTransaction

_OF_A_KEY = {
    *("get", "set", "clear", "add", "max", "compare_and_clear", "watch"),
    *("add_read_conflict_key", "add_write_conflict_key"),
}
_OF_A_RANGE = {
    *("get_range", "clear_range"),
    *("add_read_conflict_range", "add_write_conflict_range"),
}


class RecordingDatabase(FaultyDatabase):
    """A database without faults that records the ranges that its transactions touch.

    Attributes:
        touched: The begin and the end of each range; a key is a range of one.
    """

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.touched: list[tuple[bytes, bytes]] = []

    def create_transaction(self) -> FaultyTransaction:
        transaction: Any = _Recording(self.touched, self.db.create_transaction())
        return FaultyTransaction(self, transaction)


class _Recording:
    """A transaction, or its `snapshot`."""

    def __init__(self, touched: list[tuple[bytes, bytes]], wrapped: Any) -> None:
        self._touched = touched
        self._wrapped = wrapped

    @property
    def snapshot(self) -> _Recording:
        return _Recording(self._touched, self._wrapped.snapshot)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._wrapped, name)
        if name not in _OF_A_KEY | _OF_A_RANGE:
            return method

        def call(begin: Any, *args: Any, **options: Any) -> Any:
            end = args[0] if name in _OF_A_RANGE else begin + b"\x00"
            self._touched.append((getattr(begin, "key", begin), end))
            return method(begin, *args, **options)

        return call

    def __getitem__(self, key: bytes) -> Any:
        return self.get(key)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.set(key, value)

    def __delitem__(self, key: bytes) -> None:
        self.clear(key)
