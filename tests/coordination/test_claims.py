"""A claim takes one of the first items and does not conflict with claims of other items."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from weakref import ref

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PriorityQueue
from fdbqueue.coordination.combiner import Batch
from fdbqueue.database.clock import uuids
from fdbqueue.operations.claims import ClaimRequest
from fdbqueue.operations.limits.places import Slots
from fdbqueue.queue.base import store_of
from fdbqueue.testing import Clock, FaultyDatabase
from tests.support.counting import CountingDatabase


def test_a_claim_takes_only_items_within_its_distance(db: Any, queue: PriorityQueue) -> None:
    """This holds under conflicts and in a caller's transaction."""
    claim = fdbqueue.transactional(lambda tr: queue.claim(tr, within=5))
    unlucky = FaultyDatabase(db, conflict=0.7, seed=1)
    db.options.set_transaction_max_retry_delay(1)
    left = list(range(60))
    queue.push_many(db, left)
    seen = set()
    for call in [lambda: queue.claim(unlucky, within=5), lambda: claim(db)] * 25:
        at = left.index(call().item.value)
        seen.add(at)
        del left[at]
    assert seen == set(range(5))


@pytest.mark.parametrize("shards", [1, 4])
def test_claims_at_the_same_time_differ_unless_a_group_may_come_first(
    db: Any, queue: PriorityQueue, shards: int
) -> None:
    queue.configure(db, shards=shards)
    queue.push_many(db, range(100), priority=1)

    def taken() -> set[Any]:
        claims = [queue.claim(db.create_transaction(), within=64) for _ in range(60)]
        return {item.value for claim in claims if claim for item in claim.items}

    queue.push(db, "ada", priority=2, group="ada")
    assert len(taken()) > 20
    queue.push(db, "bob", priority=1, group="bob")
    assert shards > 1 or len(taken()) == 1
    queue.push(db, "eve", priority=0, group="eve")
    assert taken() == {"eve"}


@pytest.mark.parametrize("change", ["urgent items", "a lower `within`"])
def test_a_claim_after_conflicts_keeps_to_its_distance(
    db: Any, queue: PriorityQueue, change: str
) -> None:
    """It does not go on behind the last item if that is too far behind the first one by now."""
    unlucky = FaultyDatabase(db, conflict=0.8, seed=1)
    db.options.set_transaction_max_retry_delay(1)
    queue.push_many(db, range(300), priorities=[5] * 300)
    for _ in range(3):
        for _ in range(8):
            queue.release(db, queue.claim(unlucky))
        if change == "urgent items":
            queue.push_many(db, range(300), priorities=[0] * 300)
            taken = [queue.claim(db) for _ in range(8)]
            assert {claim.item.priority for claim in taken} == {0}
            queue.pop_many(db, 292)
        else:
            claim = queue.claim(db, within=3)
            assert claim.item.value < 3
            queue.release(db, claim)


def test_claims_of_different_items_both_commit(db: Any, queue: PriorityQueue) -> None:
    queue.push_many(db, "ab")
    outcomes = set()
    for _ in range(30):
        one, other = db.create_transaction(), db.create_transaction()
        items = [queue.claim(tr, within=2).item for tr in (one, other)]
        one.commit().wait()
        if items[0] != items[1]:
            other.commit().wait()
            outcomes.add("both")
        else:
            with pytest.raises(fdbqueue.error_classes()) as error:
                other.commit().wait()
            assert error.value.code == 1020
            outcomes.add("one")
        queue.clear(db)
        queue.push_many(db, "ab")
    assert outcomes == {"both", "one"}


def test_each_item_is_claimed_exactly_once_despite_lost_replies(
    db: Any, queue: PriorityQueue, rng: random.Random
) -> None:
    """No claim returns `None` while an item is available."""
    db.options.set_transaction_max_retry_delay(1)
    values = [*range(100), "x" * 200_000]
    queue.push_many(db, values)

    def work(seed: int) -> list[Any]:
        lossy = FaultyDatabase(db, before=0.1, after=0.1, conflict=0.1, seed=seed)
        own = PriorityQueue(queue.subspace) if seed % 2 else queue
        return [claim.item.value for claim in iter(lambda: own.claim(lossy), None)]

    with ThreadPoolExecutor(6) as pool:
        taken = [*pool.map(work, [rng.randrange(2**32) for _ in range(6)])]
    assert sorted(chain(*taken), key=str) == sorted(values, key=str)
    assert queue.is_empty(db)


def test_a_claim_that_finds_nothing_writes_nothing(db: Any, space: Subspace) -> None:
    counting = CountingDatabase(db)
    queue = PriorityQueue(space["items"])
    queue.push(db, "later", delay=3600)
    queue.push(db, "now")
    assert queue.claim(counting) is not None
    before = counting.commits
    assert before > 0
    for _ in range(5):
        assert queue.claim(counting) is None
    assert counting.commits == before


def test_a_claim_that_joins_others_finds_what_its_thread_has_pushed(
    db: Any, queue: PriorityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have begun their transaction before the push."""
    begun, may_join = threading.Event(), threading.Event()
    join = Batch.join

    def join_late(batch: Batch[Any], tr: Any) -> bool:
        if not begun.is_set():
            begun.set()
            if claims._lines[ref(db)].is_remote:
                tr.get_read_version().wait()
            assert may_join.wait(60)
        return join(batch, tr)

    claims = store_of(queue).claims
    with ThreadPoolExecutor(2) as pool:
        queue.push(db, "first")
        assert pool.submit(queue.claim, db).result()
        monkeypatch.setattr(Batch, "join", join_late)
        early = pool.submit(queue.claim, db)
        assert begun.wait(60)
        PriorityQueue(queue.subspace).push(db, "second")
        late = pool.submit(queue.claim, db)
        while not claims._lines[ref(db)].waiting:
            pass
        may_join.set()
        taken = [call.result() for call in (early, late)]
    assert [claim.item.value for claim in taken if claim] == ["second"]


# Threads that claim at the same time share a transaction


def claim_together(db: Any, jobs: Any, sizes: list[int]) -> list[list[Any]]:
    """Claim for several threads in one transaction; return the values of each."""
    requests = [ClaimRequest(n, n, 30.0, token, "") for n, token in zip(sizes, uuids(len(sizes)))]
    claims = store_of(jobs)._claims.perform(db, Batch(requests))
    return [[item.value for item in claim.items] if claim else [] for claim in claims]


def test_the_claims_of_a_batch_take_turns_as_one_claim_does(db: Any, jobs: Any) -> None:
    for group in ("ada", "bob", None):
        jobs.push_many(db, [group] * 6, group=group)
    found = claim_together(db, jobs, [1, 2, 1, 3])
    assert found == [[None], ["ada", "bob"], [None], ["ada", "bob", None]]
    assert fdbqueue.admin.check(db, jobs).problems == ()
    assert claim_together(db, jobs, [1, 1]) == [["ada"], ["bob"]]
    assert [*chain(*claim_together(db, jobs, [3, 3, 3, 9]))].count("ada") == 3
    assert fdbqueue.admin.check(db, jobs).problems == ()
    jobs.push(db, "new", group="ada")
    assert claim_together(db, jobs, [1, 1]) == [["new"], []]


def test_a_claim_that_finds_too_few_items_reads_them_once(
    db: Any, jobs: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.push_many(db, range(4), groups=["ada", "bob", "ada", "bob"])
    for _ in range(2):
        assert jobs.claim(db) is not None  # the second one sweeps, so the next one need not
    admitted = list[int]()
    admit = Slots.admit

    def noted(*args: Any) -> Any:
        found = admit(*args)
        admitted.append(len(found))
        return found

    monkeypatch.setattr(Slots, "admit", noted)
    assert len(jobs.claim(db, n=10)) == 2
    assert admitted == [2]


def test_the_claims_of_a_batch_keep_to_the_limits_together(db: Any, name: str) -> None:
    jobs = fdbqueue.Queue.named(db, f"{name}jobs")
    jobs.set_group(db, "ada", concurrency=2)
    jobs.set_group(db, "bob", rate=(3, 60))
    for group in ("ada", "bob"):
        jobs.push_many(db, [group] * 6, group=group)
    found = claim_together(db, jobs, [1, 1, 1, 2, 1])
    assert sorted(chain(*found)) == ["ada"] * 2 + ["bob"] * 3
    assert claim_together(db, jobs, [1, 1]) == [[], []]
    assert [each.held_by for each in jobs.groups(db)] == ["concurrency", "rate"]
