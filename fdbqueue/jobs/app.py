"""The app: a program's jobs, the database that they are pushed to, and their workers."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from fdbqueue.database.binding import is_database
from fdbqueue.database.opening import open as open_database
from fdbqueue.errors import QueueNotFound
from fdbqueue.jobs.errors import AppNotBound, DuplicateJob
from fdbqueue.jobs.handler import JobHandler
from fdbqueue.jobs.job import Job, Settings, Unique
from fdbqueue.jobs.retry import Decision, Retry
from fdbqueue.queue.arguments import MAX_INTEGER, validate_range, validate_timeout
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.types import Database, Duration, Keep, Transaction
from fdbqueue.worker.context import Context
from fdbqueue.worker.group import run_together
from fdbqueue.worker.worker import Worker, WorkerReport

_P = ParamSpec("_P")
_R = TypeVar("_R")

_DAY = timedelta(days=1)

_log = logging.getLogger("fdbqueue.jobs")


def _module_of(function: Callable[..., Any]) -> str:
    """Return the name under which other programs import the module of a function."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)  # of `python -m MODULE`
    file = getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return "__main__" if file is None else Path(file).stem


class _Unannotated:
    """A type that no parameter has, so that only those without an annotation accept it."""


class _Decorator(Protocol):
    """The decorator that makes a job of a function."""

    @overload  # of a function whose first parameter has no annotation
    def __call__(
        self, function: Callable[Concatenate[_Unannotated, ...], _R], /
    ) -> Job[..., ..., _R, Any]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, _P], Coroutine[Any, Any, _R]], /
    ) -> Job[Concatenate[Context, _P], _P, Coroutine[Any, Any, _R], _R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, _P], _R], /
    ) -> Job[Concatenate[Context, _P], _P, _R, _R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Transaction, _P], _R], /
    ) -> Job[Concatenate[Transaction, _P], _P, _R, _R]: ...

    @overload
    def __call__(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /
    ) -> Job[_P, _P, Coroutine[Any, Any, _R], _R]: ...

    @overload
    def __call__(self, function: Callable[_P, _R], /) -> Job[_P, _P, _R, _R]: ...


class App:
    """The jobs of a program, and the database that they are pushed to.

    Args:
        database: A database, or the name of one as for `fdbqueue.open`, which is opened at the
            first push. `None` to give it later, to `bind`: in tests, or from settings.
        keep: Which done jobs a queue keeps that the app creates, with their results, as for
            `PriorityQueue`; `None` for none.

    Example:
        >>> app = App("memory:")
        >>> @app.job()
        ... def add(x: int, y: int) -> int:
        ...     return x + y
        >>> add(1, 2)
        3
        >>> handle = add.push(1, 2)
        >>> app.work(drain=True)
        WorkerReport(done=1, failed=0, lost=0)
        >>> handle.result()
        3
    """

    def __init__(self, database: str | Database | None = None, *, keep: Keep | None = _DAY) -> None:
        self._keep = keep
        self._guard = threading.Lock()
        self._jobs: dict[str, Job[Any, Any, Any, Any]] = {}
        self._named: str | None = None
        self._db: Database | None = None
        self._queues: dict[str, PriorityQueue[Any]] = {}
        if database is not None:
            self.bind(database)

    def __repr__(self) -> str:
        return f"<App of {len(self._jobs)} jobs on {self._where()}>"

    def _where(self) -> str:
        if self._db is not None:
            return str(getattr(self._db, "url", "a cluster"))
        return "no database" if self._named is None else self._named

    def bind(self, database: str | Database) -> None:
        """Let the app push to this database, instead of any other one before.

        Args:
            database: A database, or the name of one as for `fdbqueue.open`.

        Example:
            >>> app = App()
            >>> app.db
            Traceback (most recent call last):
            fdbqueue.jobs.errors.AppNotBound: the app has no database; ...
            >>> app.bind("memory:")
        """
        if not isinstance(database, str) and not is_database(database):
            raise TypeError(f"an app needs a database, or the name of one, not {database!r}")
        with self._guard:
            self._named = database if isinstance(database, str) else None
            self._db = None if isinstance(database, str) else database
            self._queues = {}

    @property
    def is_bound(self) -> bool:
        """True if the app has a database."""
        return self._db is not None or self._named is not None

    @property
    def db(self) -> Database:
        """The database; raises `AppNotBound` if there is none."""
        with self._guard:
            if self._db is None:
                if self._named is None:
                    raise AppNotBound
                self._db = open_database(self._named)
            return self._db

    @property
    def jobs(self) -> Mapping[str, Job[Any, Any, Any, Any]]:
        """The jobs by their names."""
        return MappingProxyType(self._jobs)

    def queue(self, name: str) -> PriorityQueue[Any]:
        """Return the queue of this name; the first push creates it."""
        db = self.db
        with self._guard:
            queue = self._queues.get(name)
        if queue is None:
            try:
                queue = PriorityQueue.existing(db, name)
            except QueueNotFound:
                queue = PriorityQueue.named(db, name, keep=self._keep)
            with self._guard:
                queue = self._queues.setdefault(name, queue)
        return queue

    def job(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "jobs",
        priority: int = 0,
        retry: Retry | Decision | None = None,
        timeout: Duration | None = None,
        unique: Unique | None = None,
        version: int = 1,
    ) -> _Decorator:
        """Return a decorator that makes a job of a function or a coroutine function.

        If the first parameter is annotated `Context`, the worker supplies it. If it is annotated
        `Transaction`, the function is the body of the transaction that ends the job: it takes
        effect exactly once, may run several times, and must end within five seconds.

        The arguments are stored as JSON, and converted by their annotations: dates and times,
        `timedelta`, `UUID`, `Decimal`, `Enum`, `Path`, dataclasses, `TypedDict`, and pydantic
        models. So is the result.

        Args:
            function: Not to be given: it is there to say that `@app.job` needs parentheses.
            name: The name that is stored with each item; by default the module's and the
                function's, `module.function`.
            queue: The name of its queue.
            priority: Its priority, the lowest first.
            retry: When to try it again after an error: a policy, or a function of the error and the
                context that returns a delay or an outcome. By default `Retry()`, of 20 attempts.
            timeout: The time after which it is told to stop: a coroutine is cancelled and has
                failed, a function finds `Context.cancelled` set. See `grace` of `work`.
            unique: A unique key, or a function of the arguments that returns one: nothing is pushed
                while an unfinished job has the same key.
            version: The version of the job, from 1. Workers with an older one leave it to others.

        Raises:
            DuplicateJob: Another job of this app has the name.
            TypeError: `retry` is neither a policy nor a function, or the parentheses are missing.
            ValueError: `version` or `timeout` is out of range.
        """
        if function:
            raise TypeError("write @app.job(), with parentheses")
        version = validate_range("version", version, 1, MAX_INTEGER)
        policy = Retry() if retry is None else retry
        if not callable(policy) and not isinstance(policy, Retry):
            raise TypeError(f"retry is a policy, such as Retry(attempts=3), not {policy!r}")
        seconds = None if timeout is None else validate_timeout(timeout)
        settings = Settings(queue, priority, policy, seconds, unique)

        def declare(function: Callable[..., Any]) -> Job[Any, Any, Any, Any]:
            full_name = name or f"{_module_of(function)}.{function.__qualname__}"
            job = Job[Any, Any, Any, Any](self, full_name, function, version, settings)
            if full_name in self._jobs:
                raise DuplicateJob(full_name)
            self._jobs[full_name] = job
            return job

        decorator: Any = declare
        return decorator  # type: ignore[no-any-return]

    def work(
        self,
        *queues: str,
        concurrency: int = 10,
        lease: Duration = 30,
        name: str | None = None,
        grace: Duration = 10,
        drain: bool = False,
    ) -> WorkerReport:
        """Run jobs until SIGTERM, SIGINT or, with `drain`, until none is ready.

        Args:
            queues: The names of the queues; by default those of all jobs.
            concurrency: The number of jobs of each queue that run at a time.
            lease: The time until other workers may take over the jobs of a worker that died.
            name: The name that `workers` and the claims show; `None` for the host and process id.
            grace: The time after which a job that was told to stop, and goes on, has failed:
                another thread does the next job.
            drain: Whether to stop once no job can be claimed and none is running.
        """
        names = queues or tuple(dict.fromkeys(job.settings.queue for job in self._jobs.values()))
        if not names:
            raise ValueError(
                "the app has no jobs; its module has to import the modules that declare them"
            )
        _log.info(
            "working on %s: queues %s; jobs %s",
            self._where(),
            ", ".join(names),
            ", ".join(sorted(self._jobs)),
        )
        workers = [
            Worker(
                self.db,
                queue,
                JobHandler(self._jobs),
                concurrency=concurrency,
                lease=lease,
                store_results=bool(queue.options(self.db).keeps_done),
                name=name,
                grace=grace,
            )
            for queue in map(self.queue, names)
        ]
        return run_together(workers, drain=drain)
