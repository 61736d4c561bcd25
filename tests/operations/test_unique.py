"""The scopes of unique keys: until the item is claimed, until it has ended, and for a period."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import PriorityQueue
from fdbqueue.admin import check
from fdbqueue.errors import QueueFull
from fdbqueue.testing import Clock
from tests.support.full import unless_full
from tests.support.keys import layout_of, number_in, rows_in
from tests.support.leases import come_due, expire, lapse

CLAIMED: Any = {"unique": "k", "unique_until": "claimed"}
HOUR: Any = {"unique": "k", "unique_for": "1h"}


@pytest.fixture
def jobs(db: Any, name: str) -> PriorityQueue:
    """Return an empty queue whose items may be claimed twice."""
    return PriorityQueue.named(db, name, max_attempts=2)


def keys_stored(db: Any, queue: PriorityQueue) -> tuple[int, int]:
    return number_in(db, queue, "unique_keys"), number_in(db, queue, "unique_ends")


# Until the item has ended


def test_a_key_stores_one_item_until_it_has_ended(db: Any, name: str) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    first = queue.push(db, "first", 5, unique="report")
    assert first == next(queue.items(db))
    again = queue.push(db, "second", 1, unique="report")
    assert (again, first.is_new, again.is_new) == (first, True, False)
    assert queue.push(db, "other", 9, unique="another") != first
    claim = queue.claim(db)
    assert queue.push(db, "third", 1, unique="report") == first
    queue.nack(db, claim)  # it becomes a dead letter, which frees the key
    second = queue.push(db, "fourth", 1, unique="report")
    assert second.value == "fourth"
    assert not queue.retry(db, first)  # the key would be in use twice
    queue.ack(db, queue.claim(db))
    assert queue.retry(db, first)
    assert queue.push(db, "fifth", unique="report") == first


@pytest.mark.parametrize("scope", [{}, CLAIMED])
@pytest.mark.parametrize("end", ["expired", "dead"])
def test_a_push_finds_that_the_item_with_its_key_has_ended(
    db: Any, name: str, end: str, scope: dict[str, Any]
) -> None:
    queue = PriorityQueue.named(db, name, max_attempts=1)
    options = {"unique": "k", **scope}
    item = queue.push(db, 1, ttl=1000, **options)
    if end == "expired":
        expire(db, queue)
    else:
        queue.claim(db)
        lapse(db, queue)
    assert queue.push(db, 2, **options).value == 2
    assert queue.state(db, item) == ("dead" if end == "dead" else None)


@pytest.mark.parametrize("scope", [{}, CLAIMED])
def test_an_item_keeps_its_key_through_moves_delays_and_cancellation(
    db: Any, jobs: PriorityQueue, scope: dict[str, Any]
) -> None:
    options = {"unique": "k", **scope}
    jobs.push(db, 1, 5, **options)
    moved = jobs.update(db, next(jobs.items(db)), priority=7)
    assert jobs.push(db, 2, **options) == moved
    jobs.nack(db, jobs.claim(db), delay=1000)
    assert jobs.state(db, moved) == "delayed"
    assert jobs.push(db, 3, **options) == moved
    come_due(db, jobs)
    assert jobs.claim(db).attempt == 2
    jobs.release(db, moved.id)
    assert jobs.push(db, 4, **options) == moved
    jobs.claim(db)
    assert jobs.cancel(db, moved.id)
    lapse(db, jobs)
    assert jobs.push(db, 5, **options).is_new
    assert [item.value for item in jobs.pop_many(db, 9)] == [5]


# Until claimed


def test_one_item_waits_while_another_is_claimed(db: Any, jobs: PriorityQueue) -> None:
    first = jobs.push(db, 1, **CLAIMED)
    assert jobs.push(db, 2, **CLAIMED) == first
    claim = jobs.claim(db)
    second = jobs.push(db, 2, **CLAIMED)
    assert second.is_new
    assert not jobs.push(db, 3, **CLAIMED).is_new
    jobs.ack(db, claim)  # leaves the key to the second item
    assert jobs.push(db, 3, **CLAIMED) == second
    assert [info.unique for info in jobs.items(db, state="ready")] == ["k"]
    jobs.ack(db, jobs.claim(db))
    assert keys_stored(db, jobs) == (0, 0)


@pytest.mark.parametrize("end", ["release", "nack", "delayed nack", "lapse"])
@pytest.mark.parametrize("is_free", [True, False])
def test_an_item_that_returns_takes_the_key_again_if_it_is_free(
    db: Any, jobs: PriorityQueue, end: str, is_free: bool
) -> None:
    first = jobs.push(db, 1, **CLAIMED)
    claim = jobs.claim(db)
    info = jobs.get(db, first)
    assert info.unique == "k"
    second = None if is_free else jobs.push(db, 2, **CLAIMED)
    if end == "release":
        jobs.release(db, claim)
    elif end == "lapse":
        lapse(db, jobs)
    else:
        jobs.nack(db, claim, delay=60 if end == "delayed nack" else 0)
    again = jobs.claim(db, within=1) if end == "lapse" else None
    if again is not None:  # which found that the lease is over
        jobs.release(db, again)
    assert jobs.push(db, 3, **CLAIMED) == (first if is_free else second)
    assert check(db, jobs).ok
    come_due(db, jobs)
    assert len(jobs.pop_many(db, 9)) == (1 if is_free else 2)
    assert keys_stored(db, jobs) == (0, 0)


# For a period


def test_a_key_is_not_free_for_its_period_even_if_the_item_has_ended(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    first = jobs.push(db, 1, 5, **HOUR)
    assert first.is_new
    assert jobs.push(db, 2, **HOUR) == first
    jobs.ack(db, jobs.claim(db))
    clock.advance(3590)
    again = jobs.push(db, 2, 1, **HOUR)
    assert (again.id, again.priority, again.value, again.is_new) == (first.id, 5, 2, False)
    assert jobs.is_empty(db)
    assert check(db, jobs).ok
    clock.advance(20)
    second = jobs.push(db, 3, **HOUR)
    assert second.is_new
    clock.advance(3590)  # the period begins with the second item
    assert jobs.push(db, 4, **HOUR) == second
    assert keys_stored(db, jobs) == (1, 1)


RETURNED: dict[str, Callable[[Any, PriorityQueue, Any], object]] = {
    "claimed": lambda db, jobs, item: jobs.claim(db),
    "released": lambda db, jobs, item: jobs.release(db, jobs.claim(db)),
    "moved": lambda db, jobs, item: jobs.update(db, item, priority=3),
    "dead": lambda db, jobs, item: jobs.nack(db, jobs.claim(db), dead=True),
    "done": lambda db, jobs, item: jobs.ack(db, jobs.claim(db)),
    "expired": lambda db, jobs, item: expire(db, jobs),
}


@pytest.mark.parametrize("end", RETURNED)
def test_a_repeated_push_within_the_period_returns_the_first_item(
    db: Any, jobs: PriorityQueue, end: str
) -> None:
    jobs.push(db, "option")
    jobs.configure(db, keep=9)
    jobs.pop(db)
    first = jobs.push(db, 1, ttl=1000, **HOUR)
    RETURNED[end](db, jobs, first)
    again = jobs.push(db, 2, **HOUR)
    assert (again.id, again.is_new) == (first.id, False)
    assert again.value == (2 if end == "expired" else 1)  # its own value is no longer stored
    assert end != "dead" or jobs.retry(db, first)


FINDS: dict[str, Callable[[Any, PriorityQueue], object]] = {
    "claim": lambda db, jobs: jobs.claim(db),
    "pop": lambda db, jobs: jobs.pop(db),
    "refused push": lambda db, jobs: (
        jobs.configure(db, max_size=1),
        unless_full(jobs.push, db, 4, unique="a", unique_for=30),
        unless_full(jobs.push, db, 4, unique="b", unique_for=30),
    ),
}


@pytest.mark.parametrize("finds", FINDS)
def test_periods_that_are_over_are_deleted_whoever_finds_them(
    db: Any, jobs: PriorityQueue, clock: Clock, finds: str
) -> None:
    """Even if their items have not ended."""
    jobs.push_many(db, [1, 2], unique=["a", "b"], unique_for=30)
    jobs.push(db, 3, unique="c", unique_until="ended")
    assert keys_stored(db, jobs) == (3, 2)
    clock.advance(61)
    FINDS[finds](db, jobs)
    assert number_in(db, jobs, "unique_ends") == 0
    keys = {row.key for row in rows_in(db, jobs, "unique_keys")}
    assert keys <= {layout_of(jobs).unique_key("c")}


def test_a_key_that_is_taken_again_outlives_its_earlier_period(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    """A client that has read the end of the earlier period deletes it after the second push."""
    jobs.push(db, 1, unique="k", unique_for=10)
    clock.advance(11)
    late = db.create_transaction()
    jobs.push(late, 0, unique="other", unique_for=3600)
    second = jobs.push(db, 2, **HOUR)
    late.commit().wait()
    assert jobs.push(db, 3, **HOUR) == second


# All scopes


def test_a_key_has_the_scope_of_the_push_that_stored_the_item(
    db: Any, jobs: PriorityQueue, clock: Clock
) -> None:
    first = jobs.push(db, 1, unique="k")
    assert jobs.push(db, 2, **CLAIMED) == jobs.push(db, 2, **HOUR) == first
    jobs.claim(db)
    assert jobs.push(db, 3, **CLAIMED) == first
    lapse(db, jobs)
    jobs.pop(db)
    second = jobs.push(db, 4, **HOUR)
    assert jobs.push(db, 5, unique="k") == second
    clock.advance(3601)
    third = jobs.push(db, 6, unique="k")
    assert third.is_new
    assert keys_stored(db, jobs) == (1, 0)


@pytest.mark.parametrize("scope", [{}, {"unique_until": "claimed"}, {"unique_for": 60}])
def test_push_many_returns_the_item_of_each_key(db: Any, jobs: PriorityQueue, scope: Any) -> None:
    known = jobs.push(db, "known", unique="a", **scope)
    items = jobs.push_many(db, [1, 2, 3, 4], unique=["a", "b", "b", None], **scope)
    assert [item.is_new for item in items] == [False, True, False, True]
    assert [item.value for item in items] == ["known", 2, 2, 4]
    assert items[0] == known
    assert items[1] == items[2]
    assert jobs.size(db) == 3


def test_push_many_to_a_bounded_queue_needs_room_for_new_items_only(db: Any, name: str) -> None:
    jobs = PriorityQueue.named(db, name, max_size=3)
    known = jobs.push(db, "known", unique="a")
    assert len(jobs.push_many(db, [1, 2, 2, 1], unique=["a", "b", "b", "a"])) == 4
    with pytest.raises(QueueFull):
        jobs.push_many(db, [1, 2], unique=["c", "d"])
    assert unless_full(jobs.push_many, db, [1, 2], unique=["c", "d"]) is None
    fitting = jobs.push_many(
        db, [1, 2, 3, 4], unique=["a", "c", "d", "a"], unique_for=60, as_many_as_fit=True
    )
    assert [item.value for item in fitting] == ["known", 2]
    assert jobs.push(db, 0, unique="a") == known  # which needs no room
    assert jobs.size(db) == 3
