"""Rates of groups, which hold over every window, and sequences, which failures do not break."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import admin
from fdbqueue.database import clock as clocks
from fdbqueue.layout.values import decode_count
from fdbqueue.operations.maintainers import groups as groups_module
from fdbqueue.testing import Clock
from tests.support.asleep import Asleep
from tests.support.counting import CountingDatabase
from tests.support.keys import layout_of
from tests.support.threads import in_threads
from tests.support.waiting import MAX_WAIT


@pytest.fixture(params=["priority", "fifo"])
def jobs(db: Any, name: str, request: pytest.FixtureRequest) -> Any:
    kind = fdbqueue.PriorityQueue if request.param == "priority" else fdbqueue.Queue
    return kind.named(db, f"{name}jobs")


def group_of(db: Any, jobs: Any) -> Any:
    """Return the only group of a queue, as a sweep leaves it."""
    jobs.wait(db, 0)
    (group,) = jobs.groups(db)
    return group


# Rates


def test_a_rate_holds_over_every_window(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", rate=(3, "10s"))
    jobs.push_many(db, range(20), group="ada")
    with Clock() as clock:
        assert len(jobs.claim(db, n=1)) == 1
        clock.advance("6s")
        assert len(jobs.claim(db, n=9)) == 2
        assert jobs.claim(db) is None
        group = group_of(db, jobs)
        assert group.held_by == "rate"
        assert 3 < (group.held_until - clock.now()).total_seconds() <= 4
        clock.advance("5s")
        assert len(jobs.claim(db, n=9)) == 1  # the window has two starts of six seconds later
        assert jobs.claim(db) is None
        clock.advance("6s")
        assert len(jobs.claim(db, n=9)) == 2
        clock.advance("1h")
        assert len(jobs.claim(db, n=9)) == 3
    assert admin.check(db, jobs).problems == ()


def test_pops_are_starts_too(db: Any, jobs: Any) -> None:
    jobs.set_group(db, None, rate=(2, 10))
    for group in ("ada", "bob"):
        jobs.push_many(db, [group] * 4, group=group)
    with Clock() as clock:
        assert [item.value for item in jobs.pop_many(db, 9)] == ["ada", "bob", "ada", "bob"]
        assert jobs.pop(db) is None
        clock.advance(10.1)
        assert len(jobs.pop_many(db, 9)) == 4


def test_a_client_that_waits_wakes_when_the_rate_allows_more(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", rate=(1, 0.3))
    jobs.push_many(db, ["first", "second"], group="ada")
    assert jobs.claim(db).items[0].value == "first"
    began = time.monotonic()
    assert jobs.claim(db, wait=MAX_WAIT).items[0].value == "second"
    assert time.monotonic() - began > 0.2


def test_another_client_that_waits_already_wakes_then(db: Any, jobs: Any) -> None:
    """It has fallen asleep before there was anything to wait for."""
    jobs.set_group(db, "ada", rate=(1, 0.5))
    found: list[Any] = []
    sleeper = threading.Thread(target=lambda: found.append(jobs.claim(db, wait=MAX_WAIT)))
    jobs.set_group(db, "ada", paused=True)
    jobs.push_many(db, ["first", "second", "third"], group="ada")
    sleeper.start()
    time.sleep(0.2)
    jobs.set_group(db, "ada", paused=False)
    sleeper.join(MAX_WAIT)
    assert [claim.items[0].value for claim in found] == ["first"]


def test_claims_of_one_transaction_count_together(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", rate=(3, 10))
    jobs.push_many(db, range(9), group="ada")

    @fdbqueue.transactional
    def claim_twice(tr: Any) -> list[Any]:
        return [jobs.claim(tr, n=2), jobs.claim(tr, n=2), jobs.claim(tr)]

    with Clock() as clock:
        first, second, third = claim_twice(db)
        assert (len(first), len(second), third) == (2, 1, None)
        assert jobs.claim(db) is None
        clock.advance(10.1)
        assert len(jobs.claim(db, n=9)) == 3


@pytest.mark.parametrize("limit", [{"concurrency": 2}, {"rate": (2, "1m")}])
def test_a_claim_of_several_priorities_holds_the_group_that_it_fills(
    db: Any, name: str, limit: Any
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.set_group(db, "ada", **limit)
    jobs.push(db, "first", priority=0, group="ada")
    jobs.push_many(db, ["second", "third"], priority=1, group="ada")
    assert [item.value for item in jobs.claim(db, n=2).items] == ["first", "second"]
    (held_by,) = limit
    assert group_of(db, jobs).held_by == held_by
    assert jobs.claim(db) is None
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("limit", [{"concurrency": 2}, {"rate": (2, "1m")}])
@pytest.mark.parametrize("at_max", [False, True])
def test_a_pop_of_several_priorities_keeps_to_the_limit_of_a_group(
    db: Any, name: str, limit: Any, at_max: bool
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.set_group(db, "ada", **limit)
    jobs.push_many(db, range(4), priorities=range(4), group="ada")
    jobs.push_many(db, ["a", "b"], priorities=[0, 3])
    popped = [item.value for item in jobs.pop_many(db, 9, max=at_max)]
    assert popped == (["b", 3, 2, "a"] if at_max else ["a", 0, 1, "b"])
    assert admin.check(db, jobs).problems == ()


def test_no_clock_that_is_ahead_starts_more(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions of the database have to agree."""
    jobs.set_group(db, "ada", rate=(1, 60))
    jobs.push_many(db, range(2), group="ada")
    assert jobs.claim(db)
    machines = clocks.time_ns
    monkeypatch.setattr(clocks, "time_ns", lambda: machines() + 3600 * 10**9)
    assert jobs.claim(db) is None
    assert group_of(db, jobs).held_by == "rate"


def test_a_new_rate_holds_at_once(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", rate=(2, 10))
    jobs.push_many(db, range(20), group="ada")
    with Clock() as clock:
        assert len(jobs.claim(db, n=9)) == 2
        jobs.set_group(db, "ada", rate=(5, 10))
        assert len(jobs.claim(db, n=9)) == 3
        jobs.set_group(db, "ada", rate=(1, 10))
        clock.advance(10.1)
        assert len(jobs.claim(db, n=9)) == 1
        jobs.set_group(db, "ada", rate=None)
        assert len(jobs.claim(db, n=9)) == 9
    assert group_of(db, jobs).rate is None


def test_a_new_rate_of_all_groups_releases_those_that_are_held(db: Any, jobs: Any) -> None:
    names = [f"group {number}" for number in range(450)]
    jobs.set_group(db, None, rate=(1, 3600))
    jobs.push_many(db, range(900), groups=names * 2)
    for _ in range(5):
        jobs.claim(db, n=100)
    assert jobs.claim(db) is None
    jobs.set_group(db, None, rate=None)
    assert sum(len(jobs.claim(db, n=100)) for _ in range(5)) == 450
    assert admin.check(db, jobs).problems == ()


def test_a_lower_rate_of_all_groups_holds_at_once(db: Any, jobs: Any) -> None:
    jobs.set_group(db, None, rate=(5, 10))
    jobs.push_many(db, range(6), group="ada")
    with Clock() as clock:
        assert len(jobs.claim(db, n=3)) == 3
        jobs.set_group(db, None, rate=(2, 10))
        assert jobs.claim(db) is None
        assert group_of(db, jobs).held_by == "rate"
        clock.advance(10.1)
        assert len(jobs.claim(db, n=9)) == 2
    assert admin.check(db, jobs).problems == ()


def test_sweeps_hold_very_many_groups_some_at_a_time(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would have turns that nobody may take, and no timer."""
    monkeypatch.setattr(groups_module, "_SETTLED", 1)
    jobs.set_group(db, None, rate=(5, "1m"))
    jobs.push_many(db, range(8), groups=["ada", "bob"] * 4)
    with Clock() as clock:
        clock.advance(1)
        assert len(jobs.claim(db, n=4)) == 4
        jobs.set_group(db, None, rate=(1, "1m"))
        assert [group.held_by for group in jobs.groups(db)] == [None, None]
        for _ in range(9):
            assert jobs.claim(db, n=4) is None
            clock.advance(0.01)
        assert [group.held_by for group in jobs.groups(db)] == ["rate", "rate"]
        assert admin.check(db, jobs).problems == ()
        clock.advance("1m")
        assert len(jobs.claim(db, n=4)) == 2
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("group", ["ada", None])
def test_a_rate_of_a_shorter_time_lets_a_held_group_go_on_earlier(
    db: Any, jobs: Any, group: str | None
) -> None:
    jobs.set_group(db, group, rate=(1, "1h"))
    jobs.push_many(db, range(3), group="ada")
    with Clock() as clock:
        assert jobs.pop(db).value == 0
        assert group_of(db, jobs).held_until > clock.now() + timedelta(minutes=59)
        jobs.set_group(db, group, rate=(1, "10s"))
        assert group_of(db, jobs).held_until <= clock.now() + timedelta(seconds=10)
        assert jobs.pop(db) is None
        clock.advance("10s")
        assert jobs.pop(db).value == 1
    assert admin.check(db, jobs).problems == ()


def test_a_group_of_a_cleared_queue_goes_on_when_its_rate_allows_more(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", rate=(2, 10))
    jobs.push_many(db, range(4), group="ada")
    with Clock() as clock:
        assert len(jobs.claim(db, n=9)) == 2
        jobs.clear(db)
        assert admin.check(db, jobs).problems == ()
        jobs.push_many(db, range(4), group="ada")
        assert group_of(db, jobs).held_by == "rate"
        assert admin.check(db, jobs).problems == ()
        assert jobs.pop(db) is None
        assert admin.check(db, jobs).problems == ()
        clock.advance(10.1)
        assert len(jobs.pop_many(db, 9)) == 2
    assert admin.check(db, jobs).problems == ()


def test_a_queue_with_very_many_groups_at_their_rate_is_cleared_at_once(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups are held some at a time, and start no more than their rate meanwhile."""
    monkeypatch.setattr(groups_module, "_SETTLED", 2)
    jobs.set_group(db, None, rate=(1, 10))
    reads = list[int]()
    with Clock() as clock:
        for n in (3, 9):
            groups = [f"group {number}" for number in range(n)]
            jobs.push_many(db, groups, groups=groups)
            assert len(jobs.pop_many(db, 9)) == n
            counted = CountingDatabase(db)
            jobs.clear(counted)
            reads.append(counted.reads)
            jobs.push_many(db, groups, groups=groups)
            assert [jobs.claim(db) for _ in groups] == [None] * n
            assert admin.check(db, jobs).problems == ()
            clock.advance(10.1)
            assert {jobs.pop(db, wait=MAX_WAIT).value for _ in groups} == {*groups}
            clock.advance(10.1)
    assert reads[0] == reads[1]


def test_a_start_by_a_clock_that_was_ahead_does_not_keep_older_ones(
    db: Any, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(jobs)
    jobs.set_group(db, "ada", rate=(3, "20s"))
    jobs.set_group(db, "bob", weight=0.1)
    jobs.push_many(db, range(5), groups=["ada"] * 3 + ["bob"] * 2)
    with Clock() as clock:
        present = clocks.time_ns
        with monkeypatch.context() as ahead:
            ahead.setattr(clocks, "time_ns", lambda: present() + 600 * 10**9)
            assert jobs.claim(db, lease=900).item.value == 0
        assert jobs.claim(db, lease=900).item.value == 3
        clock.advance("5s")
        assert jobs.claim(db, lease=900).item.value == 1
        clock.advance("20.1s")
        last_ones = jobs.claim(db, n=2, lease=900).items
    assert [item.value for item in last_ones] == [2, 4]
    assert decode_count(db[layout.group_key(layout.start_counts, "ada")]) == 2
    assert admin.check(db, jobs).problems == ()


def test_a_rate_outlives_the_items(db: Any, jobs: Any) -> None:
    """Neither an empty group nor an empty queue begins a new window."""
    jobs.set_group(db, "ada", rate=(1, 60))
    jobs.push(db, 1, group="ada")
    jobs.ack(db, jobs.claim(db))
    jobs.push(db, 2, group="ada")
    assert jobs.claim(db) is None
    jobs.clear(db)
    jobs.push(db, 3, group="ada")
    assert jobs.claim(db) is None
    assert admin.check(db, jobs).problems == ()


def test_starts_of_groups_that_are_gone_are_forgotten(db: Any, jobs: Any) -> None:
    jobs.set_group(db, None, rate=(5, 10))
    with Clock() as clock:
        for number in range(20):
            jobs.push(db, number, group=f"group {number}")
            jobs.pop(db)
            clock.advance(4)
    rows = [jobs.subspace.unpack(row.key) for row in db[jobs.subspace.range((37,))]]
    assert len({row[2] for row in rows if row[1] in (8, 9)}) < 12


def test_a_longer_rate_outlives_a_priority_in_which_the_group_had_items_before(
    db: Any, name: str
) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    jobs.set_group(db, "ada", rate=(1, "1s"))
    with Clock() as clock:
        jobs.push(db, 1, 1, group="ada")
        assert jobs.pop(db).value == 1
        jobs.set_group(db, "ada", rate=(3, "1h"))
        clock.advance(2)
        jobs.push(db, 2, 0, group="ada")
        assert jobs.pop(db).value == 2
        clock.advance(2)
        jobs.push_many(db, range(5), 1, group="bob")
        assert len(jobs.pop_many(db, 9)) == 5  # which forgets that "ada" had items of priority 1
        jobs.push_many(db, "ab", 0, group="ada")
        assert len(jobs.pop_many(db, 9)) == 1
    assert admin.check(db, jobs).problems == ()


@pytest.mark.parametrize("rate", [(0, 1), (1, 0), (1,), 5, (1.5, 1), (20_000, 1), (1, "soon")])
def test_a_rate_is_a_number_and_a_time(db: Any, jobs: Any, rate: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        jobs.set_group(db, "ada", rate=rate)
    assert jobs.groups(db) == []


def test_no_window_has_more_starts_than_its_rate(db: Any, name: str) -> None:
    """Eight threads claim, and store their read versions."""
    jobs = fdbqueue.Queue.named(db, f"{name}jobs")
    log = fdbqueue.Subspace((f"{name}log",))
    rates = {"a": (1, 0.05), "b": (3, 0.1), "c": (10, 0.2)}
    for group, rate in rates.items():
        jobs.set_group(db, group, rate=rate)
    groups = random.choices([*rates], k=120)
    jobs.push_many(db, range(120), groups=groups)

    @fdbqueue.transactional
    def claim(tr: Any, n: int) -> int:
        claim = jobs.claim(tr, n=n, lease=600)
        for item in claim.items if claim else ():
            key = log.pack((groups[item.value], item.value))
            tr[key] = tr.get_read_version().wait().to_bytes(8, "big")
        return len(claim or ())

    def work(seed: int) -> None:
        rng = random.Random(seed)
        deadline = time.monotonic() + MAX_WAIT
        while jobs.size(db) and time.monotonic() < deadline:
            claim(db, rng.choice([1, 1, 3]))

    in_threads(partial(work, seed) for seed in range(8))
    starts: dict[str, list[int]] = defaultdict(list)
    for row in db[log.range()]:
        starts[log.unpack(row.key)[0]].append(int.from_bytes(row.value, "big"))
    del db[log.range()]
    assert sum(map(len, starts.values())) == 120
    for group, (n, period) in rates.items():
        versions = sorted(starts[group])
        for first, last in zip(versions, versions[n:]):
            assert last - first >= period * 1_000_000
    assert admin.check(db, jobs).problems == ()


# Starts that came with a backup


def make_foreign(db: Any, jobs: Any) -> None:
    """Give the starts of groups higher versions, as of the cluster that a backup is from."""
    layout = layout_of(jobs)
    for row in list(db.get_range(*layout.range_of(layout.starts))):
        *of_group, version = jobs.subspace.unpack(row.key)
        db[jobs.subspace.pack((*of_group, version + 10**15))] = row.value
        del db[row.key]


def test_restored_starts_count_until_the_clock_says_that_they_are_over(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", rate=(4, "1m"))
    jobs.push_many(db, range(20), group="ada")
    with Clock() as clock:
        assert len(jobs.pop_many(db, 3)) == 3
        make_foreign(db, jobs)
        clock.advance("30s")
        assert len(jobs.pop_many(db, 9)) == 1
        clock.advance("31s")  # the last start is in the window, the others are not
        assert len(jobs.pop_many(db, 9)) == 3
        assert admin.check(db, jobs).problems == ()


def test_restored_starts_do_not_hide_younger_ones(db: Any, jobs: Any) -> None:
    jobs.set_group(db, "ada", rate=(3, "1m"))
    with Clock() as clock:
        jobs.push(db, 0, group="ada")
        jobs.pop(db)
        make_foreign(db, jobs)
        clock.advance("2m")
        jobs.push(db, 1, group="ada")
        jobs.pop(db)
        for group in ("bob", "eve", "kim"):  # each that becomes idle may forget others
            jobs.push_many(db, range(3), group=group)
            jobs.pop_many(db, 3)
        jobs.push_many(db, range(9), group="ada")
        assert len([*iter(partial(jobs.pop, db), None)]) == 2


# Sequences


@pytest.fixture
def sequence(db: Any, jobs: Any) -> Any:
    """A queue of which one item of `ada` may be claimed at a time."""
    jobs.set_group(db, "ada", concurrency=1)
    jobs.push_many(db, ["first", "second", "third"], group="ada")
    return jobs


def value(claim: Any) -> Any:
    return claim and claim.items[0].value


def test_a_failed_item_is_tried_again_before_its_successors(db: Any, sequence: Any) -> None:
    with Clock() as clock:
        for _ in range(3):
            claim = sequence.claim(db)
            assert value(claim) == "first"
            sequence.nack(db, claim, delay=60)
            assert sequence.claim(db) is None
            assert sequence.pop(db) is None
            assert group_of(db, sequence).held_by == "retry"
            clock.advance(61)
        assert admin.check(db, sequence).problems == ()
        sequence.ack(db, sequence.claim(db))
        assert value(sequence.claim(db)) == "second"


@pytest.mark.parametrize("delays", [(60, 1), (1, 60)])
def test_a_sequence_waits_for_all_items_that_failed_before_it_was_one(
    db: Any, jobs: Any, delays: tuple[float, float]
) -> None:
    jobs.set_group(db, "ada", concurrency=2)
    jobs.push_many(db, ["first", "second", "third"], group="ada")
    with Clock() as clock:
        claims = jobs.claim(db), jobs.claim(db)
        jobs.set_group(db, "ada", concurrency=1)
        for claim, delay in zip(claims, delays):
            jobs.nack(db, claim, delay=delay)
        clock.advance("2s")
        assert jobs.claim(db) is None
        clock.advance("60s")
        for expected in ("first", "second", "third"):
            claim = jobs.claim(db)
            assert value(claim) == expected
            jobs.ack(db, claim)


def test_a_failed_item_steps_aside_if_the_group_is_not_in_order(db: Any, sequence: Any) -> None:
    sequence.set_group(db, None, in_order=False)
    sequence.nack(db, sequence.claim(db), delay=60)
    assert value(sequence.claim(db)) == "second"
    assert not group_of(db, sequence).in_order


def test_a_dead_letter_lets_the_sequence_go_on(db: Any, sequence: Any) -> None:
    sequence.nack(db, sequence.claim(db), dead=True)
    assert value(sequence.claim(db)) == "second"


@pytest.mark.parametrize("change", ["remove", "cancel", "retry", "in_order", "concurrency"])
def test_whatever_ends_the_wait_for_a_retry_lets_the_sequence_go_on(
    db: Any, sequence: Any, change: str
) -> None:
    claim = sequence.claim(db)
    sequence.nack(db, claim, delay=3600)
    if change in ("in_order", "concurrency"):
        sequence.set_group(db, "ada", **{change: False if change == "in_order" else 2})
    else:
        getattr(sequence, change)(db, claim.items[0].id)
    assert value(sequence.claim(db)) == ("first" if change == "retry" else "second")
    assert admin.check(db, sequence).problems == ()


@pytest.mark.parametrize("take", ["claim", "pop"])
@pytest.mark.parametrize("end", ["remove", "cancel"])
def test_a_client_that_waits_wakes_when_the_failed_item_of_a_sequence_ends(
    db: Any, sequence: Any, take: str, end: str, asleep: Asleep
) -> None:
    claim = sequence.claim(db)
    sequence.nack(db, claim, delay=3600)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(getattr(sequence, take), db, wait=2 * MAX_WAIT)
        assert asleep.wait(MAX_WAIT)
        assert getattr(sequence, end)(db, claim.items[0].id)
        found = taken.result(MAX_WAIT)
    assert (value(found) if take == "claim" else found.value) == "second"


@pytest.mark.parametrize("setting", ["concurrency", "in_order"])
def test_a_sequence_again_by_settings_of_all_groups_waits_for_its_failed_item(
    db: Any, jobs: Any, setting: str
) -> None:
    jobs.set_group(db, None, concurrency=1)
    jobs.push_many(db, ["first", "second"], group="ada")
    jobs.nack(db, jobs.claim(db), delay=3600)
    with Clock() as clock:
        jobs.set_group(db, None, **{setting: 2 if setting == "concurrency" else False})
        assert group_of(db, jobs).held_by is None
        jobs.set_group(db, None, **{setting: 1 if setting == "concurrency" else None})
        assert group_of(db, jobs).held_by == "retry"
        assert jobs.claim(db) is None
        clock.advance("1h")
        assert value(jobs.claim(db)) == "first"
    assert admin.check(db, jobs).problems == ()


def test_an_item_that_was_pushed_with_a_delay_holds_nobody(db: Any, sequence: Any) -> None:
    sequence.push(db, "later", group="ada", delay=60)
    assert value(sequence.claim(db)) == "first"


def test_a_lease_that_runs_out_keeps_the_sequence(db: Any, sequence: Any) -> None:
    with Clock() as clock:
        assert value(sequence.claim(db, lease=30)) == "first"
        clock.advance(31)
        assert value(sequence.claim(db)) == "first"
        assert sequence.claim(db) is None


# Settings of all groups


CHANGES = [
    ({"rate": (1, "1h")}, {"rate": None}, "claim"),
    ({"concurrency": 1}, {"concurrency": 2}, "claim"),
    ({"concurrency": 1}, {"in_order": False}, "nack"),
    ({"concurrency": 2}, {"concurrency": 1}, "claim"),
    ({"rate": (2, "1h")}, {"rate": (1, "1h")}, "claim"),
]


@pytest.mark.parametrize(("before", "after", "meanwhile"), CHANGES)
def test_a_change_in_a_transaction_holds_for_items_that_start_and_end_meanwhile(
    db: Any, jobs: Any, before: Any, after: Any, meanwhile: str
) -> None:
    jobs.set_group(db, None, **before)
    jobs.push_many(db, range(9), group="ada")
    is_first_try = [True]

    @fdbqueue.transactional
    def change(tr: Any) -> None:
        tr.get_read_version().wait()
        if is_first_try.pop():
            claim = jobs.claim(db)
            if meanwhile == "nack":
                jobs.nack(db, claim, delay=3600)
        is_first_try.append(False)
        jobs.set_group(tr, None, **after)

    change(db)
    group = group_of(db, jobs)
    is_full = after in ({"concurrency": 1}, {"rate": (1, "1h")})
    assert group.held_by == (next(iter(after)) if is_full else None)
    assert (jobs.claim(db) is None) is is_full
    assert admin.check(db, jobs).problems == ()


# Costs


def test_an_item_counts_by_its_cost(db: Any, jobs: Any) -> None:
    jobs.push_many(db, ["ada"] * 20, group="ada", cost=3)
    jobs.push_many(db, ["bob"] * 20, group="bob")
    taken = [jobs.pop(db).value for _ in range(16)]
    assert (taken.count("ada"), taken.count("bob")) == (4, 12)
    claim = jobs.claim(db, n=8)
    assert [item.value for item in claim.items].count("ada") == 2
    jobs.nack(db, claim, delay=0)  # they keep their costs
    assert [jobs.pop(db).value for _ in range(4)].count("ada") == 1


@pytest.mark.parametrize("cost", [0, -1, "1", 1001, float("nan")])
def test_a_cost_is_a_number_over_0(db: Any, jobs: Any, cost: Any) -> None:
    with pytest.raises(ValueError, match="cost"):
        jobs.push(db, 1, group="ada", cost=cost)


def test_a_lower_limit_of_all_groups_holds_at_once(db: Any, jobs: Any) -> None:
    """A client that waits wakes once one of the items that are over it has ended."""
    jobs.push_many(db, [1, 2, 3], group="ada")
    claims = [jobs.claim(db) for _ in range(2)]
    jobs.set_group(db, None, concurrency=1)
    assert group_of(db, jobs).held_by == "concurrency"
    jobs.ack(db, claims[0])
    assert jobs.claim(db) is None
    threading.Timer(0.2, lambda: jobs.ack(db, claims[1])).start()
    began = time.monotonic()
    assert jobs.claim(db, wait=60).item.value == 3
    assert time.monotonic() - began < 25  # a lease lasts longer
    assert admin.check(db, jobs).problems == ()
