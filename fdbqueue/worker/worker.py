"""The worker, which claims jobs, runs a handler on each and acknowledges them."""

from __future__ import annotations

from contextlib import closing
from typing import Any, TypeVar

from fdbqueue.database.binding import is_database
from fdbqueue.queue.arguments import (
    validate_client_name,
    validate_lease,
    validate_number,
    validate_seconds,
)
from fdbqueue.queue.base import BaseQueue
from fdbqueue.types import Database, Duration
from fdbqueue.worker.claiming import Claiming, Pace, Source, Turns
from fdbqueue.worker.endings import Endings, WorkerReport
from fdbqueue.worker.invocation import AnyHandler, Claimable, FunctionHandler, Handler
from fdbqueue.worker.pool import Pool
from fdbqueue.worker.presence import Presence, serving_health, trouble_of_database
from fdbqueue.worker.running import Running
from fdbqueue.worker.shutdown import Shutdown, stopping_on_signals
from fdbqueue.worker.timeouts import Upkeep

_T = TypeVar("_T")


class Worker:
    """A worker, which runs a handler on the jobs of a queue until it is stopped.

    A handler is a function or coroutine function with one parameter, the item (the task, for a task
    queue). If it returns, its job is acknowledged, together with others. If it raises an exception,
    the job has failed: it is retried later or becomes a dead letter (`nack`). Neither a failing job
    nor an unreachable database stops a worker. Leases are extended while the process lives. After a
    crash a job may be repeated: it runs at least once.

    A handler whose first parameter is named `tr` is the body of a transaction. Its writes and the
    end of the job are one transaction and take effect exactly once, however often the job is
    started. The body may run several times and must finish within five seconds; a slower one has
    failed. The job is acknowledged before the body runs, so the body can push an item with the same
    unique key.

    Quick jobs are claimed ahead, so that no thread waits for the database: as many as run in a
    twentieth of a second, and none while jobs take longer than that on average. If the next job has
    waited for a tenth of a second, all waiting jobs go back without counting an attempt, and
    another worker can take them. A worker's death costs every job it held one attempt, started or
    not. So jobs that were returned before, or have a single attempt, are not claimed ahead. Nor
    does a worker that has met a rate claim ahead, because each claim counts as a start until the
    job goes back.

    `stop`, SIGTERM or SIGINT shut the worker down: jobs that have not started return at once, and
    running ones find `Context.cancelled` set. If they raise an error from then on, or still run
    after `grace`, they return without counting an attempt. A second signal ends the process
    immediately.

    A job whose lease ran out, because its worker died or was stopped, next runs alone in its
    worker: if it kills its worker again, no other job loses an attempt. The worker claims nothing
    until it ends. While other jobs run, it goes back so that an idle worker can take it, and the
    worker waits for them to end, at first for a second. If they take longer, the worker goes on
    with other jobs, and tries again after twice that time, for twice as long. So run one worker in
    a process.

    Args:
        db: A database.
        queue: A `PriorityQueue`, `TaskQueue` or `Queue`.
        handler: The function to call for each job.
        concurrency: The number of jobs that run at a time, from 1, each in a thread.
        lease: Seconds until other workers may take over the jobs of a worker that died.
        prefetch: The maximum number of jobs to claim ahead while jobs are quick; 0 for none.
        store_results: Store the handler's result, a JSON value of up to 90,000 bytes, with each
            done item; `result` of the queue returns it. With any other result, the job becomes a
            dead letter at once. Needs a queue that keeps done items (`configure(db, keep=...)`); in
            any other one, nothing is stored.
        name: The name that `workers` and the claims of this queue object show; `None` for the
            host and the process id. Printable text of up to 255 bytes.
        timeout: The time after which a job is told to stop: a coroutine is cancelled, a
            function finds `Context.cancelled` set. `None` for no limit. A handler with `tr` has
            five seconds.
        grace: The time after which a job that was told to stop, and goes on, has failed: the
            attempt keeps its stack, and another thread does the next job. Python cannot end the
            thread that hangs. After `stop`, the time that running jobs have to end.

    Raises:
        TypeError: An argument has the wrong type, or the handler cannot be called for a job.
        ValueError: `concurrency`, `lease` or `prefetch` is out of range.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, [1, 2, 3])
        >>> def count(tr, item):
        ...     tr.add(b"sum", item.value.to_bytes(8, "little"))
        >>> Worker(db, jobs, count).run(drain=True)
        WorkerReport(done=3, failed=0, lost=0)
        >>> db[b"sum"][0]
        6
    """

    def __init__(
        self,
        db: Database,
        queue: Claimable[_T] | Turns,
        handler: AnyHandler[_T] | Handler,
        *,
        concurrency: int = 1,
        lease: Duration = 30,
        prefetch: int = 100,
        store_results: bool = False,
        name: str | None = None,
        timeout: Duration | None = None,
        grace: Duration | Shutdown = 10,
    ) -> None:
        if not is_database(db):
            raise TypeError(f"a worker needs a database, not {db!r}")
        turns = queue if isinstance(queue, Turns) else _turns_of(queue, store_results)
        concurrency = validate_number(concurrency, "concurrency", 1)
        seconds = validate_lease(lease)
        limit = None if timeout is None else validate_lease(timeout, "timeout")
        client = None if name is None else validate_client_name(name)
        if not isinstance(grace, Shutdown):
            grace = Shutdown(validate_seconds("grace", grace))
        self._db, self._shutdown = db, grace
        self._handler = handler if isinstance(handler, Handler) else FunctionHandler(handler)
        self._pool = Pool(Pace(concurrency, validate_number(prefetch, "prefetch", 0)))
        shared = db, self._handler, self._pool, grace
        self._endings = endings = Endings(*shared)
        self._running = Running(*shared, endings)
        self._claiming = Claiming(*shared, endings, turns, seconds, client)
        at_most = {each.name: each.at_most or concurrency for each in turns.sources}
        presence = Presence(name, at_most, concurrency, seconds)
        self._upkeep = Upkeep(*shared, endings, presence, seconds, limit)
        self.report = endings.report

    def stop(self) -> None:
        """Start no other jobs, and give the running ones the grace period to end.

        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> worker = Worker(db, fdbqueue.PriorityQueue.named(db, "jobs"), print)
        >>> worker.stop()
        >>> worker.run()
        WorkerReport(done=0, failed=0, lost=0)
        """
        self._shutdown.begin()

    def run(self, *, drain: bool = False, health: int | str | None = None) -> WorkerReport:
        """Run jobs until `stop` is called.

        In the main thread, SIGTERM and SIGINT stop the worker.

        Args:
            drain: Whether to stop also once no job can be claimed and none is running.
            health: The port, of the loopback interface, or the text `"HOST:PORT"`, on which to
                answer `/live` and, while the worker claims jobs and the database answers, `/ready`.

        Returns:
            The numbers of jobs that succeeded, failed, or lost their lease.

        Raises:
            OSError: The process cannot listen on the address of `health`.
        """
        pool, shutdown = self._pool, self._shutdown
        shutdown.errors.clear()
        with (
            serving_health(health, self._trouble),
            closing(self._handler.coroutines),
            stopping_on_signals(self.stop, "claimed jobs", lambda: len(pool), shutdown.kill),
            self._upkeep.kept(),
            self._endings.acknowledging(),
        ):
            try:
                with self._pool.working(self._running.run):
                    try:
                        self._claiming.run(drain=drain)
                    except BaseException:
                        self.stop()
                        raise
                    finally:
                        if shutdown.stop.is_set:
                            self._upkeep.woken.set()
                            self._endings.release(self._pool.withdraw())
            finally:
                pool.wait()
        if shutdown.errors:
            raise shutdown.errors[0]
        return self.report

    def _trouble(self) -> str | None:
        """Return why the worker cannot claim jobs, or `None`."""
        if self._shutdown.stop.is_set:
            return "the worker is about to stop"
        return self._claiming.trouble() or trouble_of_database(self._db)


def _turns_of(queue: Any, store_results: bool) -> Turns:
    kind: Any = BaseQueue
    if not isinstance(queue, kind):
        raise TypeError(f"a worker needs a queue, not {queue!r}")
    return Turns([Source(queue, stores_results=store_results)])
