"""Differences between FoundationDB's binding and the embedded engine, and the effects of a fork.

Nothing here imports an engine: a program that has a database has loaded one.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from fdbqueue.errors import ClusterUnavailable
from fdbqueue.types import Database, Engine, Key, KeySelector, ReadTransaction, ReadTransactor

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# The network thread of FoundationDB's client does not survive a fork. A call in the child hangs,
# and so does the parent.
client_was_forked = False

opening = threading.RLock()
"""Held while a thread opens a cluster. A fork waits for it."""


def _note_fork() -> None:
    global client_was_forked
    if getattr(sys.modules.get("fdb.impl"), "_network_thread", None) is not None:
        client_was_forked = True
    opening.release()


os.register_at_fork(
    before=opening.acquire, after_in_parent=opening.release, after_in_child=_note_fork
)


def check_fork(db: Database | None = None) -> None:
    """Raise `ClusterUnavailable` for a cluster in a process forked after a cluster was opened."""
    if client_was_forked and (db is None or type(db).__module__ == "fdb.impl"):
        raise ClusterUnavailable(
            "this process was forked from one that had a cluster open, and FoundationDB's client "
            "does not work in it; open clusters after the fork, or start processes with 'spawn'"
        )


class Guard:
    """A lock that a fork cannot inherit locked: each process has its own."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        process = os.getpid()
        lock = self._locks.get(process) or self._locks.setdefault(process, threading.Lock())
        lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()


def client_api_version() -> int | None:
    """Return the newest API version of the client library, if it is loaded."""
    binding = sys.modules.get("fdb.impl")
    return None if binding is None else int(binding._capi.fdb_get_max_api_version())


def loaded_binding() -> Any:
    """Return FoundationDB's binding if its C library is loaded, else the embedded engine."""
    return sys.modules.get("fdb.impl") or sys.modules["fdbqueue.embedded"]


def first_key(tr: ReadTransaction, key: bytes) -> Key:
    """Start to read the first key at or after a key."""
    return tr.get_key(first_greater_or_equal(key, 0))


def first_greater_or_equal(key: bytes, offset: int) -> KeySelector:
    """Return the selector of the first key at or after `key`, moved by `offset` keys."""
    selector: KeySelector = loaded_binding().KeySelector.first_greater_or_equal(key)
    return selector + offset


def database_name(db: Database) -> str:
    """Return the name with which `fdbqueue.open` opens a database."""
    binding = sys.modules.get("fdb.impl")
    if binding is not None and isinstance(db, binding.Database):
        return (db[b"\xff\xff/cluster_file_path"] or b"").decode()
    return str(getattr(db, "url", db))


def is_database(db_or_tr: ReadTransactor) -> TypeIs[Database]:
    """Return true for a database, false for a transaction; raise `TypeError` otherwise."""
    if hasattr(db_or_tr, "get_read_version"):
        return False
    if hasattr(db_or_tr, "create_transaction"):
        return True
    raise TypeError(f"expected a database or a transaction, as in push(db, ...), not {db_or_tr!r}")


def check_database(db: ReadTransactor) -> None:
    """Raise `TypeError` for a transaction."""
    if not is_database(db):
        raise TypeError(
            "give a database, not a transaction: this call makes transactions of its own"
        )


_CLUSTER = Engine(is_remote=True, commits_are_certain=False)


def engine_of(db: Database) -> Engine:
    """Return the engine of a database."""
    return getattr(db, "engine", _CLUSTER)
