"""FoundationDB's API on one machine: an ordered, transactional key-value store in a directory.

`Database` and `Transaction` have the methods, optimistic concurrency, limits and error codes of the
official Python binding. A layer written for FoundationDB runs on them if it is decorated with
`fdbqueue.transactional`. They are built on SQLite, through the standard library's `sqlite3`.
"""

from fdbqueue.embedded.arguments import strinc
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
    "strinc",
]
