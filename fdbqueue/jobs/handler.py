"""The handler of workers that run jobs: it finds and calls the function of an item."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any, TypeAlias

from fdbqueue.errors import unknown_job
from fdbqueue.jobs.arguments import Arguments
from fdbqueue.jobs.job import Job
from fdbqueue.jobs.retry import Retry, decided
from fdbqueue.types import Item, Transaction, stored_job
from fdbqueue.worker.context import Context
from fdbqueue.worker.functions.guards import InThisProcess
from fdbqueue.worker.invocation import Handler, Invocation
from fdbqueue.worker.outcomes import Dead, Spent
from fdbqueue.worker.telemetry import Log

_log = Log("fdbqueue.jobs")

Around: TypeAlias = Callable[[Context], AbstractContextManager[None]]
Lifespan: TypeAlias = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


class JobHandler(Handler):
    """Calls the functions of jobs by their names.

    A job with an unknown name or a newer version goes back without counting an attempt: after an
    upgrade, other workers may know it.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job[Any, Any, Any, Any]],
        middleware: Sequence[Around] = (),
        keep_unknown: float | None = None,
        lifespan: Lifespan = nullcontext,
        renew: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(renew)
        self._lifespan = lifespan
        self._state: Any = None
        self.keep_unknown = keep_unknown
        self._jobs = jobs
        policies = [job.settings.retry for job in jobs.values()]
        self.may_be_last = any(isinstance(each, Retry) and each.attempts == 1 for each in policies)
        self.results = partial(Arguments, jobs=jobs, kind="step")
        self._middleware = middleware
        self._unknown: set[tuple[str, int]] = set()

    @contextmanager
    def living(self) -> Generator[None]:
        """Enter the lifespan of the app."""
        with super().living():
            life = self._lifespan()
            if not isinstance(life, AbstractContextManager):
                life = self.coroutines.entered(life)
            with life as self._state:
                yield

    def unknown(self, item: Item[Any]) -> str | None:
        """Return why the item is left to other workers, or `None`."""
        stored = stored_job(item.value)
        if stored is None:
            return None
        job = self._jobs.get(stored.name)
        if job is not None and stored.version <= job.version:
            return None
        if (stored.name, stored.version) not in self._unknown:
            self._unknown.add((stored.name, stored.version))
            text = "this worker does not know the job %r in version %d, and leaves it to others; "
            known = ", ".join(sorted(self._jobs)) or "none"
            _log.warning(text + "it knows %s", stored.name, stored.version, known)
        return unknown_job(stored.name, stored.version)

    def call(self, context: Context) -> Invocation:
        """Return the call for a known job; raise `Dead` if the item is no job, or `Spent`."""
        value = context.item.value
        stored = stored_job(value)
        if stored is None:
            raise Dead('not a job, which is {"job": NAME, "args": [...], "kwargs": {...}}')
        job = self._jobs[stored.name]
        context.job, context.state = job.name, self._state
        policy = job.settings.retry
        if isinstance(policy, Retry):
            context.limit_attempts(policy.attempts)
            if policy.is_last(context.attempt - 1):
                raise Spent(context.attempt - 1)
        function = partial(_call, job, context, stored.args, stored.kwargs)
        decide = partial(decided, policy, context=context)
        takes_tr = job.takes == "Transaction"
        encode, timeout = job.arguments.encode_result, job.settings.timeout
        around = partial(self._entered, context) if self._middleware else nullcontext
        return Invocation(job.name, function, takes_tr, decide, encode, timeout, around, value)

    @contextmanager
    def _entered(self, context: Context) -> Generator[None]:
        with ExitStack() as stack:
            for around in self._middleware:
                with InThisProcess(context.job):
                    stack.enter_context(around(context))
            yield


def _call(
    job: Job[Any, Any, Any, Any],
    context: Context,
    args: list[Any],
    kwargs: dict[str, Any],
    tr: Transaction | None = None,
) -> object:
    given, named = job.arguments.decode(args, kwargs)
    first = {"Context": (context,), "Transaction": (tr,), "": ()}[job.takes]
    return job.function(*first, *given, **named)
