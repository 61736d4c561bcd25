"""Calls in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


def in_threads(calls: Iterable[Callable[[], object]]) -> None:
    """Make calls in threads, all at the same time; raise the error of the first one that fails."""
    functions = list(calls)
    with ThreadPoolExecutor(len(functions)) as pool:
        for done in [pool.submit(function) for function in functions]:
            done.result()


@contextmanager
def later(call: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Make a call in a thread during a block; give what will be its result."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)
