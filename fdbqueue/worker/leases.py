"""The leases of the jobs that a worker holds: extended while it lives, with what jobs report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fdbqueue.database.clock import Since
from fdbqueue.layout.values import Report
from fdbqueue.queue.base import BaseQueue, store_of
from fdbqueue.types import Database, Future
from fdbqueue.worker.held import HeldJob, HeldLease
from fdbqueue.worker.presence import LOOK, Presence
from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.worker")


class Leases:
    """The leases of one worker.

    Args:
        db: A database.
        queue: The queue.
        lease: The length of a lease in seconds.
        presence: The row of the worker, which is renewed together with leases.
        held: Returns the jobs that the worker holds.
    """

    def __init__(
        self,
        db: Database,
        queue: BaseQueue[Any],
        lease: float,
        presence: Presence,
        held: Callable[[], list[HeldJob]],
    ) -> None:
        self._db = db
        self._store = store_of(queue)
        self._lease = lease
        self._presence = presence
        self._held = held
        self._extended = Since()
        self._watch: Future | None = None  # fires when a job is cancelled
        self.woken = threading.Event()
        """Wakes the thread that looks after the time of jobs."""
        self._to_look = threading.Event()  # for cancelled jobs

    def extend(self, lease: HeldLease, report: Report) -> None:
        """Restart a lease, and store a report; raise `LeaseLost` if another may have the job."""
        since = Since()
        self._store.extend(self._db, (lease.claim, report), self._lease)
        lease.since = since

    @contextmanager
    def kept(
        self, look: Callable[[], float], failed: Callable[[BaseException], object]
    ) -> Generator[None]:
        """Extend the leases of all held jobs, three times per lease; tell those cancelled.

        A thread of its own calls `look`: a lease that waits for the database does not delay it.

        Args:
            look: Called at least once a second; returns the seconds until the next call.
            failed: Called with an error of the program's logging.
        """
        is_over = False
        self._extended = Since()

        def repeat(act: Callable[[], float], woken: threading.Event) -> None:
            left = 0.0
            while True:
                woken.wait(min(left, LOOK))
                if is_over:
                    return
                woken.clear()
                left = LOOK
                try:
                    left = act()
                except BaseException as error:
                    failed(error)

        repeated = (look, self.woken), (self._keep, self._to_look)
        threads = [threading.Thread(target=repeat, args=each, daemon=True) for each in repeated]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over = True
            for _, woken in repeated:
                woken.set()
            for thread in threads:
                thread.join()
            if self._watch is not None:
                self._watch.cancel()
            self._try("cannot be removed from the workers", self._presence.end)

    def _keep(self) -> float:
        """Renew what is due, and tell cancelled jobs; return the seconds until the next time."""
        self._renew()
        self._try("cannot look for cancelled jobs", self._tell_cancelled)
        return self._lease / 3 - self._extended.seconds()

    def _tell_cancelled(self, db: Database) -> None:
        """Tell the jobs that were cancelled; watch for others if a job has run for a while."""
        if self._watch is not None and not self._watch.is_ready():
            return
        now = time.perf_counter()
        running = [job for job in self._held() if job.context is not None]
        if not any(now - job.began > LOOK / 2 for job in running):
            return  # quick jobs are worth no watch
        self._watch, cancelled = self._store.watch_cancelled(db, [job.claim for job in running])
        self._watch.on_ready(lambda _: self._to_look.set())
        for job, is_cancelled in zip(running, cancelled):
            if is_cancelled and job.context is not None:
                job.context.cancelled.set("cancelled")

    def _renew(self) -> None:
        """Extend the leases of all held jobs if a third of them is over; renew the worker's row.

        In between, extend those of the jobs that have reported anything, to store that.
        """
        held, now = self._held(), Since()
        n = len(held)
        if not held or self._extended.seconds() >= 0.99 * self._lease / 3:
            self._extended = now
            extended = held
        else:
            extended = [job for job in held if job.report != job.reported]
        if not extended:
            if self._presence.is_due(n):
                write = partial(self._presence.write, jobs=n)
                self._try("cannot be listed among the workers", write)
            return
        renew = self._presence.renewal(n)
        extensions = [(job.claim, job.report) for job in extended]
        try:
            errors = self._store.extend_each(self._db, extensions, self._lease, renew)
        except Exception as error:
            message = "%s: the leases of %d jobs cannot be extended: %s"
            _log.error(message, self._presence.queue, len(extended), error)
            return
        for job, (_, report), lost in zip(extended, extensions, errors):
            if lost is None:  # else the job just ended, or its end will report the loss
                job.lease.since, job.reported = now, report

    def _try(self, failure: str, change: Callable[[Database], None]) -> None:
        """Make a change that the worker does not depend on; log an error of the database."""
        try:
            change(self._db)
        except Exception as error:
            _log.warning("%s: this worker %s: %s", self._presence.queue, failure, error)
