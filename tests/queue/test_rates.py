"""The rates of queues and of groups, which hold over every window, for claims and pops together."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fdbqueue import admin
from fdbqueue.database import clock as clocks
from fdbqueue.operations.maintainers import groups as groups_module
from fdbqueue.testing import Clock
from tests.support.waiting import MAX_WAIT

# Rates of a queue, of a group and of all groups


def test_claims_and_pops_count_together_in_every_window(
    db: Any, jobs: Any, limit: Any, clock: Clock
) -> None:
    limit(rate=(3, "10m"))
    jobs.push_many(db, range(20), group="ada")
    assert jobs.pop(db)
    clock.advance("6m")
    assert len(jobs.claim(db, n=9)) == 2
    assert jobs.claim(db) is jobs.pop(db) is None
    (first, *_) = jobs.items(db)
    assert jobs.get(db, first).held_by in ("queue_rate", "group_rate")
    clock.advance("5m")
    assert jobs.pop(db)
    assert jobs.pop(db) is None  # the window has two starts of five minutes before
    clock.advance("6m")
    assert len(jobs.claim(db, n=9)) == 2
    clock.advance("1h")
    (first, *_) = jobs.items(db)
    assert jobs.get(db, first).held_by is None
    assert len(jobs.claim(db, n=9)) == 3


@pytest.mark.parametrize("verb", ["claim", "pop"])
def test_a_client_that_waits_wakes_when_the_rate_allows_more(
    db: Any, jobs: Any, limit: Any, verb: str
) -> None:
    limit(rate=(1, 0.3))
    jobs.push_many(db, range(2), group="ada")
    began = time.monotonic()
    assert getattr(jobs, verb)(db)
    assert getattr(jobs, verb)(db, wait=MAX_WAIT)
    assert time.monotonic() - began > 0.25


def test_no_clock_that_is_ahead_starts_more(
    db: Any, jobs: Any, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions of the database have to agree."""
    limit(rate=(1, 60))
    jobs.push_many(db, range(2), group="ada")
    assert jobs.claim(db)
    machines = clocks.time_ns
    monkeypatch.setattr(clocks, "time_ns", lambda: machines() + 3600 * 10**9)
    assert jobs.claim(db) is jobs.pop(db) is None


def test_a_new_rate_holds_at_once(db: Any, jobs: Any, limit: Any, clock: Clock) -> None:
    limit(rate=(2, 600))
    jobs.push_many(db, range(20), group="ada")
    assert len(jobs.claim(db, n=9)) == 2
    limit(rate=(5, 600))
    assert len(jobs.claim(db, n=9)) == 3
    limit(rate=(1, 600))
    assert jobs.claim(db) is None
    clock.advance(601)  # the lower rate has a timer, too
    assert len(jobs.claim(db, n=9, wait=MAX_WAIT)) == 1
    limit(rate=(1, "9h"))
    assert jobs.claim(db) is None
    limit(rate=(1, "10m"))  # a shorter time
    clock.advance(601)
    assert len(jobs.claim(db, n=9)) == 1
    limit(rate=None)
    assert len(jobs.claim(db, n=8)) == 8
    limit(rate=(1, 600))


def test_a_rate_outlives_the_items(db: Any, jobs: Any, limit: Any, clock: Clock) -> None:
    """Neither an empty group nor an empty or cleared queue begins a new window."""
    limit(rate=(1, 60))
    jobs.push(db, 1, group="ada")
    jobs.ack(db, jobs.claim(db))
    jobs.push(db, 2, group="ada")
    assert jobs.claim(db) is None
    jobs.clear(db)
    assert admin.check(db, jobs).problems == ()
    jobs.push(db, 3, group="ada")
    assert jobs.claim(db) is None
    assert admin.check(db, jobs).problems == ()
    clock.advance(61)
    assert jobs.claim(db, wait=MAX_WAIT)


# The rate of a queue


def test_groups_and_their_rates_count_in_that_of_the_queue(db: Any, jobs: Any) -> None:
    jobs.configure(db, rate=(3, 600))
    jobs.set_group(db, "ada", rate=(1, 3600))
    jobs.push_many(
        db, ["ada", "ada", "bob", "bob", "none"], groups=["ada"] * 2 + ["bob"] * 2 + [None]
    )
    with Clock() as clock:
        assert sorted(item.value for item in jobs.pop_many(db, 9)) == ["ada", "bob", "none"]
        assert jobs.claim(db) is None
        clock.advance(601)
        assert [item.value for item in jobs.pop_many(db, 9)] == ["bob"]


# The rates of groups


@pytest.mark.parametrize("limit", [{"concurrency": 2}, {"rate": (2, "1m")}])
@pytest.mark.parametrize("at_max", [False, True])
def test_a_pop_of_several_priorities_keeps_to_the_limit_of_a_group(
    db: Any, jobs: Any, limit: Any, at_max: bool
) -> None:
    jobs.set_group(db, "ada", **limit)
    jobs.push_many(db, range(4), priorities=range(4), group="ada")
    jobs.push_many(db, ["a", "b"], priorities=[0, 3], group="bob")
    popped = [item.value for item in jobs.pop_many(db, 4, max=at_max)]
    assert popped == ([3, "b", 2, "a"] if at_max else [0, "a", 1, "b"])


def test_starts_of_groups_that_are_gone_are_forgotten(db: Any, jobs: Any) -> None:
    jobs.set_group(db, None, rate=(5, 10))
    with Clock() as clock:
        for number in range(20):
            jobs.push(db, number, group=f"group {number}")
            jobs.pop(db)
            clock.advance(4)
    rows = [jobs.subspace.unpack(row.key) for row in db[jobs.subspace.range((37,))]]
    assert len({row[2] for row in rows if row[1] in (8, 9)}) < 12


# Starts that came with a backup


def test_a_new_rate_of_all_groups_releases_those_that_are_held(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some at a time."""
    monkeypatch.setattr(groups_module, "_SETTLED", 2)
    names = [f"group {number}" for number in range(9)]
    jobs.set_group(db, None, rate=(1, 3600))
    jobs.push_many(db, range(18), groups=names * 2)
    assert sum(len(jobs.claim(db, n=9) or ()) for _ in range(3)) == 9
    assert jobs.claim(db) is None
    jobs.set_group(db, None, rate=None)
    taken = 0
    while taken < 9:
        taken += len(jobs.claim(db, n=9, wait=MAX_WAIT))
