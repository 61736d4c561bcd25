"""A database that counts its transactions."""

from __future__ import annotations

from typing import Any

from fdbqueue.testing import FaultyDatabase, FaultyTransaction

__all__ = ["CountingDatabase"]


class CountingDatabase(FaultyDatabase):
    """A database that counts the transactions begun and the commits that wrote something."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.transactions = self.commits = 0

    def create_transaction(self) -> FaultyTransaction:
        self.transactions += 1
        return super().create_transaction()

    def before_call(self, name: str) -> None:
        self.transactions += name == "on_error"  # a retry

    def commit(self, transaction: FaultyTransaction) -> None:
        super().commit(transaction)
        self.commits += transaction.wrapped.get_committed_version() != -1
