"""The threads of a worker: one of them runs all quick jobs, which overlap; others have one each."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent import futures
from types import TracebackType
from typing import Generic, TypeVar

__all__ = ["Threads"]

_Job = TypeVar("_Job")

_QUICK = 0.0002  # seconds that a quick handler takes at most, on average
_UNKNOWN = 1.0  # seconds assumed for a handler at first
_WEIGHT = 0.1  # weight of the latest handler in the moving average
_PATIENCE = 0.05  # seconds after which the other threads help the one that runs quick jobs


class Threads(Generic[_Job]):
    """The threads of a worker, which run its jobs.

    As a rule there is a thread for each job that is under way. But transactions with quick handlers
    mostly wait for the database, and waking another thread for each answer would cost more than the
    handlers. So while handlers take less than 0.2 milliseconds, one thread runs all jobs: at each
    pause of a job it continues with the one that has paused for longest, which probably has its
    answer. If a job keeps it busy for a twentieth of a second, all threads work until it ends.

    The caller puts jobs within a `with` block, whose end waits for all of them.

    Args:
        n: The number of threads, and of jobs that are under way at a time.
        run: `run(job)` runs a job, and pauses where it would wait for the database.
        can_overlap: Whether one thread may run all jobs.

    Example:
        >>> done = []
        >>> def run(number):
        ...     yield
        ...     done.append(number)
        >>> with Threads(4, run, can_overlap=True) as threads:
        ...     threads.put(range(10))
        >>> sorted(done) == list(range(10))
        True
    """

    def __init__(
        self, n: int, run: Callable[[_Job], Generator[None, None, None]], can_overlap: bool
    ) -> None:
        self._n = n
        self._run = run
        self._can_overlap = can_overlap and n > 1
        self._seconds = _UNKNOWN  # moving average of the duration of a handler
        self._ready: deque[_Job] = deque()
        self._paused: deque[Generator[None, None, None]] = deque()
        self._under_way = 0
        self._continued_at = 0.0
        self._is_watched = False
        self._is_stuck = False
        self._is_closed = False
        # Python leaves the `with` statement of this lock in one step, unlike that of a condition.
        self._lock = threading.Lock()
        self._first = threading.Condition(self._lock)
        """Notifies the thread that runs quick jobs."""
        self._others = threading.Condition(self._lock)
        """Notifies the other threads."""
        self._pool = futures.ThreadPoolExecutor(n)
        self._errors: list[BaseException] = []

    def __enter__(self) -> Threads[_Job]:
        for i in range(self._n):
            self._pool.submit(self._work, i == 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_closed = True
            self._first.notify_all()
            self._others.notify_all()
        self._pool.shutdown()
        if self._errors:
            raise self._errors[0]

    @property
    def overlap(self) -> bool:
        """True while one thread runs all jobs."""
        return self._can_overlap and not self._is_stuck and self._seconds < _QUICK

    def put(self, jobs: Iterable[_Job]) -> None:
        """Add jobs, which begin in this order."""
        with self._lock:
            self._ready.extend(jobs)
            n = len(self._ready)
            self._first.notify()
            self._others.notify(not self._is_watched if self.overlap else n)

    def note(self, seconds: float) -> None:
        """Note how long a job has just kept its thread busy."""
        with self._lock:
            overlapped = self.overlap
            self._seconds += _WEIGHT * (seconds - self._seconds)
            if overlapped and not self.overlap:
                self._others.notify_all()

    def _work(self, is_first: bool) -> None:
        job = self._next(is_first)
        while job is not None:
            paused = None
            try:
                for _ in job:
                    paused = job
                    break
            except BaseException as error:  # no job raises one unless the program's logging does
                self._errors.append(error)
            job = self._next(is_first, paused, has_ended=paused is None)

    def _next(
        self,
        is_first: bool,
        paused: Generator[None, None, None] | None = None,
        has_ended: bool = False,
    ) -> Generator[None, None, None] | None:
        """Return the next job to begin or to continue; wait for one; `None` at the end.

        Args:
            is_first: Whether this thread is the one that runs quick jobs.
            paused: The job that this thread has just run up to a pause.
            has_ended: Whether it has just ended a job.
        """
        with self._lock:
            self._under_way -= has_ended
            if is_first:
                self._is_stuck = False
            if paused is not None:
                self._paused.append(paused)
                if self.overlap:
                    self._first.notify()  # handlers may just have become quick
            while True:
                is_wanted = is_first or self._is_closed or not self.overlap
                if is_wanted and self._can_begin:
                    self._under_way += 1
                    job = self._run(self._ready.popleft())
                elif is_wanted and self._paused:
                    job = self._paused.popleft()
                elif self._is_closed and not self._ready:
                    return None
                else:
                    self._wait(is_first, is_wanted)
                    continue
                self._continued_at = time.monotonic()
                return job

    @property
    def _can_begin(self) -> bool:
        return bool(self._ready) and self._under_way < self._n

    def _wait(self, is_first: bool, is_wanted: bool) -> None:
        """Wait for a job; help the first thread if one has kept it busy for too long."""
        if is_first:
            self._first.wait()
        elif is_wanted or self._is_watched or not (self._ready or self._paused):
            self._others.wait()
        else:
            self._is_watched = True
            self._others.wait(_PATIENCE)
            self._is_watched = False
            has_work = self._paused or self._can_begin
            if has_work and time.monotonic() - self._continued_at > _PATIENCE:
                self._is_stuck = True
                self._others.notify_all()
