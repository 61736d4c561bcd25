"""The worker: claims jobs, runs a handler on each, and acknowledges them."""

from __future__ import annotations

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
from fdbqueue.worker.presence import Presence, serving_health
from fdbqueue.worker.running import Running
from fdbqueue.worker.shutdown import Shutdown, stopping_on_signals
from fdbqueue.worker.timeouts import Upkeep

_T = TypeVar("_T")


class Worker:
    """Run a handler on the jobs of a queue until stopped.

    A handler is a function or coroutine function. It takes the item or, if its first parameter is
    annotated `Context`, the context. If it raises an exception, the job is retried later or becomes
    a dead letter. After a crash, a job may run again.

    A `handler(tr, item)`, whose first parameter has this name, is the body of the transaction that
    ends the job. Its writes take effect exactly once. The body may run several times, and fails if
    it takes longer than five seconds. It can push an item with the unique key of its own job.

    While jobs are quick, the worker claims more of them ahead, on their first attempt only. If a
    worker dies, each job that it held has used an attempt, started or not, and next runs alone in
    its worker. So run one worker in a process. See `docs/explanation/leases.md`.

    After `stop`, SIGTERM or SIGINT, jobs that have not started go back, and running jobs find
    `Context.cancelled` set. One that raises an error, or exceeds `grace`, goes back without
    counting an attempt. A second signal ends the process at once.

    Args:
        db: A database.
        queue: A `PriorityQueue`, `TaskQueue` or `Queue`.
        handler: The function to call for each job.
        concurrency: The number of jobs that run at a time, from 1, each in a thread.
        lease: The time until other workers may take over the jobs of a worker that died.
        prefetch: The maximum number of jobs to claim ahead.
        store_results: Whether to store the handler's result, if the queue keeps done items. A
            result that is not JSON of up to 90,000 bytes makes the job a dead letter.
        name: The name that `workers` and claims show, text of up to 255 bytes; `None` for the host
            and the process id.
        timeout: The time after which a job is told to stop: a coroutine is cancelled, a function
            finds `Context.cancelled` set. It does not apply to a handler with `tr`.
        grace: The time that a job has to end once it is told to stop. After a time-out, its attempt
            then fails with its stack, and another thread runs the next job.

    Raises:
        TypeError: The handler cannot be called for a job.

    Example:
        >>> import fdbqueue
        >>> db = fdbqueue.open("memory:")
        >>> jobs = fdbqueue.PriorityQueue.named(db, "jobs")
        >>> _ = jobs.push_many(db, [1, 2, 3])
        >>> def count(tr, item):
        ...     tr.add(b"sum", item.value.to_bytes(8, "little"))
        >>> Worker(db, jobs, count).run(drain=True)
        WorkerReport(done=3, failed=0, lost=0)
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
        self._shutdown = grace
        self._handler = handler if isinstance(handler, Handler) else FunctionHandler(handler)
        self._pool = Pool(Pace(concurrency, validate_number(prefetch, "prefetch", 0)))
        shared = db, self._handler, self._pool, grace
        self._endings = endings = Endings(*shared)
        self._running = Running(*shared, endings)
        self._claiming = Claiming(*shared, endings, turns, seconds, client)
        at_most = {each.name: each.at_most or concurrency for each in turns.sources}
        presence = Presence(name, at_most, concurrency, seconds, turns.check_names)
        self._upkeep = Upkeep(*shared, endings, presence, seconds, limit)
        self.report = endings.report

    def stop(self) -> None:
        """Start no other jobs, and give the running ones the grace period to end."""
        self._shutdown.begin()

    def run(self, *, drain: bool = False, health: int | str | None = None) -> WorkerReport:
        """Run jobs until `stop` is called, or until SIGTERM or SIGINT in the main thread.

        Args:
            drain: Whether to stop also once no job can be claimed and none is running.
            health: A port of the loopback interface, or `"HOST:PORT"`, on which to answer `/live`
                and, while the worker can claim jobs, `/ready`.

        Raises:
            OSError: The process cannot listen on the address of `health`.
        """
        pool, shutdown = self._pool, self._shutdown
        shutdown.errors.clear()
        with (
            serving_health(health, self._claiming.trouble),
            self._handler.living(),
            stopping_on_signals(self.stop, "claimed jobs", lambda: len(pool.held), shutdown.kill),
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


def _turns_of(queue: Any, store_results: bool) -> Turns:
    kind: Any = BaseQueue
    if not isinstance(queue, kind):
        raise TypeError(f"a worker needs a queue, not {queue!r}")
    return Turns([Source(queue, stores_results=store_results)])
