"""A database that fails as a cluster sometimes does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fdbqueue.database.binding import engine_of
from fdbqueue.errors import FDBError
from fdbqueue.types import Database, KeyLike, ValueLike

if TYPE_CHECKING:
    _Wrapper = Any  # has all methods of what it wraps, most of them by `__getattr__`
else:
    _Wrapper = object

__all__ = ["FaultyDatabase", "FaultyTransaction"]

_READS = frozenset({"get", "get_key", "get_range", "get_range_startswith", "get_read_version"})


class FaultyDatabase(_Wrapper):  # type: ignore[misc]
    """A database that loses the results of commits, before or after they take effect.

    The same seed produces the same faults for the same calls. Operations on the database itself,
    such as `db[key]`, have no faults.

    Args:
        db: The database to wrap.
        before: Share of commits, from 0 to 1, whose result is lost and which take no effect.
        after: Share of commits whose result is lost although they take effect.
        lost_as: Error codes of lost results: 1021, 1039 and 1031 (which is not retried).
        conflict: Share of commits that fail with a conflict (1020).
        too_old: Share of reads and of commits that fail with 1007.
        seed: Seed of the random number generator.

    Raises:
        ValueError: A share or code is not valid, or the shares exceed 1 together.

    Example:
        >>> import fdbqueue
        >>> db = FaultyDatabase(fdbqueue.open("memory:"), before=0.4, after=0.4, seed=1)
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = [jobs.push(db, number) for number in range(100)]
        >>> jobs.size(db), db.lost > 50
        (100, True)
    """

    def __init__(
        self,
        db: Database,
        *,
        before: float = 0.0,
        after: float = 0.0,
        lost_as: Sequence[int] = (1021,),
        conflict: float = 0.0,
        too_old: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.db = db
        self.engine = engine_of(db)._replace(commits_are_certain=False)
        self._random = random.Random(seed)
        self._shares = {"before": before, "after": after, "conflict": conflict, "too_old": too_old}
        for name, share in self._shares.items():
            if not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, not {share!r}")
        if sum(self._shares.values()) > 1:
            raise ValueError("before, after, conflict and too_old must not add up to more than 1")
        if not set(lost_as) or not set(lost_as) <= {1021, 1031, 1039}:
            raise ValueError(f"lost_as must be some of 1021, 1031 and 1039, not {lost_as!r}")
        self._lost_as = lost_as
        self.lost = 0
        """Number of lost results so far."""

    def create_transaction(self) -> FaultyTransaction:
        """Return a transaction with faults."""
        return FaultyTransaction(self, self.db.create_transaction())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)

    def __getitem__(self, key: KeyLike | slice) -> Any:
        return self.db[key]

    def __setitem__(self, key: KeyLike, value: ValueLike) -> None:
        self.db[key] = value

    def __delitem__(self, key: KeyLike | slice) -> None:
        del self.db[key]

    def before_call(self, name: str) -> None:
        """Raise 1007 for a share of the reads."""
        if name in _READS and self._random.random() < self._shares["too_old"]:
            raise FDBError(1007)

    def commit(self, transaction: FaultyTransaction) -> None:
        """Commit or not; raise the error that the client sees."""
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


class FaultyReads(_Wrapper):  # type: ignore[misc]
    """A transaction, or its `snapshot`, with faults before each call."""

    def __init__(self, db: FaultyDatabase, wrapped: Any) -> None:
        self._db = db
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        self._db.before_call(name)
        return getattr(self.wrapped, name)

    def __getitem__(self, key: KeyLike | slice) -> Any:
        self._db.before_call("get")
        return self.wrapped[key]


class FaultyTransaction(FaultyReads):
    """A transaction with faults."""

    @property
    def snapshot(self) -> FaultyReads:
        """Snapshot reads, with faults."""
        return FaultyReads(self._db, self.wrapped.snapshot)

    def commit(self) -> _Answer:
        """Commit or not; return a future."""
        self._db.before_call("commit")
        try:
            self._db.commit(self)
        except FDBError as error:
            return _Answer(error)
        return _Answer(None)

    def on_error(self, error: Any) -> Any:
        """Prepare the next attempt. 1039 is retried here, as the multi-version client does."""
        self._db.before_call("on_error")
        code = error if isinstance(error, int) else error.code
        if code == 1039:
            self.wrapped.reset()
            return _Answer(None)
        return self.wrapped.on_error(code)

    def __setitem__(self, key: KeyLike, value: ValueLike) -> None:
        self._db.before_call("set")
        self.wrapped[key] = value

    def __delitem__(self, key: KeyLike | slice) -> None:
        self._db.before_call("clear")
        del self.wrapped[key]


class _Answer:
    def __init__(self, error: FDBError | None) -> None:
        self._error = error

    def wait(self) -> None:
        if self._error is not None:
            raise self._error
