"""Declared jobs: call the function, or push it with its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from fdbqueue.jobs.arguments import Arguments
from fdbqueue.jobs.handle import Handle
from fdbqueue.jobs.remote import RemoteQueue
from fdbqueue.jobs.retry import Decision, Retry
from fdbqueue.options import JobOptions
from fdbqueue.queue.arguments import (
    validate_choice,
    validate_group,
    validate_key,
    validate_options,
    validate_scope,
    validate_share,
)
from fdbqueue.queue.batches import Members, StoredAlert, encode_alert, push_after
from fdbqueue.types import Duration, Group, Item, OnDead, StoredJob, Transactor, Unique, UniqueUntil
from fdbqueue.worker.invocation import supplied
from fdbqueue.worker.telemetry import inject

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fdbqueue.jobs.app import App

_OF_EACH = ("priority", "delay", "at", "ttl", "cost")
_SCOPE = ("unique_until", "unique_for", "replace", "at_most")

_Call = ParamSpec("_Call")
_Push = ParamSpec("_Push")
_Returned = TypeVar("_Returned")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How a job is pushed and run: its `JobOptions` with their defaults, and others."""

    retry: Retry | Decision
    timeout: float | None
    alert: JobPusher[..., Any] | None = None
    queue: str = "jobs"
    priority: int = 0
    unique: Unique | None = None
    unique_until: UniqueUntil | None = None
    unique_for: Duration | None = None
    replace: bool = False
    at_most: Duration | None = None
    group: Group | None = None
    cost: float = 1
    delay: Duration | None = None
    at: datetime | None = None
    ttl: Duration | None = None
    after: Sequence[Handle[Any]] = ()
    on_dead: OnDead = "cancel"

    def changed(self, options: JobOptions, **others: Any) -> JobSettings:
        """Return these settings with the options that are not `None`."""
        validate_options(JobOptions, options)
        given: dict[str, Any] = {**options, **others}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def __post_init__(self) -> None:
        unique = self.unique
        if isinstance(unique, str):
            validate_key("unique", unique)
        elif not (unique is None or isinstance(unique, bool) or callable(unique)):
            raise TypeError(f"unique is a key, True, or a function of arguments, not {unique!r}")
        if not callable(self.group):
            validate_group(self.group)
        validate_share("cost", self.cost)
        validate_scope(unique, self.unique_until, self.unique_for, self.replace)
        validate_choice("on_dead", self.on_dead, OnDead)
        if self.after and (self.delay is not None or self.at is not None or self.replace):
            raise ValueError("give jobs to follow, or a delay, a time or replace, not both")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BoundJob(Generic[_Push, _Result]):
    """A job with its arguments, from `Job.bind`."""

    _pusher: JobPusher[_Push, _Result]
    stored: StoredJob
    unique: str | None
    group: str | None

    @property
    def members(self) -> Members:
        """The item to push."""
        return self._pusher.members([self])

    @property
    def value(self) -> dict[str, Any]:
        """The value of its item."""
        value = self.stored.value
        inject(value)
        return value

    @property
    def push_many(self) -> tuple[str, dict[str, Any], bytes]:
        """Its queue, the arguments of the queue's `push_many`, and its alert; opens no database."""
        pusher = self._pusher
        pusher.check_member()
        return pusher.queue, pusher._arguments_of([self]), pusher.alert

    def decode_result(self, stored: Any) -> _Result:
        """Return the result of the function, given the JSON form."""
        result: _Result = self._pusher.job.arguments.decode_result(stored)
        return result


class JobPusher(Generic[_Push, _Result]):
    """A job with options for its pushes, and perhaps a transaction; see `Job.using`."""

    def __init__(
        self, job: Job[Any, _Push, Any, _Result], tr: Transactor | None, settings: JobSettings
    ) -> None:
        self.job = job
        self.settings = settings
        self._tr = tr

    @property
    def queue(self) -> str:
        """The name of the queue that it pushes to."""
        return self.settings.queue

    @property
    def alert(self) -> bytes:
        """The header field of its items for the job that `App.job(on_dead=...)` names."""
        alert = self.settings.alert
        if alert is None:
            return b""
        settings, job = alert.settings, alert.job
        queue = "" if alert.queue == self.queue else alert.queue
        group = settings.group if isinstance(settings.group, str) else None
        return encode_alert(
            StoredAlert(self.job.name, job.name, queue, settings.priority, group, job.version)
        )

    def check_member(self) -> None:
        """Raise `TypeError` if a batch, a step or an outbox cannot push it."""
        if self._tr is not None or self.settings.after:
            raise TypeError("a job of a batch, a step or an outbox is pushed without tr and after")

    def bind(self, /, *args: _Push.args, **kwargs: _Push.kwargs) -> BoundJob[_Push, _Result]:
        """Return the job with arguments of its function, for `push_many` and `Context.gather`."""
        # First, so that the functions below are called only with valid arguments.
        stored_args, stored_kwargs = self.job.arguments.encode(args, kwargs)
        unique = self.settings.unique
        key = unique(*args, **kwargs) if callable(unique) else None
        group = self.settings.group
        if callable(group):
            group = group(*args, **kwargs)
        stored = StoredJob(self.job.name, stored_args, stored_kwargs, self.job.version)
        return BoundJob(self, stored, key, group)

    def push(self, /, *args: _Push.args, **kwargs: _Push.kwargs) -> Handle[_Result]:
        """Push the job with these arguments of its function.

        Raises:
            InvalidArguments: The function does not take these arguments.
            QueueFull: The queue is full.
        """
        (handle,) = self.push_many([self.bind(*args, **kwargs)])
        return handle

    def push_many(self, calls: Iterable[BoundJob[_Push, _Result]]) -> list[Handle[_Result]]:
        """Push many jobs in one transaction, which is faster than single pushes.

        The `calls` come from `bind`. If a job's unique key is in use, the handle is that of the job
        that has the key.
        """
        app, name = self.job.app, self.settings.queue
        queue, db = app.target(name)
        tr, arguments = db if self._tr is None else self._tr, self._arguments_of(calls)
        items: list[Item[Any]]
        if isinstance(queue, RemoteQueue) and not self.settings.after:
            items = queue.push_many(tr, **arguments, alert=self.alert)
        else:
            new = Members(app.queue(name), arguments, self.alert)  # which an app on a server lacks
            if self.settings.after:
                others = [(app.queue(each.queue), each.id) for each in self.settings.after]
                items = push_after(tr, new, others, self.settings.on_dead)
            else:
                items = new.push(tr, new.items())
        return [Handle(self.job, name, item.id, is_new=item.is_new) for item in items]

    def members(self, calls: Iterable[BoundJob[_Push, _Result]]) -> Members:
        """Return the pushes of these calls for a batch or a step."""
        self.check_member()
        return Members(self.job.app.queue(self.queue), self._arguments_of(calls), self.alert)

    def _arguments_of(self, calls: Iterable[BoundJob[_Push, _Result]]) -> dict[str, Any]:
        """Return the arguments of the queue's `push_many` for these calls."""
        settings, calls = self.settings, list(calls)
        arguments: dict[str, Any] = {"values": [call.value for call in calls]}
        arguments |= {name: getattr(settings, name) for name in _OF_EACH}
        if settings.unique not in (None, False):
            arguments["unique"] = map(self._key_of, calls)
            arguments |= {name: getattr(settings, name) for name in _SCOPE}
        if any(call.group is not None for call in calls):
            arguments["groups"] = [call.group for call in calls]
        return arguments

    def _key_of(self, call: BoundJob[_Push, _Result]) -> str | None:
        unique = self.settings.unique
        if unique is True:
            return self.job.arguments.key_of(call.stored.args, call.stored.kwargs)
        return unique if isinstance(unique, str) else call.unique


class Job(JobPusher[_Push, _Result], Generic[_Call, _Push, _Returned, _Result]):
    """A function that workers call for items of a queue; `App.job` makes it.

    It can still be called like the function.
    """

    def __init__(
        self,
        app: App,
        name: str,
        function: Callable[_Call, _Returned],
        version: int,
        settings: JobSettings,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.takes = supplied(function)
        if self.takes == "Transaction" and inspect.iscoroutinefunction(function):
            raise TypeError(f"{name}: a job that takes a transaction must be a plain function")
        self.app = app
        self.name = name
        self.function = function
        self.version = version
        self.aliases = aliases
        super().__init__(self, None, settings)
        self.arguments = Arguments(name, function, 1 if self.takes else 0, app.jobs)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def __call__(self, /, *args: _Call.args, **kwargs: _Call.kwargs) -> _Returned:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)

    def using(
        self,
        tr: Transactor | None = None,
        *,
        after: Handle[Any] | Iterable[Handle[Any]] | None = None,
        on_dead: OnDead | None = None,
        **options: Unpack[JobOptions],
    ) -> JobPusher[_Push, _Result]:
        """Return a way to push the job with options, or as part of a transaction.

        Args:
            tr: A transaction; `None` for the database of the app.
            after: Handles of jobs of this app that have to end before it is ready. Up to 100 jobs
                may follow one. Unknown jobs count as ended.
            on_dead: What happens if one of these dies, is cancelled or expires: `"cancel"`, the
                default, cancels the job once all have ended; `"continue"` lets it run.
            options: See `fdbqueue.options.JobOptions`; `unique=False` for no key.

        Raises:
            TypeError: `after` is not made of handles.
            ValueError: `after` is given with a delay or a time.
        """
        handles = None if after is None else _handles(after)
        return JobPusher(self, tr, self.settings.changed(options, after=handles, on_dead=on_dead))


def _handles(after: Any) -> list[Handle[Any]]:
    handles: list[Any] = [*after] if isinstance(after, Iterable) else [after]
    if not all(isinstance(each, Handle) for each in handles):
        raise TypeError(
            f"after must be a handle, as a push returns it, or a list of them, not {after!r}"
        )
    return handles
