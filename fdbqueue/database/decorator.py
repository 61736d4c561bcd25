"""The decorator of functions that take a transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import is_database
from fdbqueue.database.exactly_once import run_once
from fdbqueue.database.retrying import run
from fdbqueue.types import Transaction, Transactor

_P = ParamSpec("_P")
_S = TypeVar("_S")
_T = TypeVar("_T")


class _Decorator(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]  # of a method, the first parameter is `self`
        self, function: Callable[Concatenate[Transaction, _P], _T], /
    ) -> Callable[Concatenate[Transactor, _P], _T]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[_S, Transaction, _P], _T], /
    ) -> Callable[Concatenate[_S, Transactor, _P], _T]: ...


@overload
def transactional(  # type: ignore[overload-overlap]  # of a method, the first parameter is `self`
    function: Callable[Concatenate[Transaction, _P], _T], /
) -> Callable[Concatenate[Transactor, _P], _T]: ...


@overload
def transactional(
    function: Callable[Concatenate[_S, Transaction, _P], _T], /
) -> Callable[Concatenate[_S, Transactor, _P], _T]: ...


@overload
def transactional(*, receipts: Subspace | None = None) -> _Decorator: ...


@overload
def transactional(
    *, parameter: str, receipts: Subspace | None = None
) -> Callable[[Callable[..., _T]], Callable[..., _T]]: ...


def transactional(
    function: Callable[..., Any] | None = None,
    *,
    parameter: str = "tr",
    receipts: Subspace | None = None,
) -> Any:
    r"""Decorate a function that takes a transaction, so that it also accepts a database.

    It works as `fdb.transactional`, on either engine. Given a database, it commits, and retries
    after a retryable error: the function may run several times, and must not sleep, commit or
    create identities. Given a transaction, it only calls the function.

    A transaction lives five seconds. A longer function is retried forever (1007), unless the
    transaction has a retry limit or a timeout (`db.options.set_transaction_retry_limit`).

    On a cluster, the result of a commit can be unknown (1021), and a retry could apply the function
    twice. With `receipts`, the function takes effect exactly once: by the receipt of a commit, the
    next attempt finds its result. The embedded engine does not repeat such a commit.

    Args:
        function: The function; no generator or coroutine function.
        parameter: The name of its parameter for the transaction.
        receipts: A subspace for receipts only.

    Raises:
        TypeError: A call has no argument for `parameter`.
        ValueError: The function has no such parameter.

    Source: FoundationDB documentation, Python API, "Transactional decoration"; Developer Guide,
    "Transactions with unknown results".

    Example:
        >>> import fdbqueue
        >>> @transactional
        ... def increment(tr, key):
        ...     tr.add(key, b"\x01")
        ...     return tr[key][0]
        >>> db = fdbqueue.open("memory:")
        >>> increment(db, b"n"), increment(db, b"n")
        (1, 2)
    """
    if receipts is not None and not isinstance(receipts, Subspace):
        raise TypeError(f"receipts must be a Subspace of the caller's, not {receipts!r}")
    if function is None:
        return functools.partial(transactional, parameter=parameter, receipts=receipts)
    wrapped = inspect.unwrap(function)
    if inspect.isgeneratorfunction(wrapped) or inspect.iscoroutinefunction(wrapped):
        raise ValueError("Generators and coroutines cannot be wrapped with fdbqueue.transactional")
    arguments = inspect.getfullargspec(wrapped).args
    if parameter not in arguments:
        raise ValueError(
            f"{wrapped.__name__}() has no positional argument {parameter!r} for the transaction; "
            "name it with transactional(parameter=...)"
        )
    index = arguments.index(parameter)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if parameter not in kwargs and index >= len(args):
            raise TypeError(f"{wrapped.__name__}() needs a database or transaction {parameter!r}")
        given = kwargs[parameter] if parameter in kwargs else args[index]
        if not is_database(given):
            return function(*args, **kwargs)

        def body(tr: Transaction) -> Any:
            if parameter in kwargs:
                result = function(*args, **{**kwargs, parameter: tr})
            else:
                result = function(*args[:index], tr, *args[index + 1 :], **kwargs)
            if inspect.isgenerator(result) or inspect.iscoroutine(result):
                raise ValueError(
                    "Generators and coroutines cannot be wrapped with fdbqueue.transactional"
                )
            return result

        return run(given, body) if receipts is None else run_once(given, body, receipts)

    return wrapper
