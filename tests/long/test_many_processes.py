"""16 threads in 4 processes pop each item of one queue exactly once, despite faults."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.pops import REQUEST_TIMEOUT
from tests.support.cluster import Cluster
from tests.support.leases import let_versions_pass
from tests.support.many_processes import (
    PROCESSES,
    LibraryQueue,
    Outcome,
    RecipeQueue,
    TroubledDatabase,
    Work,
    buggified,
    injected,
)

ITEMS = int(os.environ.get("FDBQ_ITEMS", "4000"))  # run more by hand

INJECTED = (1007, 1020, 1021, 1031, 1039)
BUGGIFIED = (1007, 1009, 1020, 1021, 1031, 1042, 1078)


def run_library(
    opened: Callable[[str, int], TroubledDatabase],
    url: str,
    db: Any,
    queue: PriorityQueue,
    rng: random.Random,
) -> Outcome:
    """Move items through the library's queue; its counts match a scan throughout."""
    counted: list[int] = []

    def check() -> None:
        report = fdbqueue.admin.check(db, queue)
        assert report.ok, report.problems
        counted.append(report.ready)

    outcome = Work(opened, LibraryQueue, url, queue.subspace.key(), ITEMS).run(rng, check)
    assert max(counted) > 0
    if outcome.lost:
        # A pop failed and then also failed to return the items served to it.
        let_versions_pass(db, REQUEST_TIMEOUT + 1)
        outcome.popped.update(item.value for item in PriorityQueue(queue.subspace).pop_many(db, 50))
    check()
    assert counted[-1] == 0
    return outcome


def run_recipe(
    opened: Callable[[str, int], TroubledDatabase], url: str, space: Subspace, rng: random.Random
) -> Outcome:
    """Move some items through the plain recipe in the same way."""
    return Work(opened, RecipeQueue, url, space.key(), 1_600).run(rng, lambda: None)


def assert_exactly_once(outcome: Outcome) -> None:
    assert outcome.processes == PROCESSES
    assert outcome.pushed.total() == ITEMS
    assert (outcome.lost, outcome.doubled) == (Counter(), Counter())


def test_each_item_is_popped_exactly_once_under_injected_faults(
    db: Any, shared_url: str, queue: PriorityQueue, rng: random.Random
) -> None:
    outcome = run_library(injected, shared_url, db, queue, rng)
    assert_exactly_once(outcome)
    assert min(outcome.errors[code] for code in INJECTED) > ITEMS / 400


def test_the_plain_recipe_loses_and_duplicates_items_under_injected_faults(
    db: Any, shared_url: str, space: Subspace, rng: random.Random
) -> None:
    """So this harness detects losses and duplicates."""
    outcome = run_recipe(injected, shared_url, space, rng)
    assert outcome.lost
    assert outcome.doubled


def test_each_item_is_popped_exactly_once_under_client_buggification(
    cluster: Cluster, db: Any, shared_url: str, queue: PriorityQueue, rng: random.Random
) -> None:
    outcome = run_library(buggified, shared_url, db, queue, rng)
    assert_exactly_once(outcome)
    assert min(outcome.errors[code] for code in BUGGIFIED) > ITEMS / 2_000


def test_the_plain_recipe_loses_and_duplicates_items_under_client_buggification(
    cluster: Cluster, db: Any, shared_url: str, space: Subspace, rng: random.Random
) -> None:
    outcome = run_recipe(buggified, shared_url, space, rng)
    assert outcome.lost
    assert outcome.doubled
