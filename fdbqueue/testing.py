"""Faults on purpose: a database whose commits fail as those of a cluster sometimes do.

For this library's tests and for those of programs that use it.
"""

from __future__ import annotations

import random
from typing import Any

from fdbqueue.errors import FDBError

__all__ = ["FaultyDatabase", "FaultyTransaction"]


class FaultyDatabase:
    """A database that loses the answers of commits, before or after they took place.

    It wraps a database of either engine and can stand wherever a database can. The same seed gives
    the same faults in the same order of commits.

    Parameters: `db`; `before`, the share of commits (0 to 1) that fail with an unknown result
    (1021) without having taken place; `after`, the share that take place and then fail so;
    `conflict`, the share that fail with a conflict (1020); `seed`.

    >>> import fdbqueue
    >>> db = FaultyDatabase(fdbqueue.open("memory:"), before=0.4, after=0.4, seed=1)
    >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
    >>> for number in range(100):
    ...     _ = jobs.push(db, number)
    >>> jobs.size(db), db.lost > 50
    (100, True)
    """

    def __init__(
        self,
        db: Any,
        *,
        before: float = 0.0,
        after: float = 0.0,
        conflict: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._db = db
        self._random = random.Random(seed)
        self._shares = {"before": before, "after": after, "conflict": conflict}
        self.lost = 0
        """How many answers were lost so far."""

    def create_transaction(self) -> FaultyTransaction:
        """A transaction of the wrapped database, with faults at its commit."""
        return FaultyTransaction(self, self._db.create_transaction())

    def close(self) -> None:
        """Close the wrapped database."""
        self._db.close()

    def fault(self) -> str | None:
        """What happens to the next commit."""
        drawn = self._random.random()
        for kind, share in self._shares.items():
            if drawn < share:
                self.lost += kind != "conflict"
                return kind
            drawn -= share
        return None


class FaultyTransaction:
    """A transaction like the wrapped one, but for the answer to its commit."""

    def __init__(self, db: FaultyDatabase, transaction: Any) -> None:
        self._db = db
        self._transaction = transaction

    def commit(self) -> _Answer:
        """Commit, or not, and answer, or not."""
        fault = self._db.fault()
        if fault == "before":
            return _Answer(1021)
        if fault == "conflict":
            return _Answer(1020)
        self._transaction.commit().wait()
        return _Answer(1021 if fault == "after" else 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def __getitem__(self, key: Any) -> Any:
        return self._transaction[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._transaction[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._transaction[key]


class _Answer:
    """The future of a commit."""

    def __init__(self, code: int) -> None:
        self._code = code

    def wait(self) -> None:
        if self._code:
            raise FDBError(self._code)
