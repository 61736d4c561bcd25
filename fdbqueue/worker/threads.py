"""The threads of a worker: one of them runs all quick jobs, which overlap; others have one each.

Executors of `concurrent.futures` would fail once the main thread has ended.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from queue import SimpleQueue

_Job = TypeVar("_Job")

Pausing: TypeAlias = Generator[None, None, None]
"""A job that pauses where it would wait for the database."""

_QUICK = 0.0002  # seconds that a quick handler takes at most, on average
_UNKNOWN = 1.0  # seconds assumed for a handler at first
_WEIGHT = 0.1  # weight of the latest handler in the moving average
_LOOK = 0.1  # seconds from one look at whether the threads have ended to the next
_PATIENCE = 0.05  # seconds after which the other threads help the one that runs quick jobs
_HANDOVER = 0.005  # seconds that the caller of `put` waits at most until its jobs begin


def stack_of(ident: int) -> TracebackType | None:
    """Return where a thread is, as the traceback of an error that it would raise now.

    >>> stack_of(0) is None
    True
    """
    frame = sys._current_frames().get(ident)
    stack: TracebackType | None = None
    while frame is not None:
        stack = TracebackType(stack, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return stack


class Threads(Generic[_Job]):
    """The threads of a worker, which run its jobs.

    As a rule there is a thread for each job that is under way. But transactions with quick handlers
    mostly wait for the database, and waking another thread for each answer would cost more than the
    handlers. So while handlers take less than 0.2 milliseconds, one thread runs all jobs: at each
    pause of a job it continues with the one that has paused for longest, which probably has its
    answer. If a job keeps it busy for a twentieth of a second, all threads work until it ends.

    The caller puts jobs within a `with` block, whose end waits for all of them, and raises the
    first error. A further `with` block starts new threads.

    Args:
        n: The number of threads, and of jobs that are under way at a time.
        run: `run(job)` runs a job, and pauses where it would wait for the database.
        can_overlap: Whether one thread may run all jobs.

    Attributes:
        errors: The errors of jobs. The caller may add others.

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

    def __init__(self, n: int, run: Callable[[_Job], Pausing], can_overlap: bool) -> None:
        self._n = n
        self._run = run
        self._can_overlap = can_overlap and n > 1
        self._seconds = _UNKNOWN  # moving average of the duration of a handler
        self._ready: deque[_Job] = deque()
        self._paused: deque[Pausing] = deque()
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
        self._begun = threading.Condition(self._lock)
        """Notifies the thread that puts jobs."""
        self._threads: dict[int, threading.Thread] = {}
        """The threads by their identifiers; without those that were replaced."""
        self.errors: list[BaseException] = []

    def __enter__(self) -> Threads[_Job]:
        self._is_closed = False
        self._threads = {}
        try:
            for i in range(self._n):
                with self._lock:
                    self._start(is_first=i == 0)
        except BaseException:  # the system may have no room for another thread
            self._close()
            raise
        return self

    def _start(self, is_first: bool) -> None:
        """Start a thread. The caller has the lock, for which the thread waits first."""
        # Neither the end of a `with` block nor Python waits for one that was replaced.
        thread = threading.Thread(target=self._work, args=(is_first,), daemon=True)
        thread.start()
        assert thread.ident is not None
        self._threads[thread.ident] = thread

    def replace(self, ident: int) -> None:
        """Go on without a thread whose job hangs: start another one, and wait for it no more.

        Args:
            ident: The identifier of the thread. It ends as soon as its job returns.
        """
        with self._lock:
            if ident not in self._threads:
                return  # all were abandoned
            is_first = next(iter(self._threads)) == ident
            del self._threads[ident]
            self._under_way -= 1
            others, self._threads = self._threads, {}
            self._start(is_first)
            self._threads = {**self._threads, **others} if is_first else {**others, **self._threads}

    @property
    def first_waiting(self) -> _Job | None:
        """The first job that has not begun."""
        with self._lock:
            return self._ready[0] if self._ready else None

    def withdraw(self, keep: int = 0) -> list[_Job]:
        """Take back the jobs that have not begun, except for the first ones."""
        with self._lock:
            jobs = [*self._ready][keep:]
            self._ready = deque([*self._ready][:keep])
            return jobs

    def abandon(self) -> None:
        """Wait for no thread any more: each ends as soon as its job returns."""
        with self._lock:
            self._threads = {}

    def __exit__(self, *_: object) -> None:
        self._close()
        if self.errors:
            raise self.errors[0]

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._first.notify_all()
            self._others.notify_all()
        while alive := self._alive():
            for thread in alive:
                thread.join(_LOOK)  # it may be replaced meanwhile

    def _alive(self) -> list[threading.Thread]:
        with self._lock:
            return [thread for thread in self._threads.values() if thread.is_alive()]

    @property
    def overlap(self) -> bool:
        """True while one thread runs all jobs."""
        return self._can_overlap and not self._is_stuck and self._seconds < _QUICK

    def put(self, jobs: Iterable[_Job]) -> None:
        """Add jobs, which begin in this order; return once as many as have room have begun."""
        with self._lock:
            self._ready.extend(jobs)
            self._first.notify()
            if not self.overlap:
                self._others.notify(len(self._ready))
            elif not self._is_watched:
                self._others.notify()
            # Python would let this thread run on, for milliseconds, before the woken ones.
            self._begun.wait_for(lambda: not self._can_begin, _HANDOVER)

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
                self.errors.append(error)
            job = self._next(is_first, paused, has_ended=paused is None)

    def _next(
        self,
        is_first: bool,
        paused: Pausing | None = None,
        has_ended: bool = False,
    ) -> Pausing | None:
        """Return the next job to begin or to continue; wait for one; `None` at the end.

        Args:
            is_first: Whether this thread is the one that runs quick jobs.
            paused: The job that this thread has just run up to a pause.
            has_ended: Whether it has just ended a job.
        """
        with self._lock:
            if threading.get_ident() not in self._threads:
                return None  # another thread has replaced this one
            if has_ended:
                self._under_way -= 1
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
                    if not self._can_begin:
                        self._begun.notify()
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
