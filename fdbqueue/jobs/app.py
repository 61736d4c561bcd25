"""The app: a program's jobs, the database that they are pushed to, and their workers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from fdbqueue.database.binding import Guard, database_name, is_database
from fdbqueue.database.opening import open as open_database
from fdbqueue.errors import InvalidItemId, QueueNotFound
from fdbqueue.jobs.batches import Batch
from fdbqueue.jobs.errors import (
    AppIsRemote,
    AppNotBound,
    AppNotFound,
    DuplicateJob,
    InvalidArguments,
    UndecodableArguments,
)
from fdbqueue.jobs.handle import Handle
from fdbqueue.jobs.handler import Around, JobHandler, Lifespan
from fdbqueue.jobs.job import Job, JobPusher, JobSettings
from fdbqueue.jobs.processes import command_of, importable, is_same
from fdbqueue.jobs.remote import RemoteQueue, Server
from fdbqueue.jobs.retry import Decision, Retry
from fdbqueue.jobs.schedules import AppSchedules, DeclaredOptions
from fdbqueue.options import GroupOptions, JobOptions, QueueLimits, ScheduleOptions
from fdbqueue.queue.arguments import (
    MAX_INTEGER,
    declared_settings,
    kept_options,
    validate_choice,
    validate_lease,
    validate_number,
    validate_range,
    validate_seconds,
    validate_share,
)
from fdbqueue.queue.base import change_once
from fdbqueue.queue.batches import Batches, BatchNotFound
from fdbqueue.queue.deployment import Deployment, Difference, deploy
from fdbqueue.queue.priority import PriorityQueue
from fdbqueue.queue.steps import KEPT
from fdbqueue.types import (
    Database,
    DeadJob,
    Duration,
    Keep,
    OnDead,
    Options,
    Transaction,
    Transactor,
)
from fdbqueue.worker.claiming import Source, Turns
from fdbqueue.worker.context import Context
from fdbqueue.worker.endings import WorkerReport
from fdbqueue.worker.processes import (
    Supervisor,
    is_first,
    limit_of,
    parent,
    run_worker,
    summary_of,
)
from fdbqueue.worker.shutdown import Shutdown
from fdbqueue.worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Unpack

_P = ParamSpec("_P")
_R = TypeVar("_R")
_J = TypeVar("_J", bound=Job[Any, Any, Any, Any])
_Lifespan = TypeVar("_Lifespan", bound=Callable[[], Iterator[Any] | AsyncIterator[Any]])
_Middleware = TypeVar("_Middleware", bound=Callable[[Context[Any]], Iterator[None]])

_DAY, _WEEK = timedelta(days=1), timedelta(days=7)

_log = logging.getLogger("fdbqueue.jobs")


class _Unannotated:
    """A type that no parameter has: only parameters without an annotation accept it."""


class _Decorator(Protocol):
    @overload  # of a function whose first parameter has no annotation
    def __call__(
        self, function: Callable[Concatenate[_Unannotated, ...], _R], /
    ) -> Job[..., ..., _R, Any]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[Any], _P], Coroutine[Any, Any, _R]], /
    ) -> Job[Concatenate[Context[Any], _P], _P, Coroutine[Any, Any, _R], _R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[Any], _P], _R], /
    ) -> Job[Concatenate[Context[Any], _P], _P, _R, _R]: ...

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
        database: A database; a name for `fdbqueue.open`, which is opened at the first push; or the
            address of a server, such as `https://queues.example:8080`. `None` to call `bind` later.
        keep: Which done jobs are kept in the queues that the app creates; see `QueueOptions`.
        keep_unknown: The time after which a job that no worker knows becomes a dead letter; `None`
            for never.
        token: A token for the server, with the role `write`.
        repeat_for: The time, up to an hour, for which a request to a server that does not answer is
            repeated. It takes effect once.

    Example:
        >>> app = App("memory:")
        >>> @app.job()
        ... def add(x: int, y: int) -> int:
        ...     return x + y
        >>> handle = add.push(1, 2)
        >>> app.work(drain=True)
        WorkerReport(done=1, failed=0, lost=0)
        >>> handle.result()
        3
    """

    def __init__(
        self,
        database: str | Database | None = None,
        *,
        keep: Keep | None = _DAY,
        keep_unknown: Duration | None = _WEEK,
        token: str | None = None,
        repeat_for: Duration = 30,
    ) -> None:
        kept_options(keep)  # which checks it
        self._keep = keep
        self._keep_unknown = None
        if keep_unknown is not None:
            self._keep_unknown = validate_seconds("keep_unknown", keep_unknown)
        self._guard = Guard()
        self._jobs: dict[str, Job[Any, Any, Any, Any]] = {}
        self._lifespan: Lifespan = nullcontext
        self._middleware: list[Around] = []
        self.relays: list[Callable[[bool], AbstractContextManager[None]]] = []
        """Relays of its outboxes, to enter beside a worker; the argument is `drain`."""
        self._named: str | None = None
        self._db: Database | None = None
        self._server: Server | None = None
        self._queues: dict[str, PriorityQueue[Any]] = {}
        self._declared: dict[str, dict[str, Any]] = {}
        self.schedules = AppSchedules(self, lambda: [*map(self.queue, known_queues(self))])
        """The schedules of its jobs."""
        if database is not None:
            self.bind(database, token=token, repeat_for=repeat_for)

    def __repr__(self) -> str:
        where = self._named or "no database" if self._db is None else database_name(self._db)
        return f"<App of {len({*self._jobs.values()})} jobs on {where}>"

    def bind(
        self, database: str | Database, *, token: str | None = None, repeat_for: Duration = 30
    ) -> None:
        """Let the app push to this database or server, instead of any earlier one.

        The arguments are as for `App`.

        Raises:
            ImportError: The address is one of a server, and httpx is missing.
        """
        if not isinstance(database, str) and not is_database(database):
            raise TypeError(f"an app needs a database, or the name of one, not {database!r}")
        server = None
        if isinstance(database, str) and database.startswith(("http://", "https://")):
            server = Server(database, token, repeat_for, self._keep)
        with self._guard:
            self._named = database if isinstance(database, str) else None
            self._db = None if isinstance(database, str) else database
            self._server, self._queues = server, {}

    @property
    def is_bound(self) -> bool:
        """True if the app has a database or a server."""
        return self._db is not None or self._named is not None

    @property
    def db(self) -> Database:
        """The database; raises `AppNotBound` if there is none, `AppIsRemote` if it has a server."""
        db = self._db
        if db is None:
            with self._guard:
                db = self._db
                if db is None:
                    if self._named is None:
                        raise AppNotBound
                    if self._server is not None:
                        raise AppIsRemote(self._named)
                    db = self._db = open_database(self._named)
        return db

    @property
    def jobs(self) -> Mapping[str, Job[Any, Any, Any, Any]]:
        """The jobs by their names and aliases."""
        return MappingProxyType(self._jobs)

    def target(self, name: str) -> tuple[PriorityQueue[Any] | RemoteQueue, Any]:
        """Return a queue, and the database or server that its methods take as `tr`."""
        server = self._server
        if server is not None:
            return RemoteQueue(server, name), server
        return self.queue(name), self.db

    @overload
    def queue(self, name: str) -> PriorityQueue[Any]: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def queue(
        self, name: str, *, groups: GroupOptions = ..., **options: Unpack[QueueLimits]
    ) -> None: ...

    def queue(
        self, name: str, *, groups: GroupOptions | None = None, **options: Unpack[QueueLimits]
    ) -> PriorityQueue[Any] | None:
        """Return the queue of this name; the first push creates it. Or declare its options.

        With options, nothing is returned and the database is not opened: workers of the queue
        and `deploy` store the options.

        Args:
            name: The name of the queue.
            groups: The settings of all its groups that have none of their own.
            options: See `fdbqueue.options.QueueLimits`.

        Raises:
            ValueError: An option is out of range, or the app declares other ones already.

        Example:
            >>> app = App("memory:")
            >>> app.queue("payments", concurrency=20, rate=(100, "1m"), groups={"concurrency": 1})
            >>> _ = app.deploy()
            >>> app.queue("payments").options(app.db).concurrency
            20
        """
        if options or groups is not None:
            settings = declared_settings(options, groups or {})
            if self._declared.setdefault(name, settings) != settings:
                raise ValueError(f"the app declares other options of the queue {name!r} already")
            return None
        db = self.db
        queue = self._queues.get(name)
        if queue is None:
            try:
                queue = PriorityQueue.existing(db, name)
            except QueueNotFound:
                queue = PriorityQueue.named(db, name, keep=self._keep)
            queue = self._queues.setdefault(name, queue)
        return queue

    def job(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | Decision | None = None,
        timeout: Duration | None = None,
        version: int = 1,
        aliases: Iterable[str] = (),
        on_dead: JobPusher[..., Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> _Decorator:
        """Return a decorator that makes a job of a function or coroutine function.

        If the first parameter is annotated `Context`, the worker supplies it. If it is annotated
        `Transaction`, the function is the body of the transaction that ends the job, as the handler
        with `tr` of a `Worker`. Arguments and results are stored as JSON; see
        `docs/reference/arguments.md`.

        Args:
            function: Must not be given.
            name: The name that is stored with each item; by default `module.function`.
            retry: A policy, or a function of the error and the context that returns a delay or an
                outcome. By default `Retry()`, with 20 attempts.
            timeout: The time after which a job is told to stop, as for `Worker`.
            version: The version of the job, from 1. Workers with an older one leave it to others.
            aliases: Its earlier names: stored items that have one run this job.
            on_dead: A job of this app, or what its `using` returned, which gets a
                `fdbqueue.types.DeadJob`. The transaction that makes the job a dead letter pushes
                it, also to a full queue, with its queue, priority, version and a group given as
                text. If it dies, nothing more is pushed.
            options: How the job is pushed; see `fdbqueue.options.JobOptions`.

        Raises:
            DuplicateJob: Another job of this app has the name or an alias.
            InvalidArguments: The job of `on_dead` does not take one argument.
        """
        if function:
            raise TypeError("write @app.job(), with parentheses")
        version = validate_range("version", version, 1, MAX_INTEGER)
        policy = Retry() if retry is None else retry
        if isinstance(policy, type) or not (callable(policy) or isinstance(policy, Retry)):
            raise TypeError(f"retry is a policy, such as Retry(attempts=3), not {policy!r}")
        if not isinstance(name, str | None):
            raise TypeError(f"the name of a job is text, not {name!r}")
        seconds = None if timeout is None else validate_lease(timeout, "timeout")
        others = tuple(aliases)
        if isinstance(aliases, str) or not all(isinstance(each, str) for each in others):
            raise TypeError(f"aliases are a list of names, not {aliases!r}")
        if on_dead is not None:
            self._check_alert(on_dead)
        settings = JobSettings(policy, seconds, on_dead).changed(options)

        def declare(function: Callable[..., Any]) -> Job[Any, Any, Any, Any]:
            if isinstance(function, Job):
                raise TypeError(f"{function.name} is a job already; declare its `function` again")
            module = importable(function.__module__).removesuffix(".__main__")
            full_name = name or f"{module}.{function.__qualname__}"
            job = Job[Any, Any, Any, Any](self, full_name, function, version, settings, others)
            claimed = dict.fromkeys((full_name, *others), job)
            for each, first in self._jobs.items():
                if each in claimed and not is_same(first.function, function):
                    raise DuplicateJob(each)
            self._jobs.update(claimed | self._jobs)
            return job

        return cast("_Decorator", declare)

    def _check_alert(self, alert: JobPusher[..., Any]) -> None:
        if not isinstance(alert, JobPusher) or alert.job.app is not self:
            raise TypeError(f"on_dead is a job of this app, not {alert!r}")
        alert.check_member()
        try:
            alert.job.arguments.decode([asdict(DeadJob("", [], {}, None, 0, "", None))], {})
        except UndecodableArguments as error:
            reason = f"on_dead gives it one argument, a DeadJob: {error.reason}"
            raise InvalidArguments(alert.job.name, error.parameter, reason) from error

    def cron(
        self,
        expression: str,
        /,
        **options: Unpack[DeclaredOptions],
    ) -> Callable[[_J], _J]:
        """Return a decorator that declares a schedule of a job: it stands above `@app.job()`.

        At each tick the job is pushed exactly once. Workers store the schedules of their queues
        when they start, and replace changed ones. A schedule that no worker has declared for a day
        stops.

        Args:
            expression: Five fields of cron, or six with the seconds first.
            options: `name`, by default that of the job; its `args` and `kwargs`; `tz`, `missed` and
                `overlap`, as for `Schedules.add`.

        Raises:
            DuplicateSchedule: The app has declared a schedule of this name for the queue.
            InvalidArguments: The job does not take these arguments.
            InvalidSchedule: The expression or an option is not valid.

        Example:
            >>> app = App("memory:")
            >>> @app.cron("0 3 * * *", tz="Europe/Lisbon")
            ... @app.job()
            ... def nightly() -> None: ...
        """
        return self._scheduled({"cron": expression}, options)

    def every(
        self,
        interval: Duration,
        /,
        **options: Unpack[DeclaredOptions],
    ) -> Callable[[_J], _J]:
        """Return a decorator that declares a schedule at a fixed interval; see `cron`.

        Args:
            interval: At least a second. Ticks are its multiples since 1970.
            options: As for `cron`, except for `tz`.
        """
        return self._scheduled({"every": interval}, options)

    def _scheduled(self, timing: ScheduleOptions, options: DeclaredOptions) -> Callable[[_J], _J]:
        late: Any = {**options}
        name, args = late.pop("name", None), late.pop("args", ())
        kwargs: Any = late.pop("kwargs", None) or {}

        def declare(job: _J) -> _J:
            if not isinstance(job, Job):
                raise TypeError(f"a schedule is one of a job: write @app.job() below it, not {job}")
            self.schedules.declare(job, name, job.bind(*args, **kwargs), timing | late)
            return job

        return declare

    def deploy(self, *queues: str, force: bool = False, check: bool = False) -> list[Difference]:
        """Store the declared options of queues, and the schedules, in one transaction.

        Workers do the same for their queues when they start. An option that the code no longer
        names gets its default again. One that was set by hand since the last deployment stays.

        Args:
            queues: The names of queues; by default all that the app declares.
            force: Whether to replace also values that were set by hand.
            check: Whether to store nothing, and only return the differences.

        Example:
            >>> app = App("memory:")
            >>> app.queue("mail", max_size=1000)
            >>> print(*app.deploy())
            mail: max_size none -> 1000
            >>> app.queue("mail").configure(app.db, max_size=5)
            >>> print(*app.deploy())
            mail: max_size stays 5, set by hand; the code has 1000
        """
        created = Options("priority", "json", int, **kept_options(self._keep))
        declared = Deployment(self._declared, self.schedules.declared, created, force, check)
        names = [*declared.settings, *declared.schedules]
        chosen = {name: self.queue(name) for name in queues or names if name in names}
        return deploy(self.db, chosen, declared)

    def signal(
        self,
        tr: Transactor | None,
        name: str,
        *,
        key: str = "",
        value: Any = None,
        keep: Duration = KEPT,
        queue: str | None = None,
    ) -> int:
        """Send a signal, for which jobs wait with `Context.wait`; return how many waited.

        Arguments, limits and errors are those of `PriorityQueue.steps.signal`. `tr` is `None` for
        the app's own database or server, `queue` for the queues of all its jobs. By default, a job
        waits for its own id as `key`.
        """
        names = known_queues(self) if queue is None else [queue]
        targets = [self.target(each) for each in names]
        target: Any = targets[0][1] if tr is None else tr
        signals: list[Any] = [each.steps.signal for each, _ in targets]

        def body(tr: Transaction) -> int:
            return sum(send(tr, name, key=key, value=value, keep=keep) for send in signals)

        if self._server is not None or not is_database(target):
            return body(target)
        return change_once(self.queue(names[0]), target, body)

    def batch(
        self,
        *,
        then: Job[..., ..., Any, _R],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        on_dead: OnDead = "continue",
    ) -> Batch[_R]:
        """Begin a batch of jobs.

        The end of its `with` block closes it. The transaction that ends the last job makes `then`
        ready, exactly once, with the numbers of jobs that ended in each way as the keyword
        arguments `done`, `dead` and `cancelled`. An exception in the block cancels the batch, and
        `then` with it.

        Args:
            then: The job that runs once all others have ended.
            args: Its positional arguments.
            kwargs: Its keyword arguments, without the numbers.
            on_dead: What happens when a job becomes a dead letter: `"continue"` lets the others
                run, `"cancel"` cancels the jobs that have not begun.

        Raises:
            InvalidArguments: `then` does not take these arguments or the three numbers.
            QueueFull: The queue or the group of `then` is full.

        Example:
            >>> app = App("memory:")
            >>> @app.job()
            ... def send(to: str) -> None: ...
            >>> @app.job()
            ... def report(*, done: int, dead: int, cancelled: int) -> str:
            ...     return f"{done} of {done + dead + cancelled}"
            >>> with app.batch(then=report) as batch:
            ...     batch.push(send, "ada")
            >>> _ = app.work(drain=True)
            >>> batch.handle.result()
            '1 of 1'
        """
        validate_choice("on_dead", on_dead, OnDead)
        call = then.bind(*args, **{**(kwargs or {}), "done": 0, "dead": 0, "cancelled": 0})
        name, priority = then.settings.queue, then.settings.priority
        value, group = call.stored.value, call.group
        item = Batches(self.queue(name)).open(self.db, value, priority, on_dead, group, then.alert)
        handle = Handle(then, name, item.id, is_new=item.is_new)
        return Batch(self, name, handle, on_dead, is_own=True)

    def existing_batch(self, id: str) -> Batch[Any]:
        """Return the batch with this id, to add jobs to it, or raise `BatchNotFound`."""
        for name in known_queues(self):
            queue = self.queue(name)
            try:
                on_dead = Batches(queue).on_dead(self.db, id)
            except InvalidItemId:
                continue
            info = None if on_dead is None else queue.get(self.db, id)
            stored = None if info is None else info.job
            if info is not None and stored is not None and on_dead is not None:
                handle = Handle(self.jobs[stored.name], name, info.item.id, is_new=True)
                return Batch(self, name, handle, on_dead, is_own=False)
        raise BatchNotFound(id)

    def lifespan(self, function: _Lifespan, /) -> _Lifespan:
        """Run a generator function around the life of each worker process: a decorator.

        The code before its `yield` runs before the worker claims a job, the rest once all jobs have
        ended. What it yields is `Context.state` in jobs and middleware. If it raises an exception
        before the `yield`, so does `work`. An async generator function runs in the event loop of
        the jobs that are coroutines.

        Raises:
            ValueError: The app has another lifespan.

        Example:
            >>> app = App("memory:")
            >>> @app.lifespan
            ... def resources():
            ...     yield {"ada": "ada@example.com"}
            ...     print("disconnect")
            >>> @app.job()
            ... def send(context: Context[dict[str, str]], to: str):
            ...     print("mail to", context.state[to])
            >>> _ = send.push("ada")
            >>> _ = app.work(drain=True)
            mail to ada@example.com
            disconnect
        """
        generator: Any = function
        if inspect.isgeneratorfunction(generator):
            lifespan: Lifespan = contextmanager(generator)
        elif inspect.isasyncgenfunction(generator):
            lifespan = asynccontextmanager(generator)
        else:
            raise TypeError(f"a lifespan is a generator function, with a `yield`, not {function}")
        if self._lifespan is not nullcontext and not is_same(self._lifespan, generator):
            raise ValueError("the app has another lifespan, and a worker enters one")
        self._lifespan = lifespan
        return function

    def middleware(self, function: _Middleware, /) -> _Middleware:
        """Run a generator function around the call of each job: a decorator.

        The code before its `yield` runs before the call, the rest after it. If the call raises an
        exception, so does the `yield`; raise it again, or the job is done and returns `None`. The
        function runs in the thread of the job and, around the body of a transaction, as often as
        the body does. Functions are entered in the order in which they were declared.

        Example:
            >>> app = App("memory:")
            >>> @app.middleware
            ... def trace(context):
            ...     print("begin", context.attempt)
            ...     yield
            ...     print("end")
            >>> @app.job()
            ... def greet():
            ...     print("hello")
            >>> _ = greet.push()
            >>> _ = app.work(drain=True)
            begin 1
            hello
            end
        """
        generator: Any = function
        if not inspect.isgeneratorfunction(generator):
            raise TypeError(f"a middleware is a generator function, with a `yield`, not {function}")
        if not any(is_same(each, generator) for each in self._middleware):
            self._middleware.append(contextmanager(generator))
        return function

    def work(
        self,
        *queues: str,
        concurrency: int = 10,
        at_most: Mapping[str, int] | None = None,
        weights: Mapping[str, float] | None = None,
        lease: Duration = 30,
        prefetch: int = 100,
        name: str | None = None,
        grace: Duration = 10,
        drain: bool = False,
        processes: int | None = None,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        health: int | str | None = None,
    ) -> WorkerReport:
        """Run jobs until SIGTERM, SIGINT or, with `drain`, until none is ready; see `Worker`.

        Args:
            queues: The names of the queues, in order: a job begins only if no earlier queue has a
                ready job. By default the queues of all jobs, which take turns.
            concurrency: The number of jobs that run at a time, of all queues.
            at_most: The maximum number of jobs that run at a time, by queue.
            weights: The weights of queues, from 0.001 to 1,000, by default 1. Queues then share the
                jobs that begin by weight, instead of in order.
            lease: As for `Worker`.
            prefetch: As for `Worker`, if there is one queue.
            name: As for `Worker`.
            grace: As for `Worker`.
            drain: As for `Worker.run`.
            processes: The number of processes that this one starts, which import the module of the
                app. A process that ends is replaced, after a death with a delay that doubles from a
                second to a minute. `None` to run jobs here.
            max_jobs: The number of jobs after which a process ends.
            max_memory: The bytes of resident memory after which it ends; only on Linux.
            health: As for `Worker.run`; the first process answers.

        Raises:
            AppNotFound: Other processes cannot import the app or use its database.
            ValueError: There is no queue, or `at_most` or `weights` names another one.
        """
        for each in queues:
            if not isinstance(each, str):
                raise TypeError(f"name the queues one by one, as in work('mail'), not {each!r}")
        names = queues_of(self, queues)
        if not names:
            raise ValueError(
                "the app has no jobs; its module has to import the modules that declare them"
            )
        most_of, weight_of = {**(at_most or {})}, {**(weights or {})}
        _validate_names("at_most", most_of, names)
        _validate_names("weights", weight_of, names)
        for most in most_of.values():
            validate_number(most, "at_most", 1, "jobs")
        for weight in weight_of.values():
            validate_share("a weight", weight)
        options: dict[str, Any] = {
            "concurrency": validate_number(concurrency, "concurrency", 1, "jobs"),
            "lease": validate_seconds("lease", lease),
            "prefetch": validate_number(prefetch, "prefetch", 0),
            "name": name,
        }
        grace = validate_seconds("grace", grace)
        limits = {"max_jobs": max_jobs, "max_memory": max_memory}
        for option, number in {**limits, "processes": processes}.items():
            if number is not None:
                validate_number(number, option, 1, "bytes" if option == "max_memory" else option)
        shown = [f"{each}={weight_of.get(each, 1):g}" for each in names] if weights else names
        if parent is None:  # otherwise the parent has said it
            _log.info(summary_of(self.db, shown, sorted(self._jobs), processes or 1))
            if unknown := [name for name in queues if name not in known_queues(self)]:
                # `using(queue=...)` may push jobs to it, so this is no error.
                _log.warning("no job is declared for the queue %s", ", ".join(unknown))
        if processes is not None:
            if parent is not None:
                raise AppNotFound("this process is one of several already")
            options |= {"at_most": at_most, "weights": weights, "grace": grace}
            options |= {"drain": drain, "health": health, **limits}
            return Supervisor(command_of(self, queues, options), processes, grace).run(health)
        if len(names) == 1:  # it claims ahead, up to the number of jobs at a time
            options["concurrency"] = min(concurrency, most_of.pop(names[0], concurrency))
        renew = self.schedules.renewing(names)  # before the clock can be set back unseen
        for difference in self.deploy(*names):
            _log.info("%s", difference)
        shutdown = Shutdown(grace, limit=limit_of(max_jobs, max_memory))
        worker = worker_of(
            self,
            names,
            partial(JobHandler, renew=renew),
            at_most=most_of,
            weights=weight_of,
            in_order=bool(queues) and weights is None,
            grace=shutdown,
            **options,
        )
        with ExitStack() as beside:
            for relaying in self.relays if is_first() else ():
                beside.enter_context(relaying(drain))
            return run_worker(worker, shutdown, drain=drain, health=health)


def worker_of(
    app: App,
    queues: Sequence[str],
    handler: Callable[..., JobHandler] = JobHandler,
    *,
    at_most: Mapping[str, int] = MappingProxyType({}),
    weights: Mapping[str, float] = MappingProxyType({}),
    in_order: bool = True,
    **options: Any,
) -> Worker:
    """Return a worker for the jobs of an app in some of its queues."""
    sources = [
        Source(app.queue(name), at_most.get(name), weights.get(name, 1), stores_results=True)
        for name in queues
    ]
    made = handler(app.jobs, app._middleware, app._keep_unknown, app._lifespan)
    return Worker(app.db, Turns(sources, in_order=in_order), made, **options)


def _validate_names(option: str, given: Iterable[str], queues: Sequence[str]) -> None:
    for name in given:
        if name not in queues:
            known = ", ".join(queues)
            raise ValueError(f"{option} has {name!r}, but the queues to work on are {known}")


def queues_of(app: App, names: Sequence[str] = ()) -> list[str]:
    """Return these names of queues, or the queues of all jobs."""
    declared = (job.settings.queue for job in app.jobs.values())
    return list(dict.fromkeys(names or declared))


def known_queues(app: App) -> list[str]:
    """Return the queues of an app's jobs, and the others that it has used."""
    return list(dict.fromkeys([*queues_of(app), *app._queues]))


def database_of(app: App) -> str | Database | None:
    """Return the database of an app, or its name if it is not open; `None` if there is none."""
    return app._named if app._db is None else app._db


@contextmanager
def bound_to(app: App, database: Database) -> Generator[App]:
    """Bind an app to a database until the end of a `with` block."""
    with app._guard:
        before = app._named, app._db, app._queues, app._server
    app.bind(database)
    try:
        yield app
    finally:
        with app._guard:
            app._named, app._db, app._queues, app._server = before
