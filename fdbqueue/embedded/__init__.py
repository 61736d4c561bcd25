"""FoundationDB's API on one machine: an ordered, transactional key-value store in a directory.

`Database` and `Transaction` have the methods, the optimistic concurrency, the limits and the error
codes of the official Python binding's, so that a layer written for FoundationDB runs on them
unchanged. What they are built on is SQLite, the standard library's.
"""

from fdbqueue.embedded.database import Database
from fdbqueue.embedded.transaction.futures import Future, Key, KeySelector, KeyValue, Value
from fdbqueue.embedded.transaction.reads import TransactionRead
from fdbqueue.embedded.transaction.transaction import Transaction
from fdbqueue.errors import FDBError

__all__ = [
    "Database",
    "FDBError",
    "Future",
    "Key",
    "KeySelector",
    "KeyValue",
    "Transaction",
    "TransactionRead",
    "Value",
]
