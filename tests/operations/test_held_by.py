"""Why a ready item is not handed out, and how many items of its group are ahead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import PriorityQueue, Queue
from tests.support.leases import come_due, lapse


@pytest.fixture(params=["priority", "fifo"])
def jobs(db: Any, name: str, request: pytest.FixtureRequest) -> Any:
    kind = PriorityQueue if request.param == "priority" else Queue
    return kind.named(db, f"{name}jobs")


def held_by(db: Any, queue: Any, item: Any) -> str | None:
    info = queue.get(db, item)
    if info.state == "ready":
        assert [each.held_by for each in queue.items(db, state="ready") if each.id == info.id] == [
            info.held_by
        ]
    reason: str | None = info.held_by
    return reason


def test_a_ready_item_says_what_holds_it_back(db: Any, jobs: Any) -> None:
    first = jobs.push(db, "first", group="ada")
    second = jobs.push(db, "second", group="ada")
    claims: list[Any] = []
    steps: list[tuple[Callable[[], object], str | None]] = [
        (lambda: jobs.configure(db, concurrency=1), None),
        (lambda: claims.append(jobs.claim(db)), "queue_concurrency"),
        (lambda: jobs.configure(db, paused=True), "queue_paused"),
        (lambda: jobs.configure(db, paused=False, concurrency=None), None),
        (lambda: jobs.set_group(db, "ada", concurrency=1), "group_concurrency"),
        (lambda: jobs.set_group(db, "ada", paused=True), "group_paused"),
        (lambda: jobs.configure(db, paused=True), "queue_paused"),
        (lambda: jobs.configure(db, paused=False), "group_paused"),
        (lambda: jobs.set_group(db, "ada", paused=False), "group_concurrency"),
        (lambda: jobs.nack(db, claims.pop(), delay=600), "group_retry"),
        (lambda: come_due(db, jobs), None),  # although no client has noticed yet
    ]
    for step, expected in steps:
        step()
        assert held_by(db, jobs, second) == expected
    claim = jobs.claim(db)
    assert claim.item == first
    assert held_by(db, jobs, first) is None  # it runs
    assert held_by(db, jobs, second) == "group_concurrency"
    assert held_by(db, jobs, jobs.push(db, "of no group")) is None
    jobs.ack(db, claim)
    assert held_by(db, jobs, second) is None


@pytest.mark.parametrize("limit", ["queue", "group"])
def test_a_lease_that_is_over_holds_nothing_back(db: Any, jobs: Any, limit: str) -> None:
    first, second = jobs.push_many(db, ["first", "second"], group="ada")
    if limit == "queue":
        jobs.configure(db, concurrency=1)
    else:
        jobs.set_group(db, "ada", concurrency=1)
    jobs.claim(db)
    assert held_by(db, jobs, second) == f"{limit}_concurrency"
    lapse(db, jobs)
    tr = db.create_transaction()
    assert jobs.get(tr, first).state == "claimed"  # as it is stored: nobody has swept yet
    assert jobs.get(tr, second).held_by == f"{limit}_concurrency"
    assert jobs.state(db, first) == "ready"
    assert held_by(db, jobs, first) is None
    assert held_by(db, jobs, second) is None
    assert jobs.claim(db).item == first


def test_items_of_its_group_ahead_of_it_are_counted_up_to_100(db: Any, jobs: Any) -> None:
    items = jobs.push_many(db, [*range(105)], group="ada")
    other, plain = jobs.push(db, "other", group="bob"), jobs.push(db, "plain")
    ahead = [jobs.get(db, item).ahead_in_group for item in (items[0], items[7], items[104])]
    assert ahead == [0, 7, 100]
    assert jobs.get(db, other).ahead_in_group == 0
    assert jobs.get(db, plain).ahead_in_group is None
    assert {info.ahead_in_group for info in jobs.items(db, state="ready")} == {None}
    claim = jobs.claim(db)
    assert jobs.get(db, claim.item).ahead_in_group is None
    if isinstance(jobs, PriorityQueue):
        urgent = jobs.push(db, "urgent", -1, group="ada")
        assert jobs.get(db, urgent).ahead_in_group == 0  # only those of its priority count
