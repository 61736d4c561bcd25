"""A database that counts what is asked of it."""

from __future__ import annotations

from typing import Any

from fdbqueue.testing import FaultyDatabase, FaultyTransaction
from tests.support.keys import layout_of

_MUTATIONS = frozenset({"set", "clear", "clear_range", "add", "max", "compare_and_clear"})
_READS = frozenset({"get", "get_key", "get_range", "get_range_startswith"})


class CountingDatabase(FaultyDatabase):
    """A database without faults that counts transactions, reads and commits.

    Attributes:
        transactions: The number of transactions begun, retries among them.
        reads: The number of keys, key selectors and ranges that transactions asked for.
        commits: The number of commits that wrote something.
        watches: The number of watches that transactions began.
        mutations: The key of each mutation; the first one of a range.
    """

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.clear()

    def clear(self) -> None:
        """Start to count from zero."""
        self.transactions = self.reads = self.commits = self.watches = 0
        self.mutations = list[bytes]()

    def create_transaction(self) -> FaultyTransaction:
        self.transactions += 1
        return _CountingTransaction(self, self.db.create_transaction())

    def before_call(self, name: str) -> None:
        self.transactions += name == "on_error"
        self.reads += name in _READS
        self.watches += name == "watch"

    def commit(self, transaction: FaultyTransaction) -> None:
        super().commit(transaction)
        self.commits += transaction.wrapped.get_committed_version() != -1


class _CountingTransaction(FaultyTransaction):
    """A transaction that adds its mutations to those of its database."""

    _db: CountingDatabase

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        if name not in _MUTATIONS:
            return method

        def mutate(key: Any, *args: Any) -> None:
            self._db.mutations.append(key)
            method(key, *args)

        return mutate

    def __setitem__(self, key: Any, value: Any) -> None:
        self._db.mutations.append(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._db.mutations.append(key)
        super().__delitem__(key)


def writes(counted: CountingDatabase, *queues: Any) -> int:
    """Return the number of mutations, without receipts, and history, which comes now and then."""
    layouts = [layout_of(queue) for queue in queues]
    return sum(
        not any(key.startswith(each.history) or each.receipts.contains(key) for each in layouts)
        for key in counted.mutations
    )
