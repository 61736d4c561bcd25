"""The embedded engine's database object."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, overload

from fdbqueue.embedded.storage.storage import Storage
from fdbqueue.embedded.transaction.futures import KeyValue, Value, WatchFuture
from fdbqueue.embedded.transaction.options import DatabaseOptions, Settings
from fdbqueue.embedded.transaction.reads import BINDING_REFUSED
from fdbqueue.embedded.transaction.transaction import Transaction
from fdbqueue.embedded.transaction.watcher import Watcher
from fdbqueue.embedded.transaction.writes import Writes
from fdbqueue.errors import FDBError
from fdbqueue.types import Engine, KeyLike, KeyOrSelector, KeySelector, ValueLike

_T = TypeVar("_T")


class Database(Writes):
    """An ordered, transactional key-value store in one directory: FoundationDB for one machine.

    Threads and processes may open the same directory. The methods are the official binding's. Each
    operation on the database itself is a separate transaction, retried until it commits.

    Args:
        path: The directory; `None` for a private database in memory, deleted when closed.
        durability: `"full"` or `"os"`, as for `fdbqueue.open`.
        create: Whether to create a missing database.

    Raises:
        StorageError: The directory cannot be used; the subclasses say why.

    Example:
        >>> with Database(None) as db:
        ...     db[b"hello"] = b"world"
        ...     db[b"hello"]
        b'world'
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        durability: str = "full",
        *,
        create: bool = True,
    ) -> None:
        if durability not in ("full", "os"):
            raise ValueError(f"durability must be 'full' or 'os', not {durability!r}")
        self.storage = Storage(
            None if path is None else Path(path).expanduser().absolute(),
            durable=durability == "full" and path is not None,
            create=create,
        )
        self.path = self.storage.path
        """The directory of the database."""
        self.durability = "os" if path is None else durability
        self.engine = Engine(is_remote=False, commits_are_certain=True)
        """Properties that the API does not show."""
        self.in_memory = path is None
        self.defaults = Settings()
        self.options = DatabaseOptions(self.defaults)
        """Options for new transactions, set by `set_transaction_...` methods."""
        # Closes the database when it is garbage-collected or the program ends: a directory in
        # memory must not stay behind.
        self._finalizer = weakref.finalize(self, self.storage.close)
        self.watcher = Watcher(self.storage)

    @property
    def url(self) -> str:
        """The argument of `fdbqueue.open` for this database."""
        return "memory:" if self.in_memory else f"embedded:{self.path}"

    def close(self) -> None:
        """Release the files. Later operations, even of open transactions, fail with 1025."""
        self.storage.close()
        self._finalizer.detach()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<fdbqueue.embedded.Database {self.url}>"

    def check_integrity(self, seconds: float | None = None) -> bool:
        """Check every page of the database file for damage, and return whether it ended in time.

        Other transactions continue. The check takes about a second per gigabyte in memory, and
        gives up after the `seconds`.

        Raises:
            CorruptDatabase: SQLite found damage.

        Example:
            >>> with Database(None) as db:
            ...     db.check_integrity()
            True
        """
        return self.storage.check_integrity(seconds)

    def create_transaction(self) -> Transaction:
        """Return a new transaction.

        Raises:
            TypeError: The caller is `fdb.transactional`, which would not retry.
        """
        if sys._getframe(1).f_globals.get("__name__") == "fdb.impl":
            raise TypeError(BINDING_REFUSED)
        return Transaction(self)

    def _run(self, body: Callable[[Transaction], _T]) -> _T:
        transaction = self.create_transaction()
        transaction.read_ahead()
        while True:
            try:
                result = body(transaction)
                transaction.commit().wait()
                return result
            except FDBError as error:
                transaction.on_error(error).wait()

    # Each of these operations is a transaction of its own.

    def get(self, key: KeyLike) -> bytes | None:
        """Return the value of a key, or `None`."""
        return self._run(lambda tr: tr.get(key).value)

    def get_key(self, key_selector: KeySelector) -> bytes:
        """Return the key of a selector."""
        return self._run(lambda tr: tr.get_key(key_selector).value)

    def get_range(
        self,
        begin: KeyOrSelector | None,
        end: KeyOrSelector | None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = -1,
    ) -> list[KeyValue]:
        """Return the rows from `begin` (inclusive) to `end` (exclusive), as a list."""
        return self._run(
            lambda tr: tr.get_range(begin, end, limit, reverse, streaming_mode).to_list()
        )

    def get_range_startswith(
        self, prefix: KeyLike, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> list[KeyValue]:
        """Return the rows whose keys start with `prefix`."""
        return self._run(
            lambda tr: tr.get_range_startswith(prefix, limit, reverse, streaming_mode).to_list()
        )

    @overload
    def __getitem__(self, key: KeyLike) -> bytes | None: ...

    @overload
    def __getitem__(self, key: slice) -> list[KeyValue]: ...

    def __getitem__(self, key: KeyLike | slice) -> bytes | list[KeyValue] | None:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)

    def mutate(self, kind: int, key: KeyLike, param: ValueLike) -> None:
        """Write a mutation of one key."""
        self._run(lambda tr: tr.mutate(kind, key, param))

    def clear(self, key: KeyOrSelector) -> None:
        """Clear a key."""
        self._run(lambda tr: tr.clear(key))

    def clear_range(self, begin: KeyOrSelector | None, end: KeyOrSelector | None) -> None:
        """Clear all keys from `begin` (inclusive) to `end` (exclusive)."""
        self._run(lambda tr: tr.clear_range(begin, end))

    def get_and_watch(self, key: KeyLike) -> tuple[Value, WatchFuture]:
        """Return the value of a key and a watch for its next change."""
        return self._run(lambda tr: (tr.get(key), tr.watch(key)))
