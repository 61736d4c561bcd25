"""Arguments that a worker supplies: the context of the attempt, a transaction, or nothing."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace, UnionType
from typing import Any, Literal, TypeAlias

_OURS = ("fdb", "fdbqueue")

Supplied: TypeAlias = Literal["Context", "Transaction", ""]
"""The class of this library that annotates the first parameter of a function."""

_NAMES: dict[str, Supplied] = {"Context": "Context", "Transaction": "Transaction"}


def supplied(function: Callable[..., Any]) -> Supplied:
    """Return the class of this library that annotates the first parameter, or an empty text.

    A class of the program's own may have the same name. If the annotation is text, and names a
    class that is imported for type checkers only, the last part of the name decides.

    >>> from fdbqueue.jobs import Context
    >>> def work(context: "Context | None"): ...
    >>> def other(context: "str"): ...
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
    try:
        kind = typing.get_type_hints(holder, _globals_of(function))["first"]
    except (NameError, AttributeError):  # it is not imported, or the binding is not ready
        written = re.findall(r"[\w.]+", str(first.annotation))
        return _NAMES.get(written[0].rpartition(".")[2], "") if written else ""
    except Exception:  # the code of an annotation may raise anything
        return ""
    is_union = typing.get_origin(kind) in (typing.Union, UnionType)
    for each in typing.get_args(kind) if is_union else (kind,):
        # Transactions of the binding and of the embedded engine count as the protocol.
        is_ours = getattr(each, "__module__", "").partition(".")[0] in _OURS
        if is_ours and (name := _NAMES.get(getattr(each, "__name__", ""))):
            return name
    return ""


def _globals_of(function: Any) -> dict[str, Any]:
    """Return the variables of the module of a function, or of an object that is called."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    return getattr(function, "__globals__", {})
