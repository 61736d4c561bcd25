"""Run the jobs of an app in a test."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fdbqueue.database.opening import open as open_database
from fdbqueue.database.retrying import read
from fdbqueue.errors import FdbqueueError
from fdbqueue.jobs.app import App, bound_to, known_queues, worker_of
from fdbqueue.jobs.handle import Handle
from fdbqueue.jobs.handler import JobHandler
from fdbqueue.jobs.job import Job
from fdbqueue.queue.arguments import validate_number
from fdbqueue.queue.base import store_of
from fdbqueue.queue.steps import JobCancelled, Suspended
from fdbqueue.testing.clock import Clock
from fdbqueue.types import ENDED, Database, Item, ItemInfo, stored_job
from fdbqueue.worker.context import Context
from fdbqueue.worker.invocation import Invocation, outcome_of
from fdbqueue.worker.outcomes import Discard, Outcome, Snooze
from fdbqueue.worker.worker import Worker

if TYPE_CHECKING:
    from queue import SimpleQueue

End: TypeAlias = Literal[
    "done",
    "failed",
    "snoozed",
    "suspended",
    "discarded",
    "cancelled",
    "dead",
    "lost",
    "unknown",
]
"""How an attempt ended: `failed` if another one follows, `unknown` if the app lacks the job."""


@dataclass
class Attempt:
    """An attempt at a job.

    Attributes:
        job: The name of the job, or an empty text.
        number: The number of the attempt, from 1; 0 if the app does not know the job.
        error: The exception that ended it, or `None`.
    """

    job: str
    id: str
    number: int
    outcome: End = "lost"
    error: BaseException | None = None


class Drained(list[Attempt]):
    """The attempts of a `drain`, in the order in which they began."""

    def of(self, job: Job[Any, Any, Any, Any] | Handle[Any]) -> Drained:
        """Return the attempts at all pushes of a job, or at the job of a handle."""
        if isinstance(job, Handle):
            return Drained(attempt for attempt in self if attempt.id == job.id)
        return Drained(attempt for attempt in self if attempt.job == job.name)

    def outcomes(self, of: Job[Any, Any, Any, Any] | Handle[Any] | None = None) -> list[End]:
        """Return the outcomes of the attempts; see `of`."""
        return [attempt.outcome for attempt in (self if of is None else self.of(of))]


class DrainLimit(FdbqueueError, AssertionError):
    """More attempts than the `limit` of a drain."""

    def __init__(self, limit: int, drained: Drained) -> None:
        self.limit = limit
        self.drained = drained
        first = ", ".join(f"{each.job} {each.outcome}" for each in drained[:3])
        super().__init__(
            f"more than {limit:,} attempts: {first} and so on; a job may push itself or come back "
            "for ever; without `advance` a drain runs only what is due now, and `limit` allows more"
        )


@contextmanager
def bound_app(app: App, database: Database | None = None) -> Generator[App]:
    """Bind an app to a database, by default a new one in memory, until the end of a `with` block.

    Example:
        >>> app = App()
        >>> with bound_app(app) as bound:
        ...     bound.db[b"k"] = b"v"
    """
    if database is None:
        with open_database("memory:") as db, bound_to(app, db):
            yield app
    else:
        with bound_to(app, database):
            yield app


def drain(app: App, *queues: str, advance: Clock | None = None, limit: int = 1_000) -> Drained:
    """Run the due jobs, and the jobs that they push, with workers as in production.

    Jobs run one at a time, plain functions in the thread that calls `drain`. Delayed jobs and
    retries run once they are due: move the clock, and drain again.

    Args:
        app: The app.
        queues: The names of the queues; by default the queues that the app declares or has used.
        advance: A clock to move to each time at which the next job is due, until none waits.
        limit: The maximum number of attempts.

    Raises:
        DrainLimit: There were more attempts.

    Example:
        >>> from fdbqueue.jobs import Retry
        >>> app = App("memory:")
        >>> @app.job(retry=Retry(attempts=3, first="1h"))
        ... def fail():
        ...     raise OSError("no answer")
        >>> handle = fail.push()
        >>> drain(app).outcomes()
        ['failed']
        >>> with Clock() as clock:
        ...     drain(app, advance=clock).outcomes()
        ['failed', 'dead']
    """
    limit = validate_number(limit, "limit", 1)
    return _Drain(app, list(queues) or known_queues(app), limit).run(advance)


class _Drain:
    def __init__(self, app: App, queues: list[str], limit: int) -> None:
        self.app = app
        self.drained = Drained()
        self._queues = queues
        self._limit = limit

    def run(self, clock: Clock | None) -> Drained:
        quiet = 0  # the queues that were empty since the last attempt
        for queue in cycle(self._queues):
            before = len(self.drained)
            self._work(queue)
            # After attempts, the looks at their items may have made another one ready.
            quiet = 0 if len(self.drained) > before else quiet + 1
            if quiet == len(self._queues):
                left = min(map(self._seconds_left, self._queues))
                if clock is None or left == math.inf:
                    break
                clock.advance(left)
                quiet = 0
        return self.drained

    def _seconds_left(self, queue: str) -> float:
        """Return the seconds until a job is due or a lease ends."""
        sweeper = store_of(self.app.queue(queue)).sweeper
        return read(self.app.db, sweeper.seconds_left)

    def _work(self, queue: str) -> None:
        thread = _TestThread()
        worker = worker_of(self.app, [queue], partial(_Handler, self, queue, thread), concurrency=1)
        self.stop = worker.stop
        began = len(self.drained)
        try:
            thread.serve(worker)
        finally:
            attempts = self.drained[began:]
            last = {attempt.id: attempt for attempt in attempts}
            for attempt in attempts:
                info = self.app.queue(queue).get(self.app.db, attempt.id)
                attempt.outcome = _settled(attempt.outcome, last[attempt.id] is attempt, info)
        if len(self.drained) > self._limit:
            raise DrainLimit(self._limit, self.drained)

    def is_left(self, queue: str, attempt: Attempt) -> bool:
        info = self.app.queue(queue).get(self.app.db, attempt.id)
        return info is not None and not info.cancelling

    def begin(self, attempt: Attempt) -> None:
        self.drained.append(attempt)
        if len(self.drained) > self._limit:
            self.stop()


def _settled(ended: End, is_last: bool, info: ItemInfo | None) -> End:
    """Return the outcome of an attempt: how its handler ended, unless its item says otherwise."""
    has_succeeded = ended in ("done", "discarded")
    if not is_last or (info is not None and info.state not in ENDED):
        return "lost" if has_succeeded else ended
    if info is None:
        return ended if has_succeeded else "cancelled"
    return info.outcome or "dead"


class _Handler(JobHandler):
    def __init__(self, drain: _Drain, queue: str, thread: _TestThread, *of_app: Any) -> None:
        super().__init__(*of_app)
        self._drain = drain
        self._queue = queue
        self._thread = thread

    def unknown(self, item: Item[Any]) -> str | None:
        why, job = super().unknown(item), stored_job(item.value)
        if why is not None and job is not None:
            self._drain.begin(Attempt(job.name, item.id, 0, "unknown"))
        return why

    def call(self, context: Context) -> Invocation:
        stored = stored_job(context.item.value)
        attempt = Attempt(stored.name if stored else "", context.item.id, context.attempt)
        self._drain.begin(attempt)
        try:
            call = super().call(context)
        except Exception as error:
            _note(attempt, error, outcome_of(error))
            raise

        def outcome(error: Exception) -> Outcome | None:
            decided = call.outcome(error)
            _note(attempt, error, decided)
            return decided

        @contextmanager
        def around() -> Generator[None]:
            try:
                with call.around():
                    yield
            except Suspended:
                attempt.outcome = "suspended"
                raise
            if attempt.outcome == "lost" and self._drain.is_left(self._queue, attempt):
                attempt.outcome = "done"  # the item says so, too, but only if its queue keeps it

        function = call.function
        if not iscoroutinefunction(self._jobs[call.name].function):
            function = partial(self._thread.call, function)
        return call._replace(function=function, outcome=outcome, around=around)


def _note(attempt: Attempt, error: Exception, decided: Outcome | None) -> None:
    attempt.error = error
    ends: dict[type[Outcome | None], End] = {Snooze: "snoozed", Discard: "discarded"}
    attempt.outcome = ends.get(type(decided), "failed")


class _TestThread:
    """The thread that drains, which calls functions for the thread of a worker."""

    def __init__(self) -> None:
        # Imported late, because a program may have a module of this name, as `recipes/` does.
        from queue import SimpleQueue

        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def call(self, function: Callable[..., object], *arguments: object) -> object:
        future: Future[object] = Future()
        context = copy_context()

        def run() -> None:
            try:
                future.set_result(context.run(function, *arguments))
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, (Exception, Suspended, JobCancelled)):
                    raise

        self._calls.put(run)
        return future.result()

    def serve(self, worker: Worker) -> None:
        """Let a worker drain its queue in another thread, and call here what it asks for.

        An exit, or a job that fails the test, stops the worker and is raised.
        """
        errors: list[BaseException] = []

        def work() -> None:
            try:
                worker.run(drain=True)
            except BaseException as error:
                errors.append(error)
            finally:
                self._calls.put(None)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while True:
            try:
                for call in iter(self._calls.get, None):
                    call()
                break
            except BaseException as error:
                if errors:
                    raise
                errors.append(error)
                worker.stop()
        thread.join()
        if errors:
            raise errors[0]
