"""A database that counts what is asked of it."""

from __future__ import annotations

from typing import Any

from fdbqueue.testing import FaultyDatabase, FaultyTransaction

__all__ = ["CountingDatabase"]

_READS = frozenset({"get", "get_key", "get_range", "get_range_startswith"})


class CountingDatabase(FaultyDatabase):
    """A database without faults that counts transactions, reads and commits.

    Attributes:
        transactions: The number of transactions begun, retries among them.
        reads: The number of keys, key selectors and ranges that transactions asked for.
        commits: The number of commits that wrote something.
    """

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.clear()

    def clear(self) -> None:
        """Start to count from zero."""
        self.transactions = self.reads = self.commits = 0

    def create_transaction(self) -> FaultyTransaction:
        self.transactions += 1
        return super().create_transaction()

    def before_call(self, name: str) -> None:
        self.transactions += name == "on_error"
        self.reads += name in _READS

    def commit(self, transaction: FaultyTransaction) -> None:
        super().commit(transaction)
        self.commits += transaction.wrapped.get_committed_version() != -1
