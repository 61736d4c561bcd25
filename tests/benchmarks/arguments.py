"""Encode and decode the arguments of jobs with msgspec, with cattrs, and as jobs do.

    python -m tests.benchmarks.arguments

All convert the same values in turns, in one run; the times are medians, in microseconds. That of
an import is the least of nine. Without cattrs, its times are left out.
"""

from __future__ import annotations

import importlib.util
import inspect
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec

from fdbqueue.jobs.arguments import Arguments

_HAS_CATTRS = importlib.util.find_spec("cattrs") is not None
_ROUNDS, _CALLS = 400, 50


@dataclass
class Order:
    """A value with what JSON does not know."""

    id: UUID
    total: Decimal
    placed: datetime
    lines: list[tuple[str, int]] = field(default_factory=list)


class Address(TypedDict):
    """A value with a date."""

    street: str
    since: date


_ORDER = Order(
    UUID(int=1), Decimal("9.99"), datetime(2030, 1, 31, tzinfo=timezone.utc), [("book", 2)] * 20
)
_VALUES: list[tuple[str, Any, Any]] = [
    ("two texts", tuple[str, str], ("ada@example.com", "hi")),
    ("dataclass", Order, _ORDER),
    ("TypedDict", Address, Address(street="Rua", since=date(2030, 1, 31))),
]


def main() -> None:
    """Print the times of imports and of conversions."""
    for module in ("msgspec", "cattrs.preconf.json") if _HAS_CATTRS else ("msgspec",):
        print(f"import of {module}: {1000 * _seconds_of_import(module):.1f} ms")
    for title, kind, value in _VALUES:
        calls = _calls_of_msgspec(kind, value)
        if _HAS_CATTRS:
            calls.update(_calls_of_cattrs(kind, value))
        _report(title, calls)
    _report("two parameters", _calls_of_arguments())


def _report(title: str, calls: dict[str, Callable[[], object]]) -> None:
    medians = _medians(calls)
    print(f"{title}: {', '.join(f'{name} {1e6 * each:.2f}' for name, each in medians.items())}")


def _seconds_of_import(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    return min(float(subprocess.run(command, capture_output=True).stdout) for _ in range(9))


def _calls_of_msgspec(kind: Any, value: Any) -> dict[str, Callable[[], object]]:
    encoded = msgspec.to_builtins(value, builtin_types=())
    return {
        "msgspec encodes": lambda: msgspec.to_builtins(value, builtin_types=()),
        "msgspec decodes": lambda: msgspec.convert(encoded, kind),
    }


def _calls_of_cattrs(kind: Any, value: Any) -> dict[str, Callable[[], object]]:
    converter = importlib.import_module("cattrs.preconf.json").make_converter()
    for each in (UUID, Decimal):
        converter.register_unstructure_hook(each, str)
        converter.register_structure_hook(each, lambda stored, kind: kind(stored))
    unstructured = converter.unstructure(value, kind)
    return {
        "cattrs encodes": lambda: converter.unstructure(value, kind),
        "cattrs decodes": lambda: converter.structure(unstructured, kind),
    }


def _send(to: str, *, subject: str) -> None:
    """Take two texts."""


def _calls_of_arguments() -> dict[str, Callable[[], object]]:
    arguments, signature = Arguments("send", _send), inspect.signature(_send)
    named = {"subject": "hi"}
    return {
        "signature.bind": lambda: signature.bind("ada@example.com", **named),
        "jobs encode": lambda: arguments.encode(("ada@example.com",), named),
        "jobs decode": lambda: arguments.decode(["ada@example.com"], named),
    }


def _medians(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    measured: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(_CALLS):
                call()
            measured[name].append((time.perf_counter() - began) / _CALLS)
    return {name: statistics.median(times) for name, times in measured.items()}


if __name__ == "__main__":
    main()
