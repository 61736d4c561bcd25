"""Errors can be pickled, so that processes of a pool can pass them on."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from fdbqueue import errors

MODULES = ("errors", "jobs.errors", "layout.jobs", "queue.backup", "worker.outcomes")
"""The modules that declare errors."""

VALUES: dict[str, Any] = {
    **{"int": 3, "float": 6.5, "bool": True, "bytes": b"k", "BaseException": SystemExit(3)},
    **{each: ["jobs"] for each in ("Iterable[str]", "Sequence[str]", "list[str]")},
}
"""An argument of each type; of any other type, it is text."""


def arguments(kind: type[errors.FdbqueueError]) -> dict[str, str]:
    """Return the arguments of an error, and their types."""
    if "__init__" in vars(kind):
        given = inspect.signature(kind).parameters.values()
        return {each.name: str(each.annotation) for each in given}
    declared = [vars(base).get("__annotations__", {}) for base in reversed(kind.__mro__)]
    types = {name: type for each in declared for name, type in each.items()}
    return {name: types[name] for name in kind._fields}


def all_errors() -> Iterator[Exception]:
    """Yield an error of each class that a module declares."""
    for module in (f"fdbqueue.{each}" for each in MODULES):
        for name, kind in inspect.getmembers(import_module(module), inspect.isclass):
            is_own = kind.__module__ == module and not name.startswith("_")
            if is_own and issubclass(kind, errors.FdbqueueError):
                yield kind(**{k: VALUES.get(v, "text") for k, v in arguments(kind).items()})


@pytest.mark.parametrize("error", [*all_errors()], ids=lambda error: type(error).__name__)
def test_an_unpickled_error_equals_the_original(error: Exception) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))


def test_a_long_value_is_cut_in_the_sentence() -> None:
    error = errors.InvalidPriority("x" * 10_000, "an integer")
    assert str(error) == f"priority '{'x' * 99} (str) must be an integer"
    assert len(error.priority) == 10_000
