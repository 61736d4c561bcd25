"""The steps of a job, each of which is done once: what they do, in a thread or an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from concurrent import futures
from functools import partial
from typing import (
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import (
    InvalidValue,
    LeaseLost,
    PayloadTooLarge,
    TimedOut,
    error_classes,
    error_text,
)
from fdbqueue.layout.values import utc_time
from fdbqueue.queue.arguments import validate_key, validate_result, validate_seconds
from fdbqueue.queue.steps import ClaimedSteps, Signal, StepKind, StoredStep, is_over
from fdbqueue.types import Duration, Transaction
from fdbqueue.worker.outcomes import Dead, Outcome, RetryIn, Suspended, Tries, as_exception
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
_INTERRUPTIONS = (Suspended, asyncio.CancelledError, GeneratorExit)


class _Blocking(NamedTuple):
    """A call that waits for the database."""

    function: Callable[[], Any]


class _Own(NamedTuple):
    """A call of a function of the job, with the seconds that it may take."""

    function: Callable[[], Any]
    timeout: float | None


_Plan: TypeAlias = Generator[_Blocking | _Own, Any, _R]
"""A step, for a thread or an event loop to drive: it yields calls, and is sent their results."""


def drive(plan: _Plan[_R]) -> _R:
    """Run a step in this thread, and return its result."""
    step = partial(next, plan)
    while True:
        try:
            call = step()
        except StopIteration as end:
            result: _R = end.value
            return result
        try:
            returned = call.function() if isinstance(call, _Blocking) else _within(*call)
        except BaseException as error:
            step = partial(plan.throw, error)
        else:
            step = partial(plan.send, returned)


async def drive_async(plan: _Plan[_R]) -> _R:
    """Run a step in this event loop, and return its result."""
    step = partial(next, plan)
    while True:
        try:
            call = step()
        except StopIteration as end:
            result: _R = end.value
            return result
        try:
            if isinstance(call, _Blocking):
                returned = await asyncio.to_thread(call.function)
            else:
                returned = await _awaited_within(*call)
        except BaseException as error:
            step = partial(plan.throw, error)
        else:
            step = partial(plan.send, returned)


def _within(function: Callable[[], Any], timeout: float | None) -> Any:
    """Call a function; raise `TimedOut` if it takes longer, and leave it to its thread."""
    if timeout is None:
        returned = function()
    else:
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        run_here = partial(contextvars.copy_context().run, run)
        threading.Thread(target=run_here, name="fdbqueue-step", daemon=True).start()
        if not futures.wait([future], timeout).done:
            raise TimedOut(timeout)
        returned = future.result()
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("the function of a step is a coroutine function: await context.aio.step")
    return returned


async def _awaited_within(function: Callable[[], Any], timeout: float | None) -> Any:
    """Call a function or coroutine function; raise `TimedOut` if it takes longer."""
    returned = function()
    if not inspect.isawaitable(returned):
        return returned
    task = asyncio.ensure_future(returned)
    done, _ = await asyncio.wait([task], timeout=timeout)
    if not done:
        task.cancel()
        raise TimedOut(timeout or 0)
    return task.result()


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


class StepOptions(NamedTuple):
    """How a step is tried.

    Attributes:
        retry: When to try it again after an error; `None` to let the error end the step.
        timeout: The seconds that its function may take; `None` for no limit.
    """

    retry: Policy | None = None
    timeout: float | None = None


class Plans:
    """The steps of one attempt.

    Args:
        claimed: The steps of the job as they are stored.
        id: The id of the job.
        results: Converts the results of a function.
    """

    def __init__(
        self,
        claimed: ClaimedSteps,
        id: str,
        results: Callable[[str, Callable[..., Any]], Results],
    ) -> None:
        self._claimed = claimed
        self._results = results
        self._id = id
        self._names: set[str] = set()

    @property
    def is_suspended(self) -> bool:
        """True once the job has given up its claim."""
        return self._claimed.is_suspended

    def step(
        self, name: str, function: Callable[..., Any], call: Callable[[], Any], options: StepOptions
    ) -> _Plan[Any]:
        """Call a function unless the step is done; return the stored form of its result."""
        results = self._results(name, function)
        found = yield from self._found(name, _RESULTS)
        if found is None or found.state == "waiting":
            began_at = milliseconds()
            step = found or StoredStep("step", "waiting", began_at)
            try:
                returned = yield _Own(call, options.timeout)
            except (Outcome, LeaseLost, *_INTERRUPTIONS):
                raise
            except BaseException as error:
                raise (yield from self._failed(name, step, error, options.retry)) from error
            value = _stored(name, results, returned)
            found = step._replace(state="done", ended_at=milliseconds(), due=None, value=value)
            yield _Blocking(partial(self._claimed.store, name, found))
        return results.decode_result(json.loads(found.value))

    def commit(
        self,
        name: str,
        function: Callable[..., Any],
        call: Callable[[Transaction], Any],
        options: StepOptions,
    ) -> _Plan[Any]:
        """Run a function in the transaction that stores the step, unless the step is done."""
        results = self._results(name, function)
        done = yield from self._found(name, _RESULTS)
        if done is None or done.state == "waiting":
            step = done or StoredStep("commit", "waiting", milliseconds())
            tries = Tries()

            def body(tr: Transaction) -> bytes:
                tries.begin_try()
                try:
                    return _stored(name, results, call(tr))
                finally:
                    tries.end_try()

            try:
                done = yield _Blocking(partial(self._claimed.commit, name, body, step))
            except (Outcome, LeaseLost, *_INTERRUPTIONS):
                raise
            except error_classes():
                raise
            except BaseException as error:
                raise (yield from self._failed(name, step, error, options.retry)) from error
        assert done is not None
        return results.decode_result(json.loads(done.value))

    def sleep(self, name: str, duration: Duration) -> _Plan[None]:
        """Suspend the job for a time, unless that is over."""
        seconds = validate_seconds("duration", duration, below=_MAX_SECONDS)
        found = yield from self._found(name, ("sleep",))
        if found is None:
            now = milliseconds()
            step = StoredStep("sleep", "waiting", now, due=now + round(1000 * seconds))
            yield from self._suspend(name, step)
        elif found.state == "waiting":
            self._claimed.add(name, found._replace(state="done", ended_at=found.due))

    def wait(
        self, name: str, signal: str | None, key: str | None, timeout: Duration | None
    ) -> _Plan[Signal]:
        """Suspend the job until a signal has come, or the time is over."""
        signal = name if signal is None else signal
        key = self._id if key is None else key
        validate_key("the name of a signal", signal)
        validate_key("the key of a signal", key, may_be_empty=True)
        seconds = None
        if timeout is not None:
            seconds = validate_seconds("timeout", timeout, below=_MAX_SECONDS)
        found = yield from self._found(name, ("wait",))
        if found is None or found.state == "waiting":
            now = milliseconds()
            due = None if seconds is None else now + round(1000 * seconds)
            begun = StoredStep("wait", "waiting", now, due=due, key=key)
            found = yield _Blocking(partial(self._claimed.wait, name, begun, signal))
            if found is None:
                raise Suspended(name)
        if found.state == "timed out":
            raise WaitTimedOut(name, found.key)
        sent_at = utc_time(found.ended_at or 0)
        return Signal(signal, found.key, json.loads(found.value), sent_at)

    def run(self, children: Mapping[str, Child[Any]]) -> _Plan[list[Any]]:
        """Suspend the job until others have ended; return the result or the error of each.

        Args:
            children: The other jobs by the names of their steps.
        """
        for name in children:
            self._take_name(name)
        pushes = ChildPushes(self._claimed.owner, self._claimed.job, children)
        run = partial(self._claimed.run, pushes.names, pushes.batch, pushes.push)
        ended: list[StoredStep] | None = yield _Blocking(run)
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

    def _take_name(self, name: str) -> None:
        """Raise `DuplicateStep` if the job has come to another step of this name."""
        validate_key("the name of a step", name)
        if name in self._names:
            raise DuplicateStep(name)
        self._names.add(name)

    def _found(self, name: str, kinds: tuple[StepKind, ...]) -> _Plan[StoredStep | None]:
        """Return the stored step of this name, or `None`.

        Raises:
            DuplicateStep: The job has come to another step of this name.
            StepChanged: The stored step did something else.
            StepFailed: The step has failed, and an earlier run of the job went on all the same.
        """
        self._take_name(name)
        found: StoredStep | None = yield _Blocking(partial(self._claimed.find, name))
        if found is None:
            return None
        if found.kind not in kinds:
            raise StepChanged(name, found.kind, kinds[0])
        if found.state == "failed":
            raise StepFailed(name, found.error)
        if (
            found.state == "waiting"
            and found.kind != "wait"
            and not is_over(found.due, milliseconds())
        ):
            yield from self._suspend(name, found)
        return found

    def _suspend(self, name: str, step: StoredStep) -> _Plan[None]:
        yield _Blocking(partial(self._claimed.suspend, name, step))
        raise Suspended(name)

    def _failed(
        self, name: str, step: StoredStep, error: BaseException, retry: Policy | None
    ) -> _Plan[Exception]:
        """Suspend the job until the step is tried again, or return the error to raise.

        The failure is stored with the next step, if there is one: then the job has caught the
        error. Otherwise the next attempt tries the step again.
        """
        text = error_text(error) or ""
        failures = step.failures + 1
        now = milliseconds()
        failed = step._replace(failures=failures, error=text)
        outcome = None if retry is None else retry.decide(as_exception(error), failures)
        if isinstance(outcome, RetryIn):
            due = now + round(1000 * outcome.after)
            yield from self._suspend(name, failed._replace(due=due))
        self._claimed.add(name, failed._replace(state="failed", ended_at=now))
        return StepFailed(name, text)


def _stored(name: str, results: Results, returned: object) -> bytes:
    try:
        return validate_result(results.encode_result(returned)) or b"null"
    except (InvalidValue, PayloadTooLarge) as error:
        raise Dead(f"the result of the step {name}") from error
    except Exception as error:
        raise Dead(str(error)) from error  # another attempt would repeat the work in vain


class Stepper:
    """The steps of a job that call a function, each with the same options; see `Context.using`."""

    def __init__(self, plans: Plans, options: StepOptions) -> None:
        self._plans = plans
        self._options = options

    def step(
        self, name: str, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a function once, as `Context.step`."""
        call = partial(function, *args, **kwargs)
        result: _R = drive(self._plans.step(name, function, call, self._options))
        return result

    def commit(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, _P], _R],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Run a function in a transaction, as `Context.commit`."""

        def call(tr: Transaction) -> _R:
            return function(tr, *args, **kwargs)

        result: _R = drive(self._plans.commit(name, function, call, self._options))
        return result


class AioStepper:
    """The steps of a coroutine that call a function; see `Context.using`."""

    def __init__(self, plans: Plans, options: StepOptions) -> None:
        self._plans = plans
        self._options = options

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
        call = partial(function, *args, **kw)
        return await drive_async(self._plans.step(name, function, call, self._options))

    async def commit(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, _P], _R],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Run a plain function in a transaction, as `Context.commit`."""

        def call(tr: Transaction) -> _R:
            return function(tr, *args, **kwargs)

        plan = self._plans.commit(name, function, call, self._options)
        result: _R = await drive_async(plan)
        return result


class AioSteps(AioStepper):
    """The steps of a coroutine: await the methods of `Context`."""

    async def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the job for a time, as `Context.sleep`."""
        await drive_async(self._plans.sleep(name, duration))

    async def wait(
        self,
        name: str,
        *,
        signal: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Signal:
        """Suspend the job until a signal comes, as `Context.wait`."""
        return await drive_async(self._plans.wait(name, signal, key, timeout))

    async def run(
        self, name: str, job: ChildJob[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Run another job and return its result, as `Context.run`."""
        results = await drive_async(self._plans.run({name: job.bind(*args, **kwargs)}))
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

    async def gather(
        self, name: str, jobs: Iterable[Child[Any]], *, return_errors: bool = False
    ) -> list[Any]:
        """Run other jobs at the same time and return their results, as `Context.gather`."""
        results = await drive_async(self._plans.run(gathered(name, jobs)))
        return results if return_errors else first_error_or(results)

    def using(self, *, retry: Policy | None = None, timeout: Duration | None = None) -> AioStepper:
        """Return a way to run steps with options, as `Context.using`."""
        return AioStepper(self._plans, options_of(retry, timeout))


def options_of(retry: Policy | None, timeout: Duration | None) -> StepOptions:
    """Return the options of a step; raise an error for invalid ones."""
    if retry is not None and not hasattr(retry, "decide"):
        raise TypeError(f"retry is a policy, such as Retry(attempts=3), not {retry!r}")
    seconds = None
    if timeout is not None:
        seconds = validate_seconds("timeout", timeout, is_over=True, below=_MAX_SECONDS)
    return StepOptions(retry, seconds)
