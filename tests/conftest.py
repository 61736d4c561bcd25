"""The engines at hand, and a database on each for every test that asks for one."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue

ENGINES = ("embedded", "memory")

_spaces = itertools.count()


@pytest.fixture(params=ENGINES)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty database of each engine."""
    urls = {"embedded": f"embedded:{tmp_path / 'db'}", "memory": "memory:"}
    database = fdbqueue.open(urls[request.param])
    yield database
    database.close()


@pytest.fixture
def space() -> Subspace:
    """A subspace of the test's own."""
    return Subspace(("test", os.getpid(), next(_spaces)))


@pytest.fixture
def queue(space: Subspace) -> fdbqueue.PriorityQueue:
    """An empty priority queue."""
    return fdbqueue.PriorityQueue(space)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A source of chance whose seed is printed; FDBQ_TEST_SEED repeats it."""
    seed = int(os.environ.get("FDBQ_TEST_SEED", random.randrange(2**32)))
    print(f"FDBQ_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def fdb_error() -> Callable[[int], Any]:
    """`with fdb_error(1020): ...`: the block raises an error with this code."""

    def expect(code: int) -> Any:
        return pytest.raises(fdbqueue.error_classes(), match=rf"\({code}\)$")

    return expect
