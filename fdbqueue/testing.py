"""Faults on purpose: a database that fails as a cluster sometimes does.

For this library's tests and for those of programs that use it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from fdbqueue.errors import FDBError

__all__ = ["FaultyDatabase", "FaultyTransaction"]

_READS = frozenset({"get", "get_key", "get_range", "get_range_startswith", "get_read_version"})


class FaultyDatabase:
    """A database that loses the answers of commits, before or after they took place.

    It wraps a database of either engine and can stand wherever this library takes one. The same
    seed gives the same faults in the same order of calls.

    Parameters, each share from 0 to 1: `db`; `before`, the share of commits whose answer is lost
    without their having taken place; `after`, the share that take place and whose answer is lost;
    `lost_as`, the codes that tell of a lost answer, one drawn for each: 1021 (commit result
    unknown), 1039 (the cluster was upgraded) and 1031 (timed out, which is not tried again);
    `conflict`, the share of commits that fail with 1020; `too_old`, the share of reads and of
    commits that fail with 1007; `seed`.

    Raises `ValueError` for a share that is none, shares of more than 1 together, or no code.

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
        lost_as: Sequence[int] = (1021,),
        conflict: float = 0.0,
        too_old: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.db = db
        self._random = random.Random(seed)
        self._shares = {"before": before, "after": after, "conflict": conflict, "too_old": too_old}
        for name, share in self._shares.items():
            if not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, not {share!r}")
        if sum(self._shares.values()) > 1:
            raise ValueError("before, after, conflict and too_old are more than 1 together")
        if not set(lost_as) or not set(lost_as) <= {1021, 1031, 1039}:
            raise ValueError(f"lost_as is some of 1021, 1031 and 1039, not {lost_as!r}")
        self._lost_as = lost_as
        self.lost = 0
        """How many answers were lost so far."""

    def create_transaction(self) -> FaultyTransaction:
        """A transaction of the wrapped database, with faults."""
        return FaultyTransaction(self, self.db.create_transaction())

    @property
    def options(self) -> Any:
        """The options of the wrapped database."""
        return self.db.options

    def before_call(self, name: str) -> None:
        """What happens before each call of a transaction's method."""
        if name in _READS and self._random.random() < self._shares["too_old"]:
            raise FDBError(1007)

    def commit(self, transaction: FaultyTransaction) -> None:
        """Commit, or not, and raise what the client is told."""
        shares = self._shares
        none = 1 - sum(shares.values())
        (kind,) = self._random.choices([*shares, "none"], [*shares.values(), none])
        if kind == "conflict":
            raise FDBError(1020)
        if kind == "too_old":
            raise FDBError(1007)
        if kind != "before":
            transaction.wrapped.commit().wait()
        if kind != "none":
            self.lost += 1
            raise FDBError(self._random.choice(self._lost_as))


class FaultyReads:
    """The calls of a transaction, or of its `snapshot`, with faults before them."""

    def __init__(self, db: FaultyDatabase, wrapped: Any) -> None:
        self._db = db
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        self._db.before_call(name)
        return getattr(self.wrapped, name)

    def __getitem__(self, key: Any) -> Any:
        self._db.before_call("get")
        return self.wrapped[key]


class FaultyTransaction(FaultyReads):
    """A transaction like the wrapped one, with faults."""

    @property
    def snapshot(self) -> FaultyReads:
        return FaultyReads(self._db, self.wrapped.snapshot)

    def commit(self) -> _Answer:
        """Commit, or not, and answer, or not."""
        self._db.before_call("commit")
        try:
            self._db.commit(self)
        except FDBError as error:
            return _Answer(error)
        return _Answer(None)

    def on_error(self, error: Any) -> Any:
        """Prepare another attempt, if one can help.

        After 1039 it does so itself: only FoundationDB's multi-version client, from which that
        error comes, knows what to do with it.
        """
        self._db.before_call("on_error")
        code = error if isinstance(error, int) else error.code
        if code == 1039:
            self.wrapped.reset()
            return _Answer(None)
        return self.wrapped.on_error(code)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._db.before_call("set")
        self.wrapped[key] = value

    def __delitem__(self, key: Any) -> None:
        self._db.before_call("clear")
        del self.wrapped[key]


class _Answer:
    """The future of a commit."""

    def __init__(self, error: FDBError | None) -> None:
        self._error = error

    def wait(self) -> None:
        if self._error is not None:
            raise self._error
