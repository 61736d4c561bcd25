"""Handlers of workers: functions or coroutine functions, inside or outside of a transaction."""

from __future__ import annotations

import inspect
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from types import SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from fdbqueue.types import Claim, Transaction, Transactor
from fdbqueue.worker.context import Context
from fdbqueue.worker.functions.coroutines import Coroutines
from fdbqueue.worker.functions.steps import Results
from fdbqueue.worker.outcomes import Outcome, validate_outcome

if TYPE_CHECKING:
    from fdbqueue.worker.pool import HeldJob

_T = TypeVar("_T")
_Item_co = TypeVar("_Item_co", covariant=True)

AnyHandler: TypeAlias = (
    Callable[[_T], object] | Callable[[Context], object] | Callable[[Transaction, _T], object]
)


class Claimable(Protocol[_Item_co]):
    """A queue of items of one type."""

    def claim(self, tr: Transactor, /) -> Claim[_Item_co] | None:
        """Claim the first item."""


def outcome_of(error: Exception) -> Outcome | None:
    """Return the outcome that a handler has raised, or `None`."""
    return validate_outcome(error) if isinstance(error, Outcome) else None


class Invocation(NamedTuple):
    """The call of a handler for one job.

    Attributes:
        function: Called with the transaction, if it runs in one.
        outcome: Returns the outcome of a failed attempt; `None` to let the queue decide.
        encode: Returns the JSON form of its result.
        timeout: Seconds after which it is told to stop; `None` for the worker's time-out.
    """

    name: str
    function: Callable[..., object]
    in_transaction: bool
    outcome: Callable[[Exception], Outcome | None] = outcome_of
    encode: Callable[[Any], Any] = lambda returned: returned
    timeout: float | None = None
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    pushed: Mapping[str, Any] | None = None


class Handler(ABC):
    """The functions that the threads of a worker call, one for each job.

    Attributes:
        renew: Called every second, to renew what the program declares.
        keep_unknown: Seconds after which an unknown item becomes a dead letter, or `None`.
        may_be_last: Whether a job may have a single attempt.
    """

    results: Callable[[str, Callable[..., Any]], Results] = Results
    keep_unknown: float | None = None
    may_be_last: bool = False

    def __init__(self, renew: Callable[[], object] = lambda: None) -> None:
        self.coroutines = Coroutines()
        self.renew = renew

    def unknown(self, item: Any) -> str | None:
        """Return why the item is left to other workers, or `None`."""
        return None

    def living(self) -> AbstractContextManager[object]:
        """Return a context manager around the life of the worker."""
        return closing(self.coroutines)

    @abstractmethod
    def call(self, context: Context) -> Invocation:
        """Return the call for a job."""

    def run(self, call: Invocation, job: HeldJob, *tr: Transaction) -> Any:
        """Call the function, await its result if necessary, and return it."""
        result = call.function(*tr)
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
        return self.coroutines.result(job, result)


class FunctionHandler(Handler):
    """One function for all jobs: `handler(item)`, `handler(context)` or `handler(tr, item)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(function):
            raise TypeError(f"a handler must be a function, not {function!r}")
        self._function = function
        self._takes_context = supplied(function) == "Context"
        signature = signature_of(function)
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
        given = context if self._takes_context else context.item

        def function(*tr: Transaction) -> object:
            return self._function(*tr, given)

        return Invocation("", function, self._in_transaction)


_OURS = ("fdb", "fdbqueue")

Supplied: TypeAlias = Literal["Context", "Transaction", ""]

_NAMES: dict[str, Supplied] = {"Context": "Context", "Transaction": "Transaction"}


def supplied(function: Callable[..., Any]) -> Supplied:
    """Return the class of this library that annotates the first parameter, or an empty text.

    If the class is imported for type checkers only, the last part of its name decides.
    """
    first = next(iter(signature_of(function).parameters.values()), None)
    if first is None or first.annotation is first.empty:
        return ""
    holder = SimpleNamespace(__annotations__={"first": first.annotation})
    try:
        kind = typing.get_type_hints(holder, globals_of(function))["first"]
    except (NameError, AttributeError):  # it is not imported, or the binding is not ready
        written = re.findall(r"[\w.]+", str(first.annotation))
        return _NAMES.get(written[0].rpartition(".")[2], "") if written else ""
    except Exception:  # the code of an annotation may raise anything
        return ""
    is_union = typing.get_origin(kind) in (typing.Union, UnionType)
    for given in typing.get_args(kind) if is_union else (kind,):
        each = typing.get_origin(given) or given  # of Context[State]
        # Transactions of the binding and of the embedded engine count as the protocol.
        is_ours = getattr(each, "__module__", "").partition(".")[0] in _OURS
        if is_ours and (name := _NAMES.get(getattr(each, "__name__", ""))):
            return name
    return ""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function; any arguments if it is unknown."""
    try:
        return inspect.signature(function)
    except ValueError:  # some functions that are not written in Python have none
        return inspect.signature(lambda *args, **kwargs: None)


def globals_of(function: Any) -> dict[str, Any]:
    """Return the names that the annotations of a function use."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    return getattr(function, "__globals__", {})
