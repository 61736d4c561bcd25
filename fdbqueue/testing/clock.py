"""A clock that the test moves."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Any
from unittest import mock

from fdbqueue.coordination import waiting
from fdbqueue.database import clock
from fdbqueue.operations.timers import VERSIONS
from fdbqueue.queue.arguments import validate_seconds, validate_time
from fdbqueue.types import Duration, Future

# Leases are rounded up to a millisecond, and end by the clocks of the client and of the engine,
# which are not read at the same time.
_MORE = 0.05  # seconds
_MAX_SECONDS = 10**10
_LOOK = 0.02  # seconds after which a waiting worker looks whether the clock was moved


class Clock:
    """The clock of all queues of this process, which the test moves.

    It also goes on by itself. A move wakes waiting workers, and holds for delays, retries, leases
    and expiry. Time-outs of jobs, waits of calls, and other clocks such as `datetime.now()` do not
    move.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push(db, "greet", delay="1d")
        >>> with Clock() as clock:
        ...     clock.advance("1d")
        ...     print(jobs.pop(db).value)
        greet
    """

    _seconds = 0.0  # of all clocks of the process: a monotonic clock does not go back

    def __init__(self) -> None:
        self._is_entered = False
        self._versions = 0
        self._following: set[str] = set()
        self._undo = ExitStack()

    def __enter__(self) -> Clock:
        self._is_entered = True
        self._machines, self._nanoseconds = clock.time_ns, 0
        self._undo.enter_context(mock.patch.object(clock, "time_ns", self._time_ns))
        self._undo.enter_context(mock.patch.object(waiting, "MAX_SLEEP", _LOOK))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_entered = False
        self._following.clear()
        self._undo.close()

    def _time_ns(self) -> int:
        return self._machines() + self._nanoseconds

    @staticmethod
    def _monotonic() -> float:
        return time.monotonic() + Clock._seconds

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(clock.nanoseconds() / 10**9, UTC)

    def advance(self, time: Duration) -> None:
        """Let this time pass, and 0.05 seconds more, so that a lease of this length is over."""
        seconds = validate_seconds("time", time, below=_MAX_SECONDS) + _MORE
        self._let_versions_follow()
        self._versions += round(seconds * VERSIONS)
        self._nanoseconds += round(seconds * 10**9)
        Clock._seconds += seconds
        clock.monotonic = Clock._monotonic

    def move_to(self, time: datetime) -> None:
        """Let the time pass until this one; raise `ValueError` if it is over."""
        seconds = (validate_time(time) - self.now()).total_seconds()
        if seconds < 0:
            raise ValueError(f"a clock does not go back: it is {self.now()}, after {time}")
        self.advance(seconds)

    def _let_versions_follow(self) -> None:
        """Keep the versions of both engines, by which leases end, as far ahead as the clock."""
        if not self._is_entered:
            raise RuntimeError(
                "a clock can be moved in a `with` block only: `with Clock() as clock`"
            )
        for name in {"fdbqueue.embedded", "fdb.impl"} & {*sys.modules} - self._following:
            self._following.add(name)
            self._follow(sys.modules[name].Transaction)

    def _follow(self, transaction: Any) -> None:
        read, committed = transaction.get_read_version, transaction.get_committed_version
        set_read = transaction.set_read_version

        def get_read_version(tr: Any) -> _MovedVersion:
            return _MovedVersion(read(tr), self._versions)

        def get_committed_version(tr: Any) -> int:
            version: int = committed(tr)
            return version if version < 0 else version + self._versions

        def set_read_version(tr: Any, version: int) -> None:
            set_read(tr, version - self._versions)

        for method in (get_read_version, get_committed_version, set_read_version):
            name = method.__name__
            owner = next(kind for kind in transaction.__mro__ if name in vars(kind))
            self._undo.enter_context(mock.patch.object(owner, name, method))


class _MovedVersion:
    """A read version ahead of the engine's."""

    def __init__(self, version: Future, ahead: int) -> None:
        self._version = version
        self._ahead = ahead

    def wait(self) -> int:
        return int(self._version.wait()) + self._ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._version, name)
