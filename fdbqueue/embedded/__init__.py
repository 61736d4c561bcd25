"""FoundationDB's API on one machine: an ordered, transactional key-value store in a directory.

A layer written for FoundationDB runs on it if `fdbqueue.transactional` decorates it.
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
