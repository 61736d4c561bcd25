"""Calls in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


def in_threads(calls: Iterable[Callable[[], object]]) -> None:
    """Make calls in threads, all at the same time; raise the error of the first one that fails."""
    functions = list(calls)
    with ThreadPoolExecutor(len(functions)) as pool:
        for done in [pool.submit(function) for function in functions]:
            done.result()
