"""The steps of a job, each of which is done once."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from fdbqueue.database.clock import milliseconds, uuids
from fdbqueue.errors import (
    InvalidValue,
    LeaseLost,
    PayloadTooLarge,
    error_classes,
    error_text,
)
from fdbqueue.layout.jobs import JobCancelled, StepKind, StoredStep, is_over
from fdbqueue.layout.values import utc_time
from fdbqueue.queue.arguments import MAX_SECONDS, validate_key, validate_result, validate_seconds
from fdbqueue.queue.steps import ClaimedSteps, Signal, Suspended
from fdbqueue.types import Duration, Transaction
from fdbqueue.worker.functions.guards import Tries
from fdbqueue.worker.outcomes import (
    ChildFailed,
    ChildNotPushed,
    Dead,
    Outcome,
    RetryIn,
    StepChanged,
    StepFailed,
    WaitTimedOut,
    as_exception,
)

if TYPE_CHECKING:
    from fdbqueue.queue.base import BaseQueue
    from fdbqueue.queue.batches import Members

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)

_MAX_GATHERED = 1_000
_RESULTS: tuple[StepKind, ...] = ("step", "commit")
_NO_FAILURES: tuple[type[BaseException], ...] = (
    *(Outcome, LeaseLost),
    *(Suspended, JobCancelled, asyncio.CancelledError, GeneratorExit),
)


class Policy(Protocol):
    """When to try a step again; `fdbqueue.jobs.Retry` is one."""

    def decide(self, error: Exception, attempt: int) -> Outcome:
        """Return the outcome of a failed attempt."""
        ...


class Results:
    """A function's results and their JSON forms: the same, unless a subclass converts."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        del name, function  # a subclass converts by the annotations of the function

    def encode_result(self, value: Any) -> Any:
        """Return the JSON form of a result."""
        return value

    def decode_result(self, stored: Any) -> Any:
        """Return a result, given its JSON form."""
        return stored


class Child(Protocol[_R_co]):
    """A job with its arguments; `Job.bind` returns one."""

    @property
    def members(self) -> Members:
        """The item to push."""
        ...

    def decode_result(self, stored: Any) -> _R_co:
        """Return its result, given the JSON form."""
        ...


class ChildJob(Protocol[_P, _R_co]):
    """A job, perhaps with options of its push."""

    def bind(self, /, *args: _P.args, **kwargs: _P.kwargs) -> Child[_R_co]:
        """Return it with arguments."""
        ...


class Stepper:
    """The steps of a job that call a function.

    Args:
        claimed: The stored steps.
        results: Returns how the results of a step's function are converted.
        retry: When to try a failed step again.
    """

    def __init__(
        self,
        claimed: ClaimedSteps,
        results: Callable[[str, Callable[..., Any]], Results],
        retry: Policy | None = None,
    ) -> None:
        self._claimed = claimed
        self._results = results
        self._retry = retry

    def step(
        self, name: str, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a function, unless the step is done; return its result.

        The function runs at least once, and not again once its result is stored. The result is
        converted to JSON and back by the return annotation, also the first time.

        An exception of the function raises `StepFailed`. A job that catches it finds the same
        failure when it runs again; otherwise the next attempt tries the step again. An outcome,
        such as `Snooze`, ends the attempt.

        The name of a step is text of 1 to 255 bytes.

        Raises:
            DuplicateStep: The job has come to another step of this name.
            StepFailed: The function has raised an exception.
            Dead: The result does not fit the annotation, is not JSON, or exceeds 90,000 bytes.
            JobCancelled: The job is cancelled. Every kind of step raises it, once in an attempt.
            TooManySteps: The job has 10,000 steps.
            LeaseLost: Another worker may have the job; nothing is stored.
        """
        step, results = self._begun("step", name, function)
        if step.state != "done":
            with self._failing(name, step):
                returned = function(*args, **kwargs)
                if inspect.iscoroutine(returned):
                    returned.close()
                    raise TypeError(
                        "the function of a step is a coroutine function: await context.aio.step"
                    )
                value = _encoded(name, results, returned)
            step = self._claimed.store(name, step, value)
        result: _R = results.decode_result(json.loads(step.value))
        return result

    def commit(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, _P], _R],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Run `function(tr, ...)` in the transaction that stores the step; return its result.

        Its writes take effect exactly once: data, pushes and signals. The function is as for
        `fdbqueue.transactional`, and must end within five seconds. Errors and result are as for
        `step`.
        """
        step, results = self._begun("commit", name, function)
        tries = Tries()

        def body(tr: Transaction) -> bytes:
            with tries.trying():
                return _encoded(name, results, function(tr, *args, **kwargs))

        if step.state != "done":
            # The transaction is not the function's own, so its errors are none of the step.
            with self._failing(name, step, *error_classes()):
                step = self._claimed.commit(name, body, step)
        result: _R = results.decode_result(json.loads(step.value))
        return result

    def _begun(
        self, kind: StepKind, name: str, function: Callable[..., Any]
    ) -> tuple[StoredStep, Results]:
        results = self._results(name, function)
        step = self._found(name, _RESULTS)
        return step or StoredStep(kind, "waiting", milliseconds()), results

    @contextmanager
    def _failing(
        self, name: str, step: StoredStep, *passed: type[BaseException]
    ) -> Generator[None]:
        """Make each error a failure of the step, except for outcomes and `passed` errors."""
        try:
            yield
        except (*_NO_FAILURES, *passed):
            raise
        except BaseException as error:
            raise self._failed(name, step, error) from error

    def _found(self, name: str, kinds: tuple[StepKind, ...]) -> StoredStep | None:
        """Return the stored step of this name, or `None`; suspend the job until it is due."""
        found = self._claimed.find(name)
        if found is None:
            return None
        if found.kind not in kinds:
            raise StepChanged(name, found.kind, kinds[0])
        if found.state == "failed":
            raise StepFailed(name, found.error)
        waits = found.state == "waiting" and found.kind != "wait"
        if waits and not is_over(found.due, milliseconds()):
            self._claimed.suspend(name, found)
        return found

    def _failed(self, name: str, step: StoredStep, error: BaseException) -> Exception:
        """Suspend the job until the step is tried again, or return the error to raise.

        The next step, which shows that the job has caught the error, stores the failure, too.
        """
        text = error_text(error) or ""
        now, retry = milliseconds(), self._retry
        failed = step._replace(failures=step.failures + 1, error=text)
        outcome = None if retry is None else retry.decide(as_exception(error), failed.failures)
        if isinstance(outcome, RetryIn):
            self._claimed.suspend(name, failed._replace(due=now + round(1000 * outcome.after)))
        self._claimed.add(name, failed._replace(state="failed", ended_at=now))
        return StepFailed(name, text)


class Steps(Stepper):
    """The steps of a job, as `Context` offers them."""

    def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the job for a time.

        The duration, a minimum, counts from when the job first comes here.
        """
        seconds = validate_seconds("duration", duration, below=MAX_SECONDS)
        found = self._found(name, ("sleep",))
        if found is None:
            now = milliseconds()
            step = StoredStep("sleep", "waiting", now, due=now + round(1000 * seconds))
            self._claimed.suspend(name, step)
        elif found.state == "waiting":
            self._claimed.add(name, found._replace(state="done", ended_at=found.due))

    def wait(
        self,
        name: str,
        *,
        signal: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Signal:
        """Suspend the job until a signal comes. An earlier signal counts while it is kept.

        By default, the signal has the name of the step, its key is the id of the job, and there is
        no time-out.

        Raises:
            WaitTimedOut: No signal has come in time; later ones do not change that.
        """
        signal = name if signal is None else signal
        key = self._claimed.id if key is None else key
        validate_key("the name of a signal", signal)
        validate_key("the key of a signal", key, may_be_empty=True)
        seconds = None
        if timeout is not None:
            seconds = validate_seconds("timeout", timeout, below=MAX_SECONDS)
        found = self._found(name, ("wait",))
        if found is None or found.state == "waiting":
            now = milliseconds()
            due = None if seconds is None else now + round(1000 * seconds)
            begun = StoredStep("wait", "waiting", now, due=due, key=key)
            found = self._claimed.wait(name, begun, signal)
        if found.state == "timed out":
            raise WaitTimedOut(name, found.key)
        sent_at = utc_time(found.ended_at or 0)
        return Signal(signal, found.key, json.loads(found.value), sent_at)

    def run(self, name: str, job: ChildJob[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Push another job, suspend this one until that has ended, and return its result.

        The other job is pushed once. It runs also if this job is cancelled, unless
        `cancel(children=True)` cancels both.

        `job` is a job, or what its `using` returned.

        Raises:
            ChildFailed: The other job has failed.
            ChildNotPushed: An unfinished job has its unique key.
            InvalidArguments: The function does not take these arguments.
            QueueFull: Its queue is full.

        Example:
            >>> from fdbqueue.jobs import App, Context
            >>> app = App("memory:")
            >>> @app.job()
            ... def square(number: int) -> int:
            ...     return number * number
            >>> @app.job()
            ... def total(context: Context) -> int:
            ...     return context.run("first", square, 3) + context.run("second", square, 4)
            >>> handle = total.push()
            >>> _ = app.work(drain=True)
            >>> handle.result()
            25
        """
        result: _R
        (result,) = self._run({name: job.bind(*args, **kwargs)})
        return result

    @overload
    def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[False] = False
    ) -> list[_R]: ...

    @overload
    def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[True]
    ) -> list[_R | ChildFailed]: ...

    def gather(
        self, name: str, jobs: Iterable[Child[Any]], *, return_errors: bool = False
    ) -> list[Any]:
        """Run up to 1,000 other jobs at the same time, as `run`; return their results in order.

        The jobs come from `Job.bind`, and their steps are `f"{name} 0"`, `f"{name} 1"` and so on.
        `return_errors` returns errors in the list instead of raising one.

        Raises:
            ChildFailed: One of the jobs has failed; all have ended.
        """
        children = {f"{name} {number}": job for number, job in enumerate(jobs)}
        if len(children) > _MAX_GATHERED:
            raise ValueError(
                f"gather runs up to {_MAX_GATHERED:,} jobs, not {len(children):,}; push a batch of "
                "them, whose last one sends a signal to this job"
            )
        return self._run(children, return_errors=return_errors)

    def _run(self, children: Mapping[str, Child[Any]], *, return_errors: bool = False) -> list[Any]:
        claimed = self._claimed
        (batch,) = uuids(1)

        @cache  # each try pushes the same items
        def new(name: str) -> tuple[Members, Any]:
            members = children[name].members
            return members, claimed.child(members, batch, name)

        def push(tr: Transaction, names: list[str]) -> dict[str, tuple[bytes, str]]:
            of_queue: dict[BaseQueue[Any], list[str]] = {}
            for name in names:
                of_queue.setdefault(new(name)[0].queue, []).append(name)
            pushed: dict[str, tuple[bytes, str]] = {}
            for queue, some in of_queue.items():
                items = new(some[0])[0].push(tr, [new(name)[1] for name in some])
                for name, item in zip(some, items):
                    if not item.is_new:
                        raise ChildNotPushed(name, item.id)
                    pushed[name] = queue.subspace.key(), item.id
            return pushed

        ended = claimed.run([*children], batch, push)
        for name, step in ended.items():
            if step.kind != "run":
                raise StepChanged(name, step.kind, "run")
        results: list[Any] = []
        for name, step in ended.items():
            if step.state != "failed":
                results.append(children[name].decode_result(json.loads(step.value)))
            elif return_errors:
                results.append(ChildFailed(name, step.error, step.key))
            else:
                raise ChildFailed(name, step.error, step.key)
        return results

    def using(self, *, retry: Policy | None = None) -> Stepper:
        """Return a way to run steps with options.

        Args:
            retry: When to try a failed step again. Meanwhile the job is suspended.
        """
        if retry is not None and not hasattr(retry, "decide"):
            raise TypeError(f"retry is a policy, such as Retry(attempts=3), not {retry!r}")
        return Stepper(self._claimed, self._results, retry)


def _awaited(
    method: Callable[Concatenate[Any, _P], _R],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]:
    """Return a coroutine method that calls a method in another thread."""

    async def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.to_thread(method, self._steps, *args, **kwargs)

    update_wrapper(call, method)
    return call


class AioStepper:
    """The steps of a coroutine that call a function."""

    def __init__(self, steps: Stepper) -> None:
        self._steps: Any = steps

    @overload
    async def step(
        self,
        name: str,
        function: Callable[_P, Coroutine[Any, Any, _R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R: ...

    @overload
    async def step(
        self, name: str, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R: ...

    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function or coroutine function once, as `Context.step`."""
        steps = self._steps
        step, results = await asyncio.to_thread(steps._begun, "step", name, function)
        if step.state != "done":
            try:
                returned = function(*args, **kwargs)
                if inspect.isawaitable(returned):
                    returned = await returned
                value = _encoded(name, results, returned)
            except _NO_FAILURES:
                raise
            except BaseException as error:
                raise await asyncio.to_thread(steps._failed, name, step, error) from error
            step = await asyncio.to_thread(steps._claimed.store, name, step, value)
        return results.decode_result(json.loads(step.value))

    commit = _awaited(Stepper.commit)


class AioSteps(AioStepper):
    """The steps of a coroutine: await the methods of `Context`."""

    sleep = _awaited(Steps.sleep)

    wait = _awaited(Steps.wait)

    run = _awaited(Steps.run)

    @overload
    async def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[False] = False
    ) -> list[_R]: ...

    @overload
    async def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[True]
    ) -> list[_R | ChildFailed]: ...

    async def gather(
        self, name: str, jobs: Iterable[Child[Any]], *, return_errors: bool = False
    ) -> list[Any]:
        """Run other jobs at the same time, as `Context.gather`."""
        gather: Any = self._steps.gather
        return await asyncio.to_thread(gather, name, jobs, return_errors=return_errors)

    def using(self, *, retry: Policy | None = None) -> AioStepper:
        """Return a way to run steps with options, as `Context.using`."""
        return AioStepper(self._steps.using(retry=retry))


def _encoded(name: str, results: Results, returned: object) -> bytes:
    try:
        return validate_result(results.encode_result(returned)) or b"null"
    except (InvalidValue, PayloadTooLarge) as error:
        raise Dead(f"the result of the step {name}") from error
    except Exception as error:
        raise Dead(str(error)) from error  # another attempt would repeat the work in vain
