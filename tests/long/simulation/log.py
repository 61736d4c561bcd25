"""The log of a simulation: each transaction that changes something writes what it does.

The key of an entry is the versionstamp of its transaction. So the entries are in the order of
commits, those of clients that were killed among them, and what took effect twice has two.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any, NamedTuple

from fdb.subspace_impl import Subspace

_NO_STAMP = b"\x00" * 10
_PAGE = 500


class Entry(NamedTuple):
    """What a transaction did.

    Attributes:
        stamp: Where it is in the log: the versionstamp, and the number within the transaction.
        verb: What it did.
        facts: The details.
    """

    stamp: bytes
    verb: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.stamp.hex()} {self.verb} {self.facts}"


class Log:
    """The log.

    Args:
        space: A subspace that holds nothing else.
    """

    def __init__(self, space: Subspace) -> None:
        self._prefix = space.key()
        self._numbers = count()

    def note(self, tr: Any, verb: str, **facts: Any) -> None:
        """Add an entry to a transaction."""
        # A number that grows keeps the entries of one transaction apart, and in order.
        number = next(self._numbers).to_bytes(4, "big")
        offset = len(self._prefix).to_bytes(4, "little")
        tr.set_versionstamped_key(
            self._prefix + _NO_STAMP + number + offset, json.dumps([verb, facts]).encode()
        )

    def read(self, db: Any) -> list[Entry]:
        """Return all entries, in the order of commits."""
        begin, end = self._prefix, self._prefix + b"\xff"
        entries: list[Entry] = []
        while rows := [*db.get_range(begin, end, limit=_PAGE)]:
            entries += [Entry(row.key[len(self._prefix) :], *json.loads(row.value)) for row in rows]
            begin = rows[-1].key + b"\x00"
        return entries
