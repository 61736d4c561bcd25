"""The context of a job: its attempt, and its steps, each of which is done once."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent import futures
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, overload

from fdbqueue.database.clock import milliseconds
from fdbqueue.errors import LeaseLost, TimedOut, error_classes, error_text
from fdbqueue.jobs.arguments import Arguments
from fdbqueue.jobs.errors import DuplicateStep, StepChanged, StepFailed, WaitTimedOut
from fdbqueue.jobs.retry import Retry
from fdbqueue.layout.values import utc_time
from fdbqueue.queue.arguments import validate_key, validate_result, validate_seconds
from fdbqueue.queue.steps import ClaimedSteps, StoredStep, is_over
from fdbqueue.types import Duration, Signal, StepKind, Transaction
from fdbqueue.worker.context import Context as WorkerContext
from fdbqueue.worker.outcomes import Outcome, RetryIn, Suspended

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MAX_SECONDS = 10**10
_RESULTS: tuple[StepKind, ...] = ("step", "commit")


class _Blocking(NamedTuple):
    """A call that waits for the database."""

    function: Callable[[], Any]


class _Own(NamedTuple):
    """A call of a function of the job, with the seconds that it may take."""

    function: Callable[[], Any]
    timeout: float | None


_Plan: TypeAlias = Generator[_Blocking | _Own, Any, _R]
"""A step, for a thread or an event loop to drive: it yields calls, and is sent their results."""


def _drive(plan: _Plan[_R]) -> _R:
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


async def _drive_async(plan: _Plan[_R]) -> _R:
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


class _Options(NamedTuple):
    """How a step is tried.

    Attributes:
        retry: When to try it again after an error; `None` to let the error end the step.
        timeout: The seconds that its function may take; `None` for no limit.
    """

    retry: Retry | None = None
    timeout: float | None = None


class _Plans:
    """The steps of one attempt.

    Args:
        claimed: The steps of the job as they are stored.
        id: The id of the job.
    """

    def __init__(self, claimed: ClaimedSteps, id: str) -> None:
        self._claimed = claimed
        self._id = id
        self._names: set[str] = set()

    @property
    def is_suspended(self) -> bool:
        """True once the job has given up its claim."""
        return self._claimed.is_suspended

    def step(
        self, name: str, function: Callable[..., Any], call: Callable[[], Any], options: _Options
    ) -> _Plan[Any]:
        """Call a function unless the step is done; return the stored form of its result."""
        results = Arguments(name, function)
        found = yield from self._found(name, _RESULTS)
        if found is None or found.state == "waiting":
            began_at = milliseconds()
            step = found or StoredStep("step", "waiting", began_at)
            try:
                returned = yield _Own(call, options.timeout)
            except Exception as error:
                yield from self._fail(name, step, error, options.retry)
            value = _stored(results, returned)
            found = step._replace(state="done", ended_at=milliseconds(), due=None, value=value)
            yield _Blocking(partial(self._claimed.store, name, found))
        return results.decode_result(json.loads(found.value))

    def commit(
        self,
        name: str,
        function: Callable[..., Any],
        call: Callable[[Transaction], Any],
        options: _Options,
    ) -> _Plan[Any]:
        """Run a function in the transaction that stores the step, unless the step is done."""
        results = Arguments(name, function)
        found = yield from self._found(name, _RESULTS)
        if found is None or found.state == "waiting":
            step = found or StoredStep("commit", "waiting", milliseconds())

            def body(tr: Transaction) -> bytes:
                return _stored(results, call(tr))

            try:
                found = yield _Blocking(partial(self._claimed.commit, name, body, step))
            except error_classes():
                raise
            except Exception as error:
                yield from self._fail(name, step, error, options.retry)
        return results.decode_result(json.loads(found.value))

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

    def _found(self, name: str, kinds: tuple[StepKind, ...]) -> _Plan[StoredStep | None]:
        """Return the stored step of this name, or `None`.

        Raises:
            DuplicateStep: The job has come to another step of this name.
            StepChanged: The stored step did something else.
            StepFailed: The step has failed, and an earlier run of the job went on all the same.
        """
        validate_key("the name of a step", name)
        if name in self._names:
            raise DuplicateStep(name)
        self._names.add(name)
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

    def _fail(
        self, name: str, step: StoredStep, error: Exception, retry: Retry | None
    ) -> _Plan[None]:
        """Suspend the job until the step is tried again, or raise `StepFailed`.

        The failure is stored with the next step, if there is one: then the job has caught the
        error. Otherwise the next attempt tries the step again.
        """
        if isinstance(error, (Outcome, LeaseLost)):
            raise error
        text = error_text(error) or ""
        failures = step.failures + 1
        now = milliseconds()
        failed = step._replace(failures=failures, error=text)
        outcome = None if retry is None else retry.decide(error, failures)
        if isinstance(outcome, RetryIn):
            due = now + round(1000 * outcome.after)
            yield from self._suspend(name, failed._replace(due=due))
        self._claimed.add(name, failed._replace(state="failed", ended_at=now))
        raise StepFailed(name, text) from error


def _stored(results: Arguments, returned: object) -> bytes:
    return validate_result(results.encode_result(returned)) or b"null"


class Stepper:
    """The steps of a job that call a function, each with the same options; see `Context.using`."""

    def __init__(self, plans: _Plans, options: _Options) -> None:
        self._plans = plans
        self._options = options

    def step(
        self, name: str, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a function once, as `Context.step`."""
        call = partial(function, *args, **kwargs)
        result: _R = _drive(self._plans.step(name, function, call, self._options))
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

        result: _R = _drive(self._plans.commit(name, function, call, self._options))
        return result


class AioStepper:
    """The steps of a coroutine that call a function; see `Context.using`."""

    def __init__(self, plans: _Plans, options: _Options) -> None:
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
        return await _drive_async(self._plans.step(name, function, call, self._options))

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
        result: _R = await _drive_async(plan)
        return result


class AioSteps(AioStepper):
    """The steps of a coroutine: await the methods of `Context`."""

    async def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the job for a time, as `Context.sleep`."""
        await _drive_async(self._plans.sleep(name, duration))

    async def wait(
        self,
        name: str,
        *,
        signal: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Signal:
        """Suspend the job until a signal comes, as `Context.wait`."""
        return await _drive_async(self._plans.wait(name, signal, key, timeout))

    def using(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> AioStepper:
        """Return a way to run steps with options, as `Context.using`."""
        return AioStepper(self._plans, _options(retry, timeout))


class Context(WorkerContext):
    """An attempt at a job, and the steps of the job.

    A step is done once: its result is stored under the claim of the job, before the call returns.
    If the process dies, or the job sleeps or waits, the function of the job runs again from the
    top, and steps that are done return what they have stored. So a job takes days, survives its
    processes, and holds no worker while it waits. Code between steps runs again each time.

    - The name of a step is unique within the job. A step in a loop has the key of the loop in its
      name: `context.step(f"charge {order}", ...)`.
    - A worker that has lost its claim stores no step: the call raises `LeaseLost`.
    - To suspend a job, its worker raises `Suspended`, which is a `BaseException`.
    - A job has up to 10,000 steps. They are deleted with its item.

    In a coroutine, await the same methods of `aio`. The class has all attributes of the context of
    a `Worker`, and more.

    Cost: a transaction for each step that is not done, with two reads and four writes; before it,
    another one reads whether the step is done, unless all stored steps of the job have been read.

    Attributes:
        aio: The steps of a coroutine.

    Example:
        >>> from fdbqueue.jobs import App, Context
        >>> app = App("memory:")
        >>> @app.job(name="fulfil")
        ... def fulfil(context: Context, order: str) -> str:
        ...     charge = context.step("charge", lambda: {"paid": order})
        ...     parcel = context.wait("shipped", key=order, timeout="3d")
        ...     return parcel.value["tracking"]
        >>> handle = fulfil.push("order 7")
        >>> app.work(drain=True)  # the job has paid, and waits
        WorkerReport(done=0, failed=0, lost=0)
        >>> app.signal(app.db, "shipped", key="order 7", value={"tracking": "1Z999"})
        1
        >>> app.work(drain=True)
        WorkerReport(done=1, failed=0, lost=0)
        >>> handle.result()
        '1Z999'
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        plans = _Plans(self._begin_steps(lambda: self.report), self.item.id)
        self._plans = plans
        self.aio = AioSteps(plans, _Options())

    @property
    def is_suspended(self) -> bool:
        """True once the job has given up its claim, to go on later."""
        return self._plans.is_suspended

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
            InvalidArguments: The result does not fit the annotation, or is not JSON.
            PayloadTooLarge: The result has more than 90,000 bytes.
            TooManySteps: The job has 10,000 steps.
            LeaseLost: Another worker may have the job.
        """
        return Stepper(self._plans, _Options()).step(name, function, *args, **kwargs)

    def commit(
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
        return Stepper(self._plans, _Options()).commit(name, function, *args, **kwargs)

    def using(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> Stepper:
        """Return a way to run steps with options.

        Args:
            retry: When to try a step again after an error. The job is suspended meanwhile: no
                worker is held, and no attempt of the job is counted.
            timeout: The time after which a step has failed with `TimedOut`. A coroutine is
                cancelled. A function goes on in a thread of its own, because Python cannot end it.

        Example:
            >>> from fdbqueue.jobs import App, Context, Retry
            >>> app = App("memory:")
            >>> @app.job(name="pay")
            ... def pay(context: Context) -> int:
            ...     careful = context.using(retry=Retry(attempts=5, first="10s"), timeout="30s")
            ...     return careful.step("charge", lambda: 42)
            >>> handle = pay.push()
            >>> _ = app.work(drain=True)
            >>> handle.result()
            42
        """
        return Stepper(self._plans, _options(retry, timeout))

    def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the job for a time: no worker is held, and no attempt is counted.

        Args:
            name: The name of the step.
            duration: How long the job sleeps at least, from the first time that it comes here.
        """
        _drive(self._plans.sleep(name, duration))

    def wait(
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
        return _drive(self._plans.wait(name, signal, key, timeout))


def _options(retry: Retry | None, timeout: Duration | None) -> _Options:
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"retry is a policy, such as Retry(attempts=3), not {retry!r}")
    seconds = None
    if timeout is not None:
        seconds = validate_seconds("timeout", timeout, is_over=True, below=_MAX_SECONDS)
    return _Options(retry, seconds)
