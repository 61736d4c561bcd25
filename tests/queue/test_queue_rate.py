"""The rate of a whole queue, which holds over every window for claims and pops together."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import admin
from fdbqueue.database import clock as clocks
from fdbqueue.testing import Clock, FaultyDatabase, FaultyTransaction
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of
from tests.support.threads import in_threads
from tests.support.waiting import MAX_WAIT


@pytest.fixture(params=[fdbqueue.PriorityQueue, fdbqueue.Queue, fdbqueue.TaskQueue])
def jobs(db: Any, name: str, request: pytest.FixtureRequest) -> Any:
    return request.param.named(db, f"{name}jobs")


def push(db: Any, jobs: Any, n: int) -> None:
    if isinstance(jobs, fdbqueue.TaskQueue):
        jobs.push_many(db, [{}] * n)
    else:
        jobs.push_many(db, range(n))


def test_claims_and_pops_count_together_in_every_window(db: Any, jobs: Any) -> None:
    jobs.configure(db, rate=(3, "10s"))
    assert jobs.options(db).rate == (3, 10)
    push(db, jobs, 12)
    with Clock() as clock:
        assert jobs.pop(db)
        clock.advance("6s")
        assert len(jobs.claim(db, n=9)) == 2
        assert jobs.claim(db) is None
        assert jobs.pop(db) is None
        clock.advance("5s")
        assert jobs.pop(db)
        assert jobs.pop(db) is None  # the window has two starts of five seconds before
        clock.advance("6s")
        assert len(jobs.claim(db, n=9)) == 2
        clock.advance("1h")
        assert len(jobs.claim(db, n=9)) == 3
    assert admin.check(db, jobs).problems == ()


class SameVersion(FaultyDatabase):
    """A database whose commits fail at first. The second tries read at the same versions."""

    def create_transaction(self) -> FaultyTransaction:
        return _SameVersion(self, self.db.create_transaction())


class _SameVersion(FaultyTransaction):
    has_failed = False

    def commit(self) -> Any:
        if self.has_failed:
            return self.wrapped.commit()
        self.has_failed = True
        self.version = self.wrapped.get_read_version().wait()
        raise fdbqueue.FDBError(1021)

    def on_error(self, error: Any) -> Any:
        self.wrapped.on_error(error if isinstance(error, int) else error.code).wait()
        self.wrapped.set_read_version(self.version)
        return self.wrapped.get_read_version()


@pytest.mark.parametrize("verb", ["claim", "pop"])
def test_a_second_try_of_a_transaction_starts_as_many_as_the_first(
    db: Any, jobs: Any, verb: str
) -> None:
    """What the first one has started does not count."""
    jobs.configure(db, rate=(2, "10s"))
    push(db, jobs, 4)
    with Clock() as clock:
        assert jobs.claim(db)
        assert jobs.pop(db)
        clock.advance("11s")
        assert getattr(jobs, verb)(SameVersion(db))
    assert admin.check(db, jobs).problems == ()


def test_groups_and_their_rates_count_in_that_of_the_queue(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.configure(db, rate=(3, 10))
    jobs.set_group(db, "ada", rate=(1, 60))
    jobs.push_many(
        db, ["ada", "ada", "bob", "bob", "none"], groups=["ada"] * 2 + ["bob"] * 2 + [None]
    )
    with Clock() as clock:
        assert sorted(item.value for item in jobs.pop_many(db, 9)) == ["ada", "bob", "none"]
        assert jobs.claim(db) is None
        clock.advance(10.1)
        assert [item.value for item in jobs.pop_many(db, 9)] == ["bob"]
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("change", ["set_group", "clear"])
def test_the_queue_is_none_of_the_groups_that_new_settings_hold(
    db: Any, name: str, change: str
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.configure(db, rate=(9, 60))
    if change == "clear":
        jobs.set_group(db, None, rate=(1, 60))
    jobs.push_many(db, range(4))
    assert len(jobs.pop_many(db, 2)) == 2
    if change == "clear":
        jobs.clear(db)
    else:
        jobs.set_group(db, None, rate=(1, 60))
    assert not [*db[slice(*layout_of(jobs).range_of(layout_of(jobs).held_groups))]]


@pytest.mark.parametrize("verb", ["claim", "pop"])
def test_a_client_that_waits_wakes_when_the_rate_allows_more(db: Any, jobs: Any, verb: str) -> None:
    jobs.configure(db, rate=(1, 0.4))
    push(db, jobs, 2)
    assert getattr(jobs, verb)(db)
    began = time.monotonic()
    assert getattr(jobs, verb)(db, wait=MAX_WAIT)
    assert time.monotonic() - began > 0.2


def test_a_client_that_waits_wakes_when_a_new_rate_allows_more(db: Any, jobs: Any) -> None:
    jobs.configure(db, rate=(1, 3600))
    push(db, jobs, 3)
    assert jobs.claim(db)
    found: list[Any] = []
    sleeper = threading.Thread(target=lambda: found.append(jobs.claim(db, wait=MAX_WAIT)))
    sleeper.start()
    time.sleep(0.2)
    jobs.configure(db, rate=(2, 3600))
    sleeper.join(MAX_WAIT)
    assert len(found) == 1
    assert found[0] is not None


def test_a_lower_rate_has_a_timer_too(db: Any, jobs: Any) -> None:
    """No start has set one: there was room until the rate became lower."""
    jobs.configure(db, rate=(9, 0.6))
    push(db, jobs, 5)
    assert len(jobs.claim(db, n=3)) == 3
    jobs.configure(db, rate=(1, 0.6))
    assert jobs.claim(db) is None
    assert jobs.claim(db, wait=MAX_WAIT)


def test_claims_and_pops_of_one_transaction_count_together(db: Any, jobs: Any) -> None:
    jobs.configure(db, rate=(3, 10))
    push(db, jobs, 9)

    @fdbqueue.transactional
    def take(tr: Any) -> list[Any]:
        return [jobs.claim(tr, n=2), jobs.pop(tr), jobs.pop(tr), jobs.claim(tr)]

    with Clock() as clock:
        claim, popped, *none = take(db)
        assert (len(claim), bool(popped), none) == (2, True, [None, None])
        assert jobs.claim(db) is None
        clock.advance(10.1)
        assert len(jobs.claim(db, n=9)) == 3


def test_no_clock_that_is_ahead_starts_more(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.configure(db, rate=(1, 60))
    push(db, jobs, 2)
    assert jobs.claim(db)
    machines = clocks.time_ns
    monkeypatch.setattr(clocks, "time_ns", lambda: machines() + 3600 * 10**9)
    assert jobs.claim(db) is None
    assert jobs.pop(db) is None


def test_a_clock_that_is_behind_does_not_keep_the_starts_of_others(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.configure(db, rate=(2, 10))
    push(db, jobs, 4)
    with Clock() as clock:
        assert jobs.claim(db)
        clock.advance(11)
        machines = clocks.time_ns
        with monkeypatch.context() as behind:
            behind.setattr(clocks, "time_ns", lambda: machines() - 600 * 10**9)
            assert jobs.claim(db)
        assert jobs.claim(db)
        assert jobs.claim(db) is None


def test_a_cleared_queue_keeps_its_window_and_its_timer(db: Any, jobs: Any) -> None:
    jobs.configure(db, rate=(1, 0.6))
    push(db, jobs, 1)
    assert jobs.pop(db)
    jobs.clear(db)
    push(db, jobs, 1)
    assert jobs.claim(db) is None
    assert jobs.claim(db, wait=MAX_WAIT)
    assert admin.check(db, jobs).problems == ()


def test_without_a_rate_starts_are_forgotten(db: Any, jobs: Any) -> None:
    jobs.configure(db, rate=(1, 60))
    push(db, jobs, 9)
    assert jobs.claim(db)
    jobs.configure(db, rate=None)
    assert jobs.options(db).rate is None
    assert len(jobs.claim(db, n=4)) == 4
    jobs.configure(db, rate=(1, 60))
    assert jobs.pop(db)
    assert jobs.pop(db) is None


@pytest.mark.parametrize("rate", [(0, 1), (1, 0), (1,), 5, (1.5, 1), (20_000, 1), (1, "soon")])
def test_a_rate_is_a_number_and_a_time(db: Any, jobs: Any, rate: Any) -> None:
    with pytest.raises(ValueError, match="rate"):
        jobs.configure(db, rate=rate)


def test_an_item_says_that_its_queue_is_over_its_rate(db: Any, name: str) -> None:
    jobs = fdbqueue.Queue.named(db, f"{name}jobs")
    jobs.configure(db, rate=(1, 10))
    item = jobs.push_many(db, [1, 2])[1]
    with Clock() as clock:
        assert jobs.get(db, item).held_by is None
        assert jobs.pop(db)
        assert jobs.get(db, item).held_by == "queue_rate"
        clock.advance(10.1)
        assert jobs.get(db, item).held_by is None


@pytest.mark.parametrize("verb", ["claim", "pop"])
def test_a_transaction_sees_items_after_it_started_as_many_as_the_rate_allows(
    db: Any, jobs: Any, verb: str
) -> None:
    jobs.configure(db, rate=(2, 10))
    push(db, jobs, 4)

    @fdbqueue.transactional
    def start_and_look(tr: Any) -> list[Any]:
        seen: list[Any] = []
        for _ in range(2):
            assert getattr(jobs, verb)(tr)
            seen.append([info.held_by for info in jobs.items(tr, state="ready")])
        return seen

    rest = ["queue_rate", "queue_rate"]
    assert start_and_look(db) == [[None, None, None], rest]
    assert [info.held_by for info in jobs.items(db, state="ready")] == rest


@pytest.mark.parametrize("verb", ["claim", "pop"])
def test_a_queue_without_a_rate_pays_nothing(db: Any, name: str, verb: str) -> None:
    costs = []
    for rate in (None, (100, 60)):
        counted = CountingDatabase(db)
        jobs = fdbqueue.Queue.named(counted, f"{name}{rate}")
        jobs.push_many(counted, range(9))
        jobs.configure(counted, rate=rate, paused=False)
        getattr(jobs, verb)(counted)
        reads: list[int] = []
        for _ in range(5):
            counted.clear()
            getattr(jobs, verb)(counted)
            reads.append(counted.reads)
        costs.append(min(reads))  # on a slow machine, sweeps are due in between
    assert costs == {"claim": [2, 4], "pop": [1, 5]}[verb]


def test_no_window_has_more_starts_than_the_rate(db: Any, name: str) -> None:
    """Eight threads claim and pop, and store their read versions."""
    jobs = fdbqueue.Queue.named(db, f"{name}jobs")
    log = fdbqueue.Subspace((f"{name}log",))
    jobs.configure(db, rate=(10, 0.2))
    jobs.push_many(db, range(100))

    @fdbqueue.transactional
    def take(tr: Any, n: int, is_claim: bool) -> int:
        if is_claim:
            claim = jobs.claim(tr, n=n, lease=600)
            items = claim.items if claim else ()
        else:
            items = jobs.pop_many(tr, n)
        for item in items:
            tr[log.pack((item.value,))] = tr.get_read_version().wait().to_bytes(8, "big")
        return len(items)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        deadline = time.monotonic() + MAX_WAIT
        while jobs.stats(db).ready and time.monotonic() < deadline:
            take(db, rng.choice([1, 1, 3]), rng.random() < 0.5)

    in_threads(partial(work, seed) for seed in range(8))
    versions = sorted(int.from_bytes(row.value, "big") for row in db[log.range()])
    del db[log.range()]
    assert len(versions) == 100
    for first, last in zip(versions, versions[10:]):
        assert last - first >= 200_000
    assert admin.check(db, jobs).problems == ()
