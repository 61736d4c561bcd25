"""The steps of a job, each of which is done once, in a thread or in an event loop.

A step is a coroutine, whether the function of the job is one or not: what it waits for is done by
its `Caller`. In a thread the coroutine runs to its end at once.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import InvalidValue, LeaseLost, PayloadTooLarge, error_classes, error_text
from fdbqueue.layout.steps import StepKind, StoredStep, is_over
from fdbqueue.layout.values import utc_time
from fdbqueue.queue.arguments import validate_key, validate_result, validate_seconds
from fdbqueue.queue.steps import ClaimedSteps, Signal
from fdbqueue.types import Duration, Transaction
from fdbqueue.worker.functions.tries import Tries
from fdbqueue.worker.outcomes import Dead, Outcome, RetryIn, Suspended, as_exception
from fdbqueue.worker.steps.callers import Caller, finish
from fdbqueue.worker.steps.children import Child, ChildJob, ChildPushes, first_error_or, gathered
from fdbqueue.worker.steps.errors import (
    ChildFailed,
    DuplicateStep,
    StepChanged,
    StepFailed,
    WaitTimedOut,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MAX_SECONDS = 10**10
_RESULTS: tuple[StepKind, ...] = ("step", "commit")
_NO_FAILURES: tuple[type[BaseException], ...] = (
    *(Outcome, LeaseLost),
    *(Suspended, asyncio.CancelledError, GeneratorExit),
)


class Policy(Protocol):
    """When to try a step again; `fdbqueue.jobs.Retry` is one."""

    def decide(self, error: Exception, attempt: int) -> Outcome:
        """Return the outcome of the attempt with this number that failed with an error."""
        ...


class Results(Protocol):
    """The results of a function, and their JSON forms."""

    def encode_result(self, value: Any) -> Any:
        """Return the JSON form of a result."""
        ...

    def decode_result(self, stored: Any) -> Any:
        """Return a result, given its JSON form."""
        ...


class JsonResults:
    """Results that are JSON values.

    Args:
        name: The name of the step.
        function: The function.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        del name, function  # others convert by the annotations of the function

    def encode_result(self, value: Any) -> Any:
        """Return the result."""
        return value

    def decode_result(self, stored: Any) -> Any:
        """Return the result."""
        return stored


_Perform: TypeAlias = "Callable[[StoredStep, Callable[[object], bytes]], Awaitable[StoredStep]]"
"""Does a step that was begun, given what converts its result, and returns it done."""


@dataclass(eq=False)
class AttemptSteps:
    """The steps of one attempt: what is stored, and to which of them the job has come.

    Args:
        claimed: The steps of the job as they are stored.
        id: The id of the job.
        results: Converts the results of a function.
    """

    claimed: ClaimedSteps
    id: str
    results: Callable[[str, Callable[..., Any]], Results]
    _names: set[str] = field(default_factory=set[str])

    def take_name(self, name: str) -> None:
        """Raise `DuplicateStep` if the job has come to another step of this name."""
        validate_key("the name of a step", name)
        if name in self._names:
            raise DuplicateStep(name)
        self._names.add(name)


class AioStepper:
    """The steps of a coroutine that call a function; see `Context.using`.

    Args:
        attempt: The steps of the attempt.
        caller: Calls the functions.
        retry: When to try a step again after an error; `None` to let the error end the step.
        timeout: The seconds that its function may take; `None` for no limit.
    """

    def __init__(
        self,
        attempt: AttemptSteps,
        caller: Caller,
        retry: Policy | None = None,
        timeout: float | None = None,
    ) -> None:
        self._attempt = attempt
        self._claimed = attempt.claimed
        self._caller = caller
        self._retry = retry
        self._timeout = timeout

    @overload
    async def step(
        self,
        name: str,
        function: Callable[_P, Awaitable[_R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R: ...

    @overload
    async def step(
        self, name: str, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R: ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kw: Any) -> Any:
        """Call a function or coroutine function once, as `Context.step`."""

        async def perform(begun: StoredStep, encode: Callable[[object], bytes]) -> StoredStep:
            call = partial(_call, function, *args, **kw)
            value = encode(await self._caller.call(call, self._timeout))
            return begun._replace(state="done", ended_at=milliseconds(), due=None, value=value)

        return await self._once("step", name, function, perform)

    async def commit(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, _P], _R],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Run `function(tr, ...)` in the transaction that stores the step; return its result.

        What the function writes takes effect exactly once: data, pushes and signals. The
        transaction may run several times, so the function must not sleep, commit or create
        identities, and must end within five seconds. Errors and result are those of `step`.

        Args:
            name: The name of the step.
            function: The function.
            args: Its arguments after the transaction.
            kwargs: Its keyword arguments.
        """
        tries = Tries()

        async def perform(begun: StoredStep, encode: Callable[[object], bytes]) -> StoredStep:
            def body(tr: Transaction) -> bytes:
                tries.begin_try()
                try:
                    return encode(_call(function, tr, *args, **kwargs))
                finally:
                    tries.end_try()

            return await self._caller.wait_for(partial(self._claimed.commit, name, body, begun))

        result: _R = await self._once("commit", name, function, perform)
        return result

    async def _once(
        self, kind: StepKind, name: str, function: Callable[..., Any], perform: _Perform
    ) -> Any:
        """Perform a step unless it is done; return the result of its function."""
        results = self._attempt.results(name, function)
        step = await self._found(name, _RESULTS)
        if step is None or step.state == "waiting":
            begun = step or StoredStep(kind, "waiting", milliseconds())
            passed = _NO_FAILURES
            if kind == "commit":  # whose transaction is not the function's own
                passed += error_classes()
            try:
                step = await perform(begun, partial(_encoded, name, results))
            except passed:
                raise
            except BaseException as caught:
                error = caught.error if isinstance(caught, _Stopped) else caught
                raise (await self._failed(name, begun, error)) from error
            if kind == "step":
                await self._caller.wait_for(partial(self._claimed.store, name, step))
        return results.decode_result(json.loads(step.value))

    async def _found(self, name: str, kinds: tuple[StepKind, ...]) -> StoredStep | None:
        """Return the stored step of this name, or `None`; suspend the job until it is due.

        Raises:
            DuplicateStep: The job has come to another step of this name.
            StepChanged: The stored step did something else.
            StepFailed: The step has failed, and an earlier run of the job went on all the same.
        """
        self._attempt.take_name(name)
        found = await self._caller.wait_for(partial(self._claimed.find, name))
        if found is None:
            return None
        if found.kind not in kinds:
            raise StepChanged(name, found.kind, kinds[0])
        if found.state == "failed":
            raise StepFailed(name, found.error)
        waits = found.state == "waiting" and found.kind != "wait"
        if waits and not is_over(found.due, milliseconds()):
            await self._suspend(name, found)
        return found

    async def _suspend(self, name: str, step: StoredStep) -> None:
        await self._caller.wait_for(partial(self._claimed.suspend, name, step))
        raise Suspended(name)

    async def _failed(self, name: str, step: StoredStep, error: BaseException) -> Exception:
        """Suspend the job until the step is tried again, or return the error to raise.

        The failure is stored with the next step, if there is one: then the job has caught the
        error. Otherwise the next attempt tries the step again.
        """
        text = error_text(error) or ""
        now, retry = milliseconds(), self._retry
        failed = step._replace(failures=step.failures + 1, error=text)
        outcome = None if retry is None else retry.decide(as_exception(error), failed.failures)
        if isinstance(outcome, RetryIn):
            await self._suspend(name, failed._replace(due=now + round(1000 * outcome.after)))
        self._claimed.add(name, failed._replace(state="failed", ended_at=now))
        return StepFailed(name, text)


class AioSteps(AioStepper):
    """The steps of a coroutine: await the methods of `Context`."""

    async def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the job for a time: no worker is held, and no attempt is counted.

        Args:
            name: The name of the step.
            duration: How long the job sleeps at least, from the first time that it comes here.
        """
        seconds = validate_seconds("duration", duration, below=_MAX_SECONDS)
        found = await self._found(name, ("sleep",))
        if found is None:
            now = milliseconds()
            step = StoredStep("sleep", "waiting", now, due=now + round(1000 * seconds))
            await self._suspend(name, step)
        elif found.state == "waiting":
            self._claimed.add(name, found._replace(state="done", ended_at=found.due))

    async def wait(
        self,
        name: str,
        *,
        signal: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Signal:
        """Suspend the job until a signal comes: no worker is held, and no attempt is counted.

        A signal that was sent before counts as well, while it is kept. The wait ends either with
        a signal or with the time-out, whichever is committed first, and remains so.

        Args:
            name: The name of the step, and of the signal unless `signal` is given.
            signal: The name of the signal.
            key: The key of the signal; by default the id of the job.
            timeout: How long to wait at most; `None` for no limit.

        Raises:
            WaitTimedOut: No signal has come in time.
        """
        signal = name if signal is None else signal
        key = self._attempt.id if key is None else key
        validate_key("the name of a signal", signal)
        validate_key("the key of a signal", key, may_be_empty=True)
        seconds = None
        if timeout is not None:
            seconds = validate_seconds("timeout", timeout, below=_MAX_SECONDS)
        found = await self._found(name, ("wait",))
        if found is None or found.state == "waiting":
            now = milliseconds()
            due = None if seconds is None else now + round(1000 * seconds)
            begun = StoredStep("wait", "waiting", now, due=due, key=key)
            found = await self._caller.wait_for(partial(self._claimed.wait, name, begun, signal))
            if found is None:
                raise Suspended(name)
        if found.state == "timed out":
            raise WaitTimedOut(name, found.key)
        sent_at = utc_time(found.ended_at or 0)
        return Signal(signal, found.key, json.loads(found.value), sent_at)

    async def run(
        self, name: str, job: ChildJob[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Push another job, suspend this one until that has ended, and return its result.

        The other job is pushed in the transaction that stores the step, and its result is stored in
        the step by the transaction that ends it. It may be in the same queue: no worker is held.
        Its attempts, delays and time-outs are its own. If this job is cancelled, it runs all the
        same.

        Args:
            name: The name of the step.
            job: The job, or what its `using` returned, without a transaction.
            args: The arguments of its function, by position.
            kwargs: The arguments of its function, by name.

        Raises:
            ChildFailed: The other job has died, was discarded or cancelled, or has expired.
            ChildNotPushed: An unfinished job has its unique key.
            InvalidArguments: The function does not take these arguments.
            QueueFull: Its queue is full.

        Example:
            >>> from fdbqueue.jobs import App, Context
            >>> app = App("memory:")
            >>> @app.job(name="square")
            ... def square(number: int) -> int:
            ...     return number * number
            >>> @app.job(name="sum")
            ... def sum_of_squares(context: Context, numbers: list[int]) -> int:
            ...     one = context.run("one", square, 1)
            ...     return one + sum(context.gather("squares", map(square.bind, numbers)))
            >>> handle = sum_of_squares.push([2, 3])
            >>> _ = app.work(drain=True)
            >>> handle.result()
            14
        """
        results = await self._run({name: job.bind(*args, **kwargs)})
        result: _R = first_error_or(results)[0]
        return result

    @overload
    async def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[False] = False
    ) -> list[_R]: ...

    @overload
    async def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: Literal[True]
    ) -> list[_R | ChildFailed]: ...

    @overload
    async def gather(
        self, name: str, jobs: Iterable[Child[_R]], *, return_errors: bool
    ) -> list[Any]: ...

    async def gather(
        self, name: str, jobs: Iterable[Child[Any]], *, return_errors: bool = False
    ) -> list[Any]:
        """Run other jobs at the same time and return their results, as `Context.gather`."""
        results = await self._run(gathered(name, jobs))
        return results if return_errors else first_error_or(results)

    async def _run(self, children: Mapping[str, Child[Any]]) -> list[Any]:
        """Suspend the job until others have ended; return the result or the error of each.

        Args:
            children: The other jobs by the names of their steps.
        """
        for name in children:
            self._attempt.take_name(name)
        pushes = ChildPushes(self._claimed.owner, self._claimed.job, children)
        run = partial(self._claimed.run, pushes.names, pushes.batch, pushes.push)
        ended = await self._caller.wait_for(run)
        if ended is None:
            raise Suspended(next(iter(children)))
        results: list[Any] = []
        for (name, child), step in zip(children.items(), ended):
            if step.kind != "run":
                raise StepChanged(name, step.kind, "run")
            if step.state == "failed":
                results.append(ChildFailed(name, step.error, step.key))
            else:
                results.append(child.decode_result(json.loads(step.value)))
        return results

    def using(self, *, retry: Policy | None = None, timeout: Duration | None = None) -> AioStepper:
        """Return a way to run steps with options, as `Context.using`."""
        if retry is not None and not hasattr(retry, "decide"):
            raise TypeError(f"retry is a policy, such as Retry(attempts=3), not {retry!r}")
        if timeout is not None:
            timeout = validate_seconds("timeout", timeout, is_over=True, below=_MAX_SECONDS)
        return AioStepper(self._attempt, self._caller, retry, timeout)


def in_thread(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Any, _P], _R]:
    """Return the method that does in the thread of its job what a method of `AioSteps` does."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return finish(method(self._steps, *args, **kwargs))

    update_wrapper(call, method)
    return call


class Stepper(ABC):
    """The steps of a job that call a function, as `Context` or `Context.using` offers them."""

    @property
    @abstractmethod
    def _steps(self) -> AioStepper:
        """The same, as coroutines that `finish` runs."""

    def step(
        self, name: str, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a function, unless the step is done; return its result.

        The function runs at least once, and not again once its result is stored. The result is
        converted to JSON and back by the return annotation of the function, also the first time.

        If the function raises an exception, the call raises `StepFailed`. A job that catches it and
        goes on finds the same failure if it runs again; if the attempt fails, the next one tries
        the step again. The outcomes `Snooze`, `RetryIn`, `Discard` and `Dead` end the attempt.

        Args:
            name: The name of the step, text of 1 to 255 bytes.
            function: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            DuplicateStep: The job has come to another step of this name.
            StepFailed: The function has raised an exception.
            Dead: The result does not fit the annotation, is not JSON, or has more than 90,000
                bytes.
            TooManySteps: The job has 10,000 steps.
            LeaseLost: Another worker may have the job.
        """
        return finish(self._steps.step(name, function, *args, **kwargs))

    commit = in_thread(AioStepper.commit)


class StepperWithOptions(Stepper):
    """The steps of a job with options, as `Context.using` returns them."""

    def __init__(self, steps: AioStepper) -> None:
        self._given = steps

    @property
    def _steps(self) -> AioStepper:
        return self._given


class _Stopped(Exception):
    """Stands for a `StopIteration` of the function, which no coroutine or future may raise."""

    def __init__(self, error: StopIteration) -> None:
        self.error = error


def _call(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise _Stopped(error) from None


def _encoded(name: str, results: Results, returned: object) -> bytes:
    try:
        return validate_result(results.encode_result(returned)) or b"null"
    except (InvalidValue, PayloadTooLarge) as error:
        raise Dead(f"the result of the step {name}") from error
    except Exception as error:
        raise Dead(str(error)) from error  # another attempt would repeat the work in vain
