"""What a call costs: a queue that does not use a feature pays nothing for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination import sweeper
from tests.support.counting import CountingDatabase, writes
from tests.support.keys import layout_of

Cost = tuple[int, int]
"""The numbers of reads and of mutations, without those of the history."""


@pytest.fixture(autouse=True)
def no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let neither sweeps nor a new minute of the history cost anything in between."""
    monkeypatch.setattr(sweeper, "_LOOK", 600.0)
    now = time.time_ns()
    monkeypatch.setattr("fdbqueue.database.clock.nanoseconds", lambda: now)


@pytest.fixture
def counted(db: Any) -> CountingDatabase:
    return CountingDatabase(db)


@pytest.fixture
def jobs(counted: Any, name: str) -> Any:
    """Return a queue with items, as a client that has used it knows it."""
    queue: Any = PriorityQueue.named(counted, name)
    queue.push_many(counted, range(30))
    queue.ack(counted, queue.claim(counted))
    queue.pop(counted)
    return queue


def cost(counted: CountingDatabase, jobs: Any, act: Callable[[Any], object]) -> Cost:
    """Return what an act costs, if it does not happen to clean up for others."""
    costs: list[Cost] = []
    for _ in range(4):
        counted.clear()
        act(counted)
        costs.append((counted.reads, writes(counted, jobs)))
    return min(costs)


def push(jobs: Any, **options: Any) -> Callable[[Any], object]:
    """Push in a transaction, in which a push does not sweep."""
    return lambda db: fdbqueue.transactional(lambda tr: jobs.push(tr, 0, **options))(db)


def test_what_the_verbs_cost(counted: CountingDatabase, jobs: Any) -> None:
    claims = iter([jobs.claim(counted) for _ in range(4)])
    assert cost(counted, jobs, lambda db: jobs.push(db, 0)) == (2, 3)
    assert cost(counted, jobs, jobs.pop) == (1, 4)
    assert cost(counted, jobs, jobs.claim) == (2, 6)
    assert cost(counted, jobs, lambda db: jobs.ack(db, next(claims))) == (1, 3)
    assert cost(counted, jobs, jobs.size) == (1, 0)
    jobs.configure(counted, rate=(1000, 60))
    assert cost(counted, jobs, jobs.pop) == (5, 6)
    assert cost(counted, jobs, jobs.claim) == (4, 8)


def test_a_job_writes_few_keys_that_all_clients_write(counted: Any, jobs: Any) -> None:
    written: list[list[bytes]] = []
    for _ in range(2):
        counted.clear()
        jobs.push(counted, "job", 7)
        jobs.ack(counted, jobs.claim(counted))
        written.append(counted.mutations)
    layout = layout_of(jobs)
    shared = {*written[0]} & {*written[1]}
    shared = {key for key in shared if not key.startswith(layout.history)}
    shared = {key for key in shared if not layout.receipts.contains(key)}
    assert len([key for key in written[1] if key in shared]) == 6


def test_only_unique_keys_cost_a_read_and_periods_two_more_rows(counted: Any, jobs: Any) -> None:
    numbers = iter(range(99))

    def unique(**scope: Any) -> Cost:
        push = lambda db: jobs.push(db, 0, unique=f"{next(numbers)}", **scope)  # noqa: E731
        return cost(counted, jobs, push)

    assert unique() == unique(unique_until="claimed") == (3, 4)
    assert unique(unique_for=60) == (4, 5)
    assert cost(counted, jobs, push(jobs)) == (2, 3)


def test_only_groups_with_a_bound_cost_the_reads_of_one(counted: Any, jobs: Any) -> None:
    assert cost(counted, jobs, push(jobs, group="ada")) == (4, 4)
    jobs.set_group(counted, "bob", concurrency=3)
    assert cost(counted, jobs, push(jobs, group="ada")) == (4, 4)
    jobs.set_group(counted, "bob", max_size=100)
    assert cost(counted, jobs, push(jobs, group="ada")) == (6, 4)  # its settings, those of all
    assert cost(counted, jobs, push(jobs, group="bob")) == (9, 4)  # three numbers
    assert cost(counted, jobs, push(jobs)) == (2, 3)


@pytest.mark.parametrize("groups", [10, 300])
def test_a_pop_and_a_search_cost_the_same_with_any_number_of_groups(
    counted: Any, name: str, groups: int
) -> None:
    jobs: Any = PriorityQueue.named(counted, f"{name}groups")
    names = [f"group {number}" for number in range(groups)]
    for _ in range(2):
        jobs.push_many(counted, names, groups=names)
    jobs.pop(counted)
    assert cost(counted, jobs, jobs.pop) == (7, 9)
    search = lambda db: jobs.search(db, state="ready", group="group 7", limit=1)  # noqa: E731
    assert cost(counted, jobs, search) == (5, 0)


@pytest.mark.parametrize(("shards", "reads"), [(1, 2), (8, 10), (64, 66)])
def test_a_claim_reads_each_shard(counted: Any, name: str, shards: int, reads: int) -> None:
    jobs: Any = PriorityQueue.named(counted, name, shards=shards)
    jobs.push_many(counted, range(200 * shards))
    claims = [jobs.claim(counted, n=16) for _ in range(4)]
    assert cost(counted, jobs, lambda db: jobs.push(db, 0)) == (2, 3)
    assert cost(counted, jobs, jobs.claim) == (reads, 6)
    assert cost(counted, jobs, lambda db: jobs.claim(db, n=16)) == (reads, 51)
    assert cost(counted, jobs, lambda db: jobs.ack(db, claims.pop())) == (16, 33)
