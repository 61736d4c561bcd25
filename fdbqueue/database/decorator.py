"""The decorator of functions whose argument is a transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.database.binding import is_database
from fdbqueue.database.receipts import run_once
from fdbqueue.database.retrying import run

__all__ = ["transactional"]


def transactional(
    function: Callable[..., Any] | None = None,
    *,
    parameter: str = "tr",
    receipts: Subspace | None = None,
) -> Any:
    """Decorate a function whose argument `tr` is a transaction, so that it takes a database too.

    The rules are those of `fdb.transactional`, on either engine. Given a database, it makes a
    transaction, runs the function, commits, and does it again after an error that allows it: the
    function may run several times, and must not sleep, commit, or make identities in its body.
    Given a transaction, it just runs: whoever made the transaction commits it and tries again.
    Generators and coroutines are refused. A transaction lives five seconds: a function that takes
    longer is tried again without end (1007), unless the transaction has a retry limit or a time-out
    (`db.options.set_transaction_retry_limit`).

    On a cluster the answer to a commit can get lost (1021), and then the function would take effect
    twice. With `receipts=` a subspace of the caller's, each commit leaves a receipt there, and the
    next attempt finds it: the effect takes place exactly once, and the result of the attempt that
    committed is returned. The embedded engine always knows, and needs no receipts.

    Source: FoundationDB documentation, Python API, "Transactional decoration"; Developer Guide,
    "Transactions with unknown results".

    >>> import fdbqueue
    >>> @transactional
    ... def increment(tr, key):
    ...     tr.add(key, b"\\x01")
    ...     return tr[key][0]
    >>> db = fdbqueue.open("memory:")
    >>> increment(db, b"n"), increment(db, b"n")
    (1, 2)
    """
    if receipts is not None and not isinstance(receipts, Subspace):
        raise TypeError(f"receipts is a Subspace of the caller's, not {receipts!r}")
    if function is None:
        return functools.partial(transactional, parameter=parameter, receipts=receipts)
    wrapped = inspect.unwrap(function)
    if inspect.isgeneratorfunction(wrapped) or inspect.iscoroutinefunction(wrapped):
        raise ValueError("Generators and coroutines cannot be wrapped with fdbqueue.transactional")
    arguments = inspect.getfullargspec(wrapped).args
    if parameter not in arguments:
        raise ValueError(
            f"{wrapped.__name__}() has no positional argument {parameter!r} for the transaction; "
            "give its name by transactional(parameter=...)"
        )
    index = arguments.index(parameter)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if parameter not in kwargs and index >= len(args):
            raise TypeError(f"{wrapped.__name__}() needs a database or transaction {parameter!r}")
        given = kwargs[parameter] if parameter in kwargs else args[index]
        if not is_database(given):
            return function(*args, **kwargs)

        def body(tr: Any) -> Any:
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
