"""The staging recipe pops each item once, in order, if no client dies and no reply is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue.database.retrying import run
from recipes.high_contention_queue import HighContentionQueue


@pytest.fixture
def recipe(space: Subspace) -> HighContentionQueue:
    return HighContentionQueue(space)


def test_many_clients_pop_each_item_once_and_each_client_in_order(
    db: Any, recipe: HighContentionQueue, space: Subspace
) -> None:
    for number in range(160):
        recipe.push(db, b"%03d" % number, 1)

    def work(_: int) -> list[Any]:
        return [recipe.pop_min(db) for _ in range(25)]

    with ThreadPoolExecutor(8) as pool:
        taken = [[value for value in values if value] for values in pool.map(work, range(8))]
    assert all(values == sorted(values) for values in taken)
    assert sorted(value for values in taken for value in values) == [
        b"%03d" % number for number in range(160)
    ]
    assert not list(db.get_range_startswith(space.key()))


def test_requests_are_served_in_the_order_they_were_made(
    db: Any, recipe: HighContentionQueue
) -> None:
    for value in (b"1", b"2"):
        recipe.push(db, value, 1)
    requests = [recipe._append(db, recipe.requests, b"") for _ in range(3)]
    assert recipe.pop_min(db) is None  # it overtakes no request and serves them on its way
    results = [run(db, partial(recipe._attempt, request=each)) for each in reversed(requests)]
    assert results == [(True, None), (True, b"2"), (True, b"1")]
