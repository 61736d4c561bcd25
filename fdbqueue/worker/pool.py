"""The threads of a worker: one of them runs all quick jobs, which overlap; others have one each.

Executors of `concurrent.futures` would fail once the main thread has ended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from queue import SimpleQueue

_Job = TypeVar("_Job")

Pausing: TypeAlias = Generator[None, None, None]
"""A job that pauses where it would wait for a commit."""

UNKNOWN = 1.0
"""The seconds that a job may take of which nothing is known."""

_QUICK = 0.0002  # seconds that a quick job keeps its thread busy at most, on average
_WEIGHT = 0.1  # weight of the latest job in the moving average
_LOOK = 0.1  # seconds from one look at whether the threads have ended to the next
_HANDOVER = 0.005  # seconds that the caller of `put` waits at most until its jobs begin


class Pool(Generic[_Job]):
    """Threads that run jobs.

    As a rule there is a thread for each job that is under way. But quick transactions of the
    embedded engine mostly wait for the disk. Waking another thread for each of them would cost more
    than the transaction, and commits that one thread has begun share a sync. So while jobs keep
    their thread busy for less than 0.2 milliseconds, one thread runs all of them: at each pause of
    a job it begins another one, or continues with the one that has paused for longest.

    Args:
        n: The number of threads, and of jobs that are under way at a time.

    Example:
        >>> done = []
        >>> def run(number):
        ...     yield
        ...     done.append(number)
        >>> pool = Pool(4)
        >>> with pool.working(run):
        ...     pool.put(range(10))
        >>> sorted(done) == list(range(10))
        True
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._seconds = UNKNOWN  # moving average of the time that a job keeps its thread busy
        self._ready: deque[_Job] = deque()
        self._paused: deque[Pausing] = deque()
        self._under_way = 0  # jobs
        self._working = 0  # threads
        self._moves = self._moves_seen = 0
        self._is_closed = False
        # Python leaves the `with` statement of this lock in one step, unlike that of a condition.
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._begun = threading.Condition(self._lock)
        self._threads: dict[int, threading.Thread] = {}
        """The threads by their identifiers; without those that were replaced."""

    @contextmanager
    def working(self, run: Callable[[_Job], Pausing]) -> Generator[None]:
        """Start threads; at the end, wait for all jobs.

        Args:
            run: `run(job)` runs a job, and pauses where it would wait for a commit. It raises
                nothing.
        """
        self._run = run
        self._is_closed = False
        self._threads = {}
        try:
            for _ in range(self._n):
                with self._lock:
                    self._start()
            yield
        finally:
            self._close()

    def _start(self) -> None:
        """Start a thread. The caller has the lock, for which the thread waits first."""
        # Neither the end of a `with` block nor Python waits for one that was replaced.
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        assert thread.ident is not None
        self._threads[thread.ident] = thread
        self._working += 1  # until it asks for its first job, as if it had just ended another one
        self._under_way += 1

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._wanted.notify_all()
        while alive := self._alive():
            for thread in alive:
                thread.join(_LOOK)  # it may be replaced meanwhile

    def _alive(self) -> list[threading.Thread]:
        with self._lock:
            return [thread for thread in self._threads.values() if thread.is_alive()]

    def replace(self, ident: int) -> None:
        """Go on without a thread whose job hangs: start another one, and wait for it no more.

        Args:
            ident: The identifier of the thread. It ends as soon as its job returns.
        """
        with self._lock:
            if self._threads.pop(ident, None) is not None:  # or else all were abandoned
                self._working -= 1
                self._under_way -= 1
                self._start()

    def abandon(self) -> None:
        """Wait for no thread any more: each ends as soon as its job returns."""
        with self._lock:
            self._threads = {}

    @property
    def first_waiting(self) -> _Job | None:
        """The first job that has not begun."""
        with self._lock:
            return self._ready[0] if self._ready else None

    def withdraw(self, keep: int = 0) -> list[_Job]:
        """Take back the jobs that have not begun, except for the first ones."""
        with self._lock:
            jobs = [*self._ready]
            self._ready = deque(jobs[:keep])
            return jobs[keep:]

    def put(self, jobs: Iterable[_Job]) -> None:
        """Add jobs, which begin in this order; return when every free thread has a job."""
        with self._lock:
            self._ready.extend(jobs)
            self._wanted.notify(1 if self.overlap else len(self._ready))
            # Python would let this thread run on, for milliseconds, before the woken ones.
            self._begun.wait_for(lambda: not self._can_begin, _HANDOVER)

    @property
    def overlap(self) -> bool:
        """True while one thread runs all jobs."""
        return self._seconds < _QUICK and not self._is_closed

    def note(self, seconds: float) -> None:
        """Note how long a job has just kept its thread busy, or may keep it from now on."""
        with self._lock:
            self._note(self._seconds + _WEIGHT * (seconds - self._seconds))

    def look(self) -> None:
        """Let all threads work if a job keeps the only one busy since the last look."""
        with self._lock:
            if self._working and self._moves == self._moves_seen:
                self._note(UNKNOWN)
            self._moves_seen = self._moves

    def _note(self, seconds: float) -> None:
        overlapped = self.overlap
        self._seconds = seconds
        if overlapped and not self.overlap:
            self._wanted.notify_all()

    def _work(self) -> None:
        call = self._next(None)
        while call is not None:
            is_paused = next(call, True) is None
            call = self._next(call if is_paused else None)

    def _next(self, paused: Pausing | None) -> Pausing | None:
        """Return the next job to begin or to continue; wait for one; `None` at the end.

        Args:
            paused: The job that this thread has run up to a pause; `None` if it has ended one.
        """
        with self._lock:
            if threading.get_ident() not in self._threads:
                return None  # another thread has replaced this one
            self._working -= 1
            self._moves += 1
            if paused is None:
                self._under_way -= 1
            else:
                self._paused.append(paused)
            while (not (begins := self._can_begin) and not self._paused) or self._is_enough:
                if self._is_closed and not (self._ready or self._paused):
                    self._wanted.notify_all()
                    return None
                self._wanted.wait()
            self._working += 1
            if not begins:
                return self._paused.popleft()
            self._under_way += 1
            job = self._ready.popleft()
            if not self._can_begin:
                self._begun.notify()
            if self._paused and not self._is_enough:
                self._wanted.notify()
            return self._run(job)

    @property
    def _can_begin(self) -> bool:
        return bool(self._ready) and self._under_way < self._n

    @property
    def _is_enough(self) -> bool:
        """True if no other thread is to work."""
        return self._working > 0 and self.overlap


class Background:
    """A thread that calls functions, one after the other, until the end of a `with` block.

    The end waits for all of them.

    Args:
        failed: Called with the error of a function.

    Example:
        >>> done = []
        >>> with Background(print) as background:
        ...     background.call(lambda: done.append(1))
        >>> done
        [1]
    """

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        # Imported late, because a program may have a module of this name, as `recipes/` does.
        from queue import SimpleQueue

        self._failed = failed
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def __enter__(self) -> Background:
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(None)
        self._thread.join()

    def call(self, function: Callable[[], object]) -> None:
        """Let the thread call a function."""
        self._calls.put(function)

    def _work(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                function()
            except BaseException as error:
                self._failed(error)
