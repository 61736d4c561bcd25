"""The log of a workload: each operation, in the transaction that makes it.

The key of an entry is the versionstamp of its transaction, so entries are in the order of commits,
and an operation that took effect twice, because a result was unknown, has two.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import fdb
from fdb.subspace_impl import Subspace

from tests.long.simulation.cluster.model import Entry, last_stamp

_T = TypeVar("_T")

errors: Counter[int] = Counter()
"""How often transactions of all clients failed, by the code of the error."""

_LOG = Subspace(("log",))
_PAGE = 500


class Attempt:
    """One attempt of a transaction, with the operations that it makes.

    Args:
        tr: The transaction.
        client: The number of the client.
    """

    def __init__(self, tr: Any, client: int) -> None:
        self.tr = tr
        self._client = client
        self._read = tr.get_read_version().wait()
        self._times = 0, 0
        self._entries: list[dict[str, Any]] = []

    def call(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Call a method of a queue, and note the time before and after it."""
        begun = _milliseconds()
        try:
            return function(*args, **kwargs)
        finally:
            self._times = begun, _milliseconds()

    def note(self, verb: str, *, snapshot: bool = False, **facts: Any) -> None:
        """Add an entry for the last call."""
        begun, ended = self._times
        common = {"verb": verb, "read": self._read, "begun": begun, "ended": ended}
        self._entries.append(
            {**common, "snapshot": snapshot, "client": self._client, "facts": facts}
        )

    def write(self) -> None:
        """Write the entries."""
        for number, entry in enumerate(self._entries):
            key = _LOG.pack_with_versionstamp((fdb.tuple.Versionstamp(user_version=number),))
            self.tr.set_versionstamped_key(key, json.dumps(entry).encode())


def _milliseconds() -> int:
    return int(time.time() * 1000)


def run(db: Any, client: int, body: Callable[[Attempt], _T]) -> _T:
    """Run a transaction as a caller of the library does, with a retry loop of its own."""
    tr = db.create_transaction()
    while True:
        try:
            attempt = Attempt(tr, client)
            result = body(attempt)
            attempt.write()
            tr.commit().wait()
            return result
        except fdb.FDBError as error:
            errors[error.code] += 1
            tr.on_error(error.code).wait()


def read_log(db: Any) -> tuple[list[Entry], str]:
    """Return all entries in the order of commits, and a digest of the log."""
    begin, end = _LOG.range().start, _LOG.range().stop
    entries: list[Entry] = []
    digest = hashlib.sha256()
    while True:
        rows = _read_page(db, begin, end)
        for row in rows:
            digest.update(row.key + row.value)
            entries.append(_entry(row.key, json.loads(row.value)))
        if len(rows) < _PAGE:
            return entries, digest.hexdigest()
        begin = rows[-1].key + b"\0"


def _read_page(db: Any, begin: bytes, end: bytes) -> list[Any]:
    tr = db.create_transaction()
    while True:
        try:
            return [*tr.get_range(begin, end, limit=_PAGE)]
        except fdb.FDBError as error:
            tr.on_error(error.code).wait()


def _entry(key: bytes, stored: dict[str, Any]) -> Entry:
    stamp = int.from_bytes(_LOG.unpack(key)[0].tr_version, "big")
    if stored.pop("snapshot"):
        stamp = last_stamp(stored["read"])
    return Entry(stamp=stamp, **stored)
