"""Work beside the jobs of a worker: extend leases, and end jobs that take too long."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fdbqueue.database.clock import Since
from fdbqueue.errors import HandlerTooSlow, TimedOut
from fdbqueue.types import Database, Future
from fdbqueue.worker.pool import HeldJob, Part, by_source
from fdbqueue.worker.presence import LOOK, Presence
from fdbqueue.worker.telemetry import Log

if TYPE_CHECKING:
    from fdbqueue.worker.claiming import Source
    from fdbqueue.worker.endings import Endings

_log = Log("fdbqueue.worker")

_AGAIN = 0.1  # seconds between looks at the last jobs of a worker that shuts down

_hung: list[int] = []
"""The threads whose jobs were given up."""


def has_hung() -> bool:
    """Return whether a job of this process was given up."""
    return bool(_hung)


def stack_of(ident: int) -> TracebackType | None:
    """Return the stack of a thread as a traceback, or `None`."""
    frame = sys._current_frames().get(ident)
    stack: TracebackType | None = None
    while frame is not None:
        stack = TracebackType(stack, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return stack


@dataclass(eq=False)
class Upkeep(Part):
    """Keeps the claims of a worker, and ends timed-out jobs."""

    endings: Endings
    presence: Presence
    lease: float
    timeout: float | None
    woken: threading.Event = field(default_factory=threading.Event)
    _to_look: threading.Event = field(default_factory=threading.Event)  # for cancelled jobs
    _watches: dict[Source, Future] = field(default_factory=dict[Any, Future])
    """For each queue, a watch that fires when one of its jobs is cancelled."""
    _extended: Since = field(init=False)

    @contextmanager
    def kept(self) -> Generator[None]:
        """Extend all held leases, three times per lease; tell cancelled jobs.

        A separate thread times jobs, so that a slow database does not delay it.
        """
        is_over = False
        self._extended = Since()

        def repeat(act: Callable[[], float], woken: threading.Event) -> None:
            left = self.lease / 3
            while True:
                woken.wait(min(left, LOOK))
                if is_over:
                    return
                woken.clear()
                left = LOOK
                try:
                    left = act()
                except BaseException as error:
                    self.shutdown.fail(error)  # of the program's logging

        looking = threading.Thread(target=repeat, args=(self._look, self.woken), daemon=True)
        keeping = threading.Thread(target=repeat, args=(self._keep, self._to_look), daemon=True)
        looking.start()
        keeping.start()
        try:
            yield
        finally:
            is_over = True
            self.woken.set()
            self._to_look.set()
            looking.join()
            keeping.join()
            for watch in self._watches.values():
                watch.cancel()
            self._try("cannot be removed from the workers", self.presence.end)

    def _look(self) -> float:
        """Stop timed-out jobs; return the seconds to the next time-out."""
        grace, left = self.shutdown.grace, math.inf
        for job in self.pool.all():
            if job.call is None:
                continue
            over, late = job.lateness(job.call.timeout or self.timeout)
            if over >= 0:
                over = job.tell(late)  # perhaps late: this process may have been stopped
            if over >= grace:
                self._give_up(job, late)
            else:
                left = min(left, -over if over < 0 else grace - over)
        return min(left, self._shut_down())

    def _shut_down(self) -> float:
        """Tell jobs of a shutdown, later give them back; return when to look again."""
        left = self.shutdown.seconds_left
        if left == math.inf:
            return left
        begun = [job for job in self.pool.all() if job.tell_shutdown()]
        if left > 0:
            return left
        for job in begun:
            if job.late is not None:  # its own time is over, too
                self._give_up(job, job.late)
        interrupted = [job for job in begun if job.late is None]
        if late := [job for job in interrupted if self._takes_from_handler(job)]:
            self.endings.interrupted(late, "it still runs")
            self.pool.abandon()
        return _AGAIN

    def _takes_from_handler(self, job: HeldJob) -> bool:
        """Give up on the handler of a job; return false if it has just returned."""
        with self.pool.changed:
            job.is_given_up = not job.is_ending
        if job.is_given_up:
            _hung.append(job.thread)
            if job.future is not None:
                job.future.cancel()
        return job.is_given_up

    def _give_up(self, job: HeldJob, late: TimedOut | HandlerTooSlow) -> None:
        if self._takes_from_handler(job):
            failure = late.with_traceback(stack_of(job.loop_thread or job.thread))
            self.pool.replace(job.thread)
            self.endings.failed(job, failure)

    def _keep(self) -> float:
        self._renew()
        self._try("cannot renew its schedules", lambda _: self.handler.renew())
        running = [job for job in self.pool.all() if job.context is not None]
        for source, jobs in by_source(running).items():
            self._try("cannot look for cancelled jobs", partial(self._tell_cancelled, source, jobs))
        return self.lease / 3 - self._extended.seconds()

    def _tell_cancelled(self, source: Source, running: list[HeldJob], db: Database) -> None:
        """Tell cancelled jobs; watch for others if a job has run for a while."""
        watch = self._watches.get(source)
        if watch is not None and not watch.is_ready():
            return
        now = time.perf_counter()
        if not any(now - job.began > LOOK / 2 for job in running):
            return  # quick jobs are worth no watch
        claims = [job.claim for job in running]
        watch, cancelled = source.store.watch_cancelled(db, claims)
        watch.on_ready(lambda _: self._to_look.set())
        self._watches[source] = watch
        for job, is_cancelled in zip(running, cancelled):
            if is_cancelled and job.context is not None and not job.is_ending:
                job.context.cancelled.set("cancelled")

    def _renew(self) -> None:
        """Extend leases after a third of their time, or to store reports; renew the row."""
        held, now = self.pool.all(), Since()
        if not held or self._extended.seconds() >= 0.99 * self.lease / 3:
            self._extended = now
            extended = held
        else:
            extended = [job for job in held if job.lease.report != job.reported]
        for source, jobs in by_source(extended).items():
            self._extend_each(source, jobs, now)
        if self.presence.is_due(len(held)):
            write = partial(self.presence.write, jobs=len(held))
            self._try("cannot be listed among the workers", write)

    def _extend_each(self, source: Source, jobs: list[HeldJob], now: Since) -> None:
        extensions = [job.lease.extension for job in jobs]
        try:
            errors = source.store.extend_each(self.db, extensions)
        except Exception as error:
            message = "%s: the leases of %d jobs cannot be extended: %s"
            _log.error(message, source.name, len(jobs), error)
            return
        for job, (_, report, _), lost in zip(jobs, extensions, errors):
            if lost is None:
                job.lease.since, job.reported = now, report
            elif job.context is not None and not job.is_ending:  # its end will report the loss
                job.context.cancelled.set("lost")

    def _try(self, failure: str, change: Callable[[Database], object]) -> None:
        try:
            change(self.db)
        except Exception as error:
            queues = ", ".join(self.presence.queues)
            _log.warning("%s: this worker %s: %s", queues, failure, error)
