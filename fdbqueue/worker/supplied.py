"""What a worker supplies to a function: a context or a transaction, by the first annotation."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import resolve_name
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeAlias

from fdbqueue.types import Transaction
from fdbqueue.worker.context import Context

_OURS = ("fdb", "fdbqueue")

Supplied: TypeAlias = Literal["Context", "Transaction", ""]

_NAMES: dict[str, Supplied] = {"Context": "Context", "Transaction": "Transaction"}


def supplied(function: Callable[..., Any]) -> Supplied:
    """Return which class of ours annotates the first parameter, or an empty text.

    A class of the program's own may have the same name. The annotation may be text, and of a name
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
    if kind is Context:
        return "Context"
    # Those of the binding and of the embedded engine are as good as the protocol.
    root, name = getattr(kind, "__module__", "").partition(".")[0], getattr(kind, "__name__", "")
    return "Transaction" if root in _OURS and name == "Transaction" else ""


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
    """Return a module, or its variable, if it is ours or imported already."""
    if module.partition(".")[0] in _OURS:
        if name == "Transaction":
            return Transaction
        import_module(module)
    found = sys.modules.get(module, _Foreign)
    return found if name is None else getattr(found, name, _Foreign)


@lru_cache(maxsize=64)
def _tree(module: ModuleType) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # it has no source
        return ast.Module([], [])
