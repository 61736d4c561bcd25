"""Handlers of workers: functions or coroutine functions, inside or outside of a transaction."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import math
import os
import sys
import threading
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import resolve_name
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from fdbqueue.types import Claim, Transaction, Transactor
from fdbqueue.worker.context import Context
from fdbqueue.worker.outcomes import Outcome, validate_outcome
from fdbqueue.worker.steps.plans import JsonResults, Results
from fdbqueue.worker.telemetry import Log

_OURS = ("fdb", "fdbqueue")

Supplied: TypeAlias = Literal["Context", "Transaction", ""]
"""The class of this library that annotates the first parameter of a function."""

_NAMES: dict[str, Supplied] = {"Context": "Context", "Transaction": "Transaction"}

_log = Log("fdbqueue.worker")

_T = TypeVar("_T")
_Item_co = TypeVar("_Item_co", covariant=True)

AnyHandler: TypeAlias = (
    Callable[[_T], object] | Callable[[Context], object] | Callable[[Transaction, _T], object]
)
"""A function that a worker calls with the item, with the context, or in a transaction."""


class Claimable(Protocol[_Item_co]):
    """A queue of items of one type."""

    def claim(self, tr: Transactor, /) -> Claim[_Item_co] | None:
        """Claim the first item."""


IN_THREAD = "asyncio_"
"""How asyncio's names of the threads begin in which coroutines call functions."""

_CANCEL = 0.5  # seconds that coroutines have for their end after they were cancelled
_LOOK = 1.0  # seconds from one look at whether the loop still runs to the next
_BLOCKED = 1.0  # seconds after which a loop that does not answer is blocked


def outcome_of(error: Exception) -> Outcome | None:
    """Return the outcome that a handler has raised; `None` for any other error."""
    return validate_outcome(error) if isinstance(error, Outcome) else None


def _as_it_is(returned: Any) -> Any:
    return returned


class Invocation(NamedTuple):
    """The call of a handler for one job.

    Attributes:
        name: Its name in the log, or an empty text.
        function: The function to call, with the transaction if it runs in one.
        in_transaction: Whether it is the body of the transaction that ends the job.
        outcome: Returns the outcome of an attempt that failed with an error; `None` to let the
            queue try it again.
        encode: Returns the JSON form of what it returned, if that is stored.
        timeout: The seconds after which it is told to stop; `None` for those of the worker.
        around: Returns what to enter around the call.
        pushed: The value of the job, which may name the span that has pushed it.
    """

    name: str
    function: Callable[..., object]
    in_transaction: bool
    outcome: Callable[[Exception], Outcome | None] = outcome_of
    encode: Callable[[Any], Any] = _as_it_is
    timeout: float | None = None
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    pushed: Mapping[str, Any] | None = None


class Observer:
    """Learns how the coroutine of a job fares, in this order."""

    def wait_for_loop(self) -> None:
        """Note that an event loop will begin it."""

    def begin(self) -> None:
        """Note that it begins."""

    def note(self, future: futures.Future[Any]) -> None:
        """Note its future, which can be cancelled; perhaps it has not begun."""


_UNOBSERVED = Observer()


def _end_child(name: str) -> None:
    """End this process, which a job has forked: it would go on as a second worker.

    Args:
        name: The name of the job.
    """
    error, code = sys.exc_info()[1], 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        else:
            _log.error(
                "%s: a process that the job forked has left the job's code, and is ended "
                "before it becomes a second worker; end it with os._exit, or use multiprocessing",
                name or "the handler",
                exc_info=error,
            )
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def in_this_process(name: str, function: Callable[[], _T]) -> _T:
    """Call a function; end each process that it forks and that leaves it.

    Args:
        name: The name of the job.
        function: A function of the program.
    """
    process = os.getpid()
    try:
        return function()
    finally:
        if os.getpid() != process:
            _end_child(name)


class Handler(ABC):
    """The functions that the threads of a worker call, one for each job.

    Coroutines of all jobs run in `loop`, or else in one event loop of the handler, which lives
    until `close`. If a coroutine whose time is over blocks this loop, another one takes its place.

    Attributes:
        results: Converts the results of the functions of steps.
        keep_unknown: The seconds after which an item that no worker knows becomes a dead letter;
            `None` for never.
    """

    results: Callable[[str, Callable[..., Any]], Results] = JsonResults
    keep_unknown: float | None = None

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._own_loop: _EventLoop | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the program that awaits the worker, if one does."""

    @property
    def may_be_last(self) -> bool:
        """True if a job may have a single attempt, whatever its queue allows."""
        return False

    def is_spent(self, item: Any, attempt: int) -> bool:
        """Return whether a job has no attempt of this number, whatever its queue allows."""
        return False

    def unknown(self, item: Any) -> str | None:
        """Return why the item is left to other workers; `None` if there is a function for it."""
        return None

    @abstractmethod
    def call(self, context: Context) -> Invocation:
        """Return the call for a job."""

    def run(
        self,
        call: Invocation,
        *arguments: Any,
        observer: Observer = _UNOBSERVED,
    ) -> Any:
        """Call the function, await its result if necessary, and return it; raise its exception."""
        result = call.function(*arguments)
        if result is None:  # as most handlers return
            return None
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError("the handler returned a generator, whose code has not run")
        if not inspect.isawaitable(result):
            return result
        if call.in_transaction:
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("a handler that takes a transaction must be a plain function")
        return self._awaited(call, result, observer)

    def _awaited(self, call: Invocation, awaitable: Awaitable[Any], observer: Observer) -> Any:
        is_claimed = threading.Lock()  # by the loop in which it begins

        async def settled() -> tuple[Any, BaseException | None]:
            if not is_claimed.acquire(blocking=False):
                return None, None  # another loop has begun it
            observer.begin()
            # An exit or interrupt would end the loop, and with it all other running coroutines.
            process = os.getpid()
            try:
                return await awaitable, None
            except BaseException as error:
                return None, error
            finally:
                if os.getpid() != process:
                    _end_child(call.name)

        loop, own = self.loop, None
        if loop is None:
            own = self._begin_loop()
            loop = own.loop
            observer.wait_for_loop()
        future = asyncio.run_coroutine_threadsafe(settled(), loop)
        observer.note(future)
        while not futures.wait([future], _LOOK).done:
            if self.is_orphan:
                raise RuntimeError("the event loop was closed while a handler was awaited in it")
            if own is None:
                continue
            if future.cancelled():
                own.ask()  # the coroutine has not ended
            elif own.is_blocked:
                if is_claimed.acquire(blocking=False):
                    return self._awaited(call, awaitable, observer)
                raise RuntimeError("another job blocks the event loop in which this one ran")
        result, error = future.result()
        if error is not None:
            raise error
        return result

    @property
    def is_orphan(self) -> bool:
        """Tell whether the program's event loop, which awaited the worker, is closed."""
        return self.loop is not None and self.loop.is_closed()

    def _begin_loop(self) -> _EventLoop:
        with self._guard:
            if self._own_loop is None or self._own_loop.is_blocked:
                self._own_loop = _EventLoop()
            return self._own_loop

    def close(self) -> None:
        """Stop the event loop, if there is one. The next call may start another one."""
        with self._guard:
            if self._own_loop is not None:
                self._own_loop.close()
                self._own_loop = None


class FunctionHandler(Handler):
    """One function for all jobs: `handler(item)`, `handler(context)` or `handler(tr, item)`.

    A function whose first parameter is named `tr` is the body of a transaction. One whose first
    parameter is annotated `Context` is called with the context of the attempt.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(function):
            raise TypeError(f"a handler must be a function, not {function!r}")
        self._function = function
        self._takes_context = supplied(function) == "Context"
        try:
            signature = inspect.signature(function)
        except ValueError:  # some functions that are not written in Python have no signature
            self._in_transaction = False
            return
        self._in_transaction = next(iter(signature.parameters), None) == "tr"
        if self._in_transaction and inspect.iscoroutinefunction(function):
            raise TypeError("a handler that takes a transaction must be a plain function")
        arguments = ("tr", "item") if self._in_transaction else ("item",)
        try:
            signature.bind(*arguments)
        except TypeError as error:
            called = f"({', '.join(arguments)})"
            raise TypeError(
                f"a handler is called as {called}, which {function!r} does not accept: {error}"
            ) from error

    def call(self, context: Context) -> Invocation:
        """Return the call for a job."""
        if self._in_transaction:
            return Invocation("", partial(_with_transaction, self._function, context.item), True)
        argument = context if self._takes_context else context.item
        return Invocation("", partial(self._function, argument), False)


def _with_transaction(function: Callable[..., Any], item: object, tr: Transaction) -> Any:
    return function(tr, item)


class _EventLoop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._is_closed = threading.Event()
        self._asked_at = math.inf
        self._thread = threading.Thread(target=self._run, name="fdbqueue-handlers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed.is_set():  # a handler may have stopped the loop
            try:
                self.loop.run_forever()
            except BaseException:  # raised by what a handler has left behind
                _log.exception("a task or callback of the event loop of jobs has failed")
        if tasks := asyncio.all_tasks(self.loop):  # of jobs that the worker has given up
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL))

    def ask(self) -> None:
        """Find out whether a coroutine blocks the loop, which `is_blocked` tells a second later."""
        if self._asked_at == math.inf:
            self._asked_at = time.monotonic()
            self.loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._asked_at = math.inf

    @property
    def is_blocked(self) -> bool:
        """True if the loop was asked, and has not answered for a second."""
        return time.monotonic() - self._asked_at > _BLOCKED

    def close(self) -> None:
        """Stop the loop and its thread, and cancel what still runs; leave a loop that hangs."""
        self._is_closed.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * _CANCEL)
        if not self._thread.is_alive():
            self.loop.close()


def supplied(function: Callable[..., Any]) -> Supplied:
    """Return the class of this library that annotates the first parameter, or an empty text.

    A class of the program's own may have the same name. The annotation may be text, with a name
    that is imported for type checkers only.

    >>> def work(context: "Context | None"): ...
    >>> def other(context: "builtins.str"): ...
    >>> supplied(work), supplied(other), supplied(lambda item: item)
    ('Context', '', '')
    """
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except ValueError:  # some functions that are not written in Python have no signature
        return ""
    if first is None or first.annotation is first.empty:
        return ""
    holder = SimpleNamespace(__annotations__={"first": first.annotation})
    names = _Names(function)
    try:
        kinds = typing.get_type_hints(holder, names.globals, names)
    except Exception as error:  # the code of an annotation may raise anything
        module, _, name = str(first.annotation).strip("'\"").rpartition(".")
        # Nothing says where the name comes from; or it is the binding's, which has the class only
        # once a program has selected the version of the API.
        if isinstance(error, NameError) or (module and names.get_module(module) == "fdb"):
            return _NAMES.get(name, "")
        return ""
    kind = kinds["first"]
    is_union = typing.get_origin(kind) in (typing.Union, UnionType)
    for each in typing.get_args(kind) if is_union else (kind,):
        if ours := _ours(each):
            return ours
    return ""


def _ours(kind: Any) -> Supplied:
    # Transactions of the binding and of the embedded engine count as the protocol.
    root = getattr(kind, "__module__", "").partition(".")[0]
    return _NAMES.get(getattr(kind, "__name__", ""), "") if root in _OURS else ""


class _Foreign:
    """Stands for a class of the program's own that is not imported."""


class _Names(dict[str, Any]):
    """The names that the annotations of a function may use, looked up one by one."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        function = inspect.unwrap(function)
        while isinstance(function, partial):
            function = inspect.unwrap(function.func)
        if not hasattr(function, "__globals__"):
            function = type(function).__call__
        self.globals: dict[str, Any] = getattr(function, "__globals__", {})
        self._module = sys.modules.get(getattr(function, "__module__", None) or "")

    def get_module(self, name: str) -> str:
        """Return the name of the module that a name is bound to, or an empty text."""
        try:
            return getattr(self[name], "__name__", "")
        except KeyError:
            return ""

    def __missing__(self, name: str) -> Any:
        if name in self.globals:
            return self.globals[name]
        if hasattr(builtins, name) or self._module is None:
            raise KeyError(name)
        return next(_bound(self._module, name))


def _bound(module: ModuleType, name: str) -> Iterator[Any]:
    """Yield what the source of a module binds to a name, without running it."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield _Foreign
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for alias in node.names:
            if isinstance(node, ast.ImportFrom) and (alias.asname or alias.name) == name:
                source = "." * node.level + (node.module or "")
                yield _found(resolve_name(source, module.__package__), alias.name)
            elif isinstance(node, ast.Import):
                root = alias.name.partition(".")[0]
                if (alias.asname or root) == name:
                    yield _found(alias.name if alias.asname else root)
    raise KeyError(name)


def _found(module: str, name: str | None = None) -> Any:
    """Return a module, or its variable, if it is of this library or imported already."""
    if module.partition(".")[0] in _OURS:
        if name == "Transaction":  # which the binding may lack
            return import_module("fdbqueue.types").Transaction
        import_module(module)
    found = sys.modules.get(module, _Foreign)
    return found if name is None else getattr(found, name, _Foreign)


@lru_cache(maxsize=64)
def _tree(module: ModuleType) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # it has no source
        return ast.Module([], [])
