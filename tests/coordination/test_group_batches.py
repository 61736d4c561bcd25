"""Threads that claim at the same time share a transaction, and groups share what it takes."""

from __future__ import annotations

from itertools import chain
from typing import Any

import fdbqueue
from fdbqueue import admin
from fdbqueue.coordination.combiner import Batch
from fdbqueue.database.clock import uuids
from fdbqueue.operations.claims import ClaimRequest
from fdbqueue.queue.base import store_of


def claim_together(db: Any, jobs: Any, sizes: list[int]) -> list[list[Any]]:
    """Claim for several threads in one transaction; return the values of each."""
    requests = [ClaimRequest(n, n, 30.0, token, "") for n, token in zip(sizes, uuids(len(sizes)))]
    claims = store_of(jobs)._claims.perform(db, Batch(requests))
    return [[item.value for item in claim.items] if claim else [] for claim in claims]


def test_the_claims_of_a_batch_take_turns_as_one_claim_does(db: Any, name: str) -> None:
    jobs = fdbqueue.PriorityQueue.named(db, f"{name}jobs")
    for group in ("ada", "bob", None):
        jobs.push_many(db, [group] * 6, group=group)
    found = claim_together(db, jobs, [1, 2, 1, 3])
    assert found == [[None], ["ada", "bob"], [None], ["ada", "bob", None]]
    assert admin.check(db, jobs).problems == ()
    assert claim_together(db, jobs, [1, 1]) == [["ada"], ["bob"]]
    assert [*chain(*claim_together(db, jobs, [3, 3, 3, 9]))].count("ada") == 3
    assert admin.check(db, jobs).problems == ()
    jobs.push(db, "new", group="ada")
    assert claim_together(db, jobs, [1, 1]) == [["new"], []]


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
    assert admin.check(db, jobs).problems == ()
